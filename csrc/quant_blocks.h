// Weights as GGUF files store them: one packed struct per quant type, and the table that describes them.
//
// A row is a whole number of quant blocks. In the K-quants a quant block of 256 elements holds sub-blocks
// (32 elements; 16 in Q6_K) with small integer scales. Layouts: the GGML/GGUF format of each type.
#pragma once

#include <cstdint>

namespace ridgeline {

enum class QuantType : int32_t { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };

constexpr int kNumQuantTypes = 11;
constexpr int64_t kSuperBlock = 256;

// w = d * (q - 8); low nibbles are elements 0..15, high nibbles 16..31.
struct BlockQ4_0 {
    uint16_t d;
    uint8_t qs[16];
};

// w = d * q + m; nibbles as in Q4_0.
struct BlockQ4_1 {
    uint16_t d;
    uint16_t m;
    uint8_t qs[16];
};

// w = d * (q - 16); bit i of qh is the fifth bit of element i.
struct BlockQ5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
};

// w = d * q + m; bits as in Q5_0.
struct BlockQ5_1 {
    uint16_t d;
    uint16_t m;
    uint8_t qh[4];
    uint8_t qs[16];
};

// w = d * q.
struct BlockQ8_0 {
    uint16_t d;
    int8_t qs[32];
};

// w = d * scale[j] * q - dmin * min[j]; 8 sub-blocks j of 32; 6-bit scales and mins packed in 12 bytes.
// Sub-blocks 2i and 2i+1 are the low and high nibbles of qs[32i..32i+31].
struct BlockQ4_K {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12];
    uint8_t qs[128];
};

// As Q4_K; bit j of qh[l] is the fifth bit of element l of sub-block j.
struct BlockQ5_K {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
};

// w = d * scales[i / 16] * (q - 32); per half of 128 elements: 64 bytes of low nibbles, 32 bytes of high
// bits.
struct BlockQ6_K {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
};

static_assert(sizeof(BlockQ4_0) == 18, "Q4_0 is 18 bytes");
static_assert(sizeof(BlockQ4_1) == 20, "Q4_1 is 20 bytes");
static_assert(sizeof(BlockQ5_0) == 22, "Q5_0 is 22 bytes");
static_assert(sizeof(BlockQ5_1) == 24, "Q5_1 is 24 bytes");
static_assert(sizeof(BlockQ8_0) == 34, "Q8_0 is 34 bytes");
static_assert(sizeof(BlockQ4_K) == 144, "Q4_K is 144 bytes");
static_assert(sizeof(BlockQ5_K) == 176, "Q5_K is 176 bytes");
static_assert(sizeof(BlockQ6_K) == 210, "Q6_K is 210 bytes");

// type_id is GGUF's number; quant_block_size in elements, type_size in bytes per quant block.
struct QuantTypeInfo {
    int32_t type_id;
    const char* name;
    int64_t quant_block_size;
    int64_t type_size;
};

// Indexed by QuantType.
extern const QuantTypeInfo kQuantTypes[kNumQuantTypes];

// The QuantType with GGUF's number type_id, or -1.
int find_quant_type(int32_t type_id);

// Whether the type holds plain numbers and no quants.
constexpr bool is_float_type(QuantType type) {
    return type == QuantType::F32 || type == QuantType::F16 || type == QuantType::BF16;
}

// Bytes of one row of `cols` elements; cols is a multiple of the quant block.
int64_t row_size_bytes(QuantType type, int64_t cols);

} // namespace ridgeline
