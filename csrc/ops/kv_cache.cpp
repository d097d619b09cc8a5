#include "ops/kv_cache.h"

#include <cstring>

namespace ridgeline {

void copy_blocks(const KVCache& cache, const int32_t* block_copies, int64_t num_copies) {
    const int64_t size = cache.block_values();
    for (int64_t i = 0; i < num_copies; i++) {
        const uint16_t* const source = cache.data + block_copies[2 * i] * size;
        std::memmove(cache.data + block_copies[2 * i + 1] * size, source,
                     static_cast<size_t>(size) * sizeof(uint16_t));
    }
}

void write_kv(const KernelTable& kernels, const KVCache& cache, const KVSlot& slot, const float* keys,
              const float* values, uint16_t* halves) {
    for (int64_t head = 0; head < cache.num_kv_heads; head++) {
        uint16_t* const key_column = cache.keys(slot.block, slot.layer, head) + slot.offset;
        kernels.to_half(keys + head * cache.head_dim, cache.head_dim, halves);
        for (int64_t d = 0; d < cache.head_dim; d++) {
            key_column[d * cache.block_size] = halves[d];
        }
        uint16_t* const value_rows = cache.values(slot.block, slot.layer, head);
        kernels.to_half(values + head * cache.head_dim, cache.head_dim,
                        value_rows + slot.offset * cache.head_dim);
    }
}

} // namespace ridgeline
