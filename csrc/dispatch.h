// The table of kernels of one instruction set, and the choice among those this machine can run.
//
// Every instruction set performs the same float operations in the same order, so all tables give the same
// bits. Matmul: one accumulator per (row, token); of a quantised weight an exact integer sum per block of 32
// columns, rounded to float, then acc = fma(sum, scale * x_scale, acc) and, if the format has a minimum,
// acc = fma(minimum, x_scaled_sum, acc), blocks in order; of a float weight acc = fma(w, x, acc), columns in
// order. Other sums run in 8 interleaved lanes that are added as ((0+4)+(2+6))+((1+5)+(3+7)), a tail being
// filled up with zeros.
#pragma once

#include <cstdint>

#include "panels.h"

namespace ridgeline {

constexpr int64_t kPositionTile = 32; // context positions of one attention step
constexpr int64_t kHalfTile = 16;     // of them lie side by side in a KV block

// The forms in which weights want their input: as int8, as int16 or in float.
enum InputForm : int { kInt8Input = 1, kInt16Input = 2, kFloatInput = 4 };

// 8-bit weights meet int16 activations: the multiply-add of 16-bit pairs costs the same, and keeps more.
constexpr InputForm input_form(QuantType type) {
    return is_float_type(type) ? kFloatInput : type == QuantType::Q8_0 ? kInt16Input : kInt8Input;
}

constexpr int64_t kTokenTile = 8; // tokens whose input lies together

// Input rows of a matmul in the forms that `forms` names; the other pointers are null. Quantised input lies
// by tiles of 8 tokens (the last one padded), so that a kernel reaches all of a tile from one pointer.
//
//   x           [tokens][cols] float
//   q8          [tokens / 8][cols / 32][8][32] in [-127, 127]; scale8, sum8 [tokens / 8][cols / 32][8]:
//               x ~ scale8 * q8, sum8 = scale8 * (sum of q8)
//   q16         likewise in [-32767, 32767], every 4 columns in the order 0, 2, 1, 3; scale16 likewise
struct Activations {
    int forms;
    int64_t num_tokens;
    int64_t cols;
    float* x;
    int8_t* q8;
    float* scale8;
    float* sum8;
    int16_t* q16;
    float* scale16;
};

// Index of one token's block in scale8, sum8 and scale16; of its 32 columns in q8 and q16 over 32.
constexpr int64_t input_at(const Activations& input, int64_t token, int64_t block) {
    return (token / kTokenTile * (input.cols / kBlockCols) + block) * kTokenTile + token % kTokenTile;
}

// Panels [panel_begin, panel_end) of a weight times tokens [token_begin, token_end):
// out[(token - token_begin) * out_stride + row - 16 * panel_begin], rows past the weight's last not written.
struct MatmulSlice {
    const PackedMatrix* weight;
    int64_t panel_begin;
    int64_t panel_end;
    int64_t token_begin;
    int64_t token_end;
    float* out;
    int64_t out_stride;
};

// Running softmax of num_rows queries over the same context: out [rows][head_dim], max and sum [rows].
struct SoftmaxState {
    int64_t num_rows;
    int64_t head_dim;
    float* out;
    float* max;
    float* sum;
};

// The first num_positions (1..32) of 32 positions, in two halves of 16: K [head_dim][k_stride],
// V [positions][head_dim], fp16. Memory of the other positions is readable but may hold anything, NaN
// included. next_k and next_v are what is read after this tile, for prefetching.
struct KVTile {
    const uint16_t* k[2];
    const uint16_t* v[2];
    int64_t k_stride;
    int64_t num_positions;
    const uint16_t* next_k;
    const uint16_t* next_v;
};

struct KernelTable {
    const char* isa;
    void (*matmul[kNumQuantTypes])(const MatmulSlice& slice, const Activations& activations);
    // cols is a multiple of 32; a block's quants go to q + block * 8 * 32, its scale to scale[block * 8].
    void (*quantize8)(const float* x, int64_t cols, int8_t* q, float* scale, float* scaled_sum);
    void (*quantize16)(const float* x, int64_t cols, int16_t* q, float* scale);
    // out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
    void (*rms_norm)(const float* x, const float* weight, int64_t cols, float eps, float* out);
    // out = gate / (1 + exp(-gate)) * up.
    void (*swiglu)(const float* gate, const float* up, int64_t cols, float* out);
    // Round to nearest even.
    void (*to_half)(const float* x, int64_t count, uint16_t* out);
    // Adds one tile to the state; query [rows][head_dim] is scaled already; head_dim is a multiple of 8.
    void (*attend)(const KVTile& tile, const float* query, const SoftmaxState& state);
    // Adds the state of later positions to that of earlier ones.
    void (*merge)(const SoftmaxState& into, const SoftmaxState& from);
};

const KernelTable& scalar_kernels();
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();

// Tables this machine can run, slowest first; writes at most `capacity` and returns how many there are.
int available_kernels(const KernelTable** tables, int capacity);

// The table called `isa` (the fastest one if null), or null if this machine does not have it.
const KernelTable* find_kernels(const char* isa);

} // namespace ridgeline
