#include "quant_blocks.h"

namespace ridgeline {

const QuantTypeInfo kQuantTypes[kNumQuantTypes] = {
    {0, "F32", 1, 4},
    {1, "F16", 1, 2},
    {30, "BF16", 1, 2},
    {2, "Q4_0", 32, sizeof(BlockQ4_0)},
    {3, "Q4_1", 32, sizeof(BlockQ4_1)},
    {6, "Q5_0", 32, sizeof(BlockQ5_0)},
    {7, "Q5_1", 32, sizeof(BlockQ5_1)},
    {8, "Q8_0", 32, sizeof(BlockQ8_0)},
    {12, "Q4_K", kSuperBlock, sizeof(BlockQ4_K)},
    {13, "Q5_K", kSuperBlock, sizeof(BlockQ5_K)},
    {14, "Q6_K", kSuperBlock, sizeof(BlockQ6_K)},
};

int find_quant_type(int32_t type_id) {
    for (int i = 0; i < kNumQuantTypes; i++) {
        if (kQuantTypes[i].type_id == type_id) {
            return i;
        }
    }
    return -1;
}

int64_t row_size_bytes(QuantType type, int64_t cols) {
    const QuantTypeInfo& info = kQuantTypes[static_cast<int>(type)];
    return cols / info.quant_block_size * info.type_size;
}

} // namespace ridgeline
