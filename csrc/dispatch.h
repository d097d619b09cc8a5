// The table of kernels of one instruction set, and the choice among those this machine can run.
//
// Every instruction set performs the same float operations in the same order, so all tables give the same
// bits: quantised dot products are exact integers per block of 32, one fused multiply-add per term, blocks in
// order, one accumulator per (row, token); other sums run in 8 interleaved lanes that are added as
// ((0+4)+(2+6))+((1+5)+(3+7)), a tail being filled up with zeros.
#pragma once

#include <cstdint>

#include "quant_blocks.h"

namespace ridgeline {

constexpr int64_t kTokenTile = 4;        // tokens that share one unpacked weight block
constexpr int64_t kActivationBlock = 32; // activations that share one scale
constexpr int64_t kPositionTile = 16;    // context positions of one attention step

// A stored matrix: `rows` rows of `row_bytes` bytes, one after another, unaligned.
struct WeightMatrix {
    QuantType type;
    int64_t rows;
    int64_t cols;
    int64_t row_bytes;
    const uint8_t* data;
};

// Input rows of a matmul, in float and quantised to int8 (the latter only if cols is a multiple of 32).
//
//   x, q               [tokens][cols]; q in [-127, 127]
//   scale, scaled_sum  [tokens / 4][cols / 32][4]: x ~ scale * q, scaled_sum = scale * sum(q)
//
// Storage covers whole tiles of 4 tokens; what the padding holds does not matter.
struct Activations {
    int64_t num_tokens;
    int64_t cols;
    float* x;
    int8_t* q;
    float* scale;
    float* scaled_sum;
};

// Rows [row_begin, row_end) of weight * every token: out[token * out_stride + row].
struct MatmulSlice {
    const WeightMatrix* weight;
    int64_t row_begin;
    int64_t row_end;
    float* out;
    int64_t out_stride;
};

// Running softmax of the query heads that share a KV head: out [heads][head_dim], max and sum [heads].
struct SoftmaxState {
    int64_t num_heads;
    int64_t head_dim;
    float* out;
    float* max;
    float* sum;
};

// The first num_positions (1..16) positions of a tile: K [head_dim][k_stride], V [positions][head_dim], fp16.
// Memory of the other positions is readable but may hold anything, NaN included.
struct KVTile {
    const uint16_t* k;
    const uint16_t* v;
    int64_t k_stride;
    int64_t num_positions;
};

struct KernelTable {
    const char* isa;
    void (*matmul[kNumQuantTypes])(const MatmulSlice& slice, const Activations& activations);
    void (*dequantize[kNumQuantTypes])(const uint8_t* row, int64_t cols, float* out);
    // One token; scale and scaled_sum point at its lane and advance by kTokenTile per block.
    void (*quantize)(const float* x, int64_t cols, int8_t* q, float* scale, float* scaled_sum);
    // out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
    void (*rms_norm)(const float* x, const float* weight, int64_t cols, float eps, float* out);
    // out = gate / (1 + exp(-gate)) * up.
    void (*swiglu)(const float* gate, const float* up, int64_t cols, float* out);
    // Round to nearest even.
    void (*to_half)(const float* x, int64_t count, uint16_t* out);
    // Adds one tile to the state; query [heads][head_dim] is scaled already; head_dim is a multiple of 8.
    void (*attend)(const KVTile& tile, const float* query, const SoftmaxState& state);
    // Adds the state of later positions to that of earlier ones.
    void (*merge)(const SoftmaxState& into, const SoftmaxState& from);
};

const KernelTable& scalar_kernels();
const KernelTable& avx2_kernels();

// Tables this machine can run, slowest first; writes at most `capacity` and returns how many there are.
int available_kernels(const KernelTable** tables, int capacity);

// The table called `isa` (the fastest one if null), or null if this machine does not have it.
const KernelTable* find_kernels(const char* isa);

} // namespace ridgeline
