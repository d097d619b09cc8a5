// Scalar kernels: the twin every other instruction set is compared with, bit for bit, and the fallback.
//
// The float operations and their order are those of dispatch.h; std::fma is exact on every machine.
#include <cmath>

#include "half.h"
#include "isa/scalar.h"

namespace ridgeline {

namespace {

constexpr int kLanes = 8;

// Round to the nearest integer, ties to even, for |x| < 2^22.
float round_to_even(float x) {
    constexpr float kMagic = 12582912.0f; // 1.5 * 2^23
    return (x + kMagic) - kMagic;
}

float sum_lanes(const float (&lane)[kLanes]) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

// e^x = 2^n * p(r) with r = x - n ln 2 in [-0.35, 0.35]; relative error 2e-7; x is clamped to [-87, 88].
float exp_polynomial(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float n = round_to_even(x * 1.44269504f);
    float r = std::fma(n, -0.693359375f, x);
    r = std::fma(n, 2.12194440e-4f, r);
    float p = std::fma(1.0f / 720, r, 1.0f / 120);
    p = std::fma(p, r, 1.0f / 24);
    p = std::fma(p, r, 1.0f / 6);
    p = std::fma(p, r, 0.5f);
    p = std::fma(p, r, 1.0f);
    p = std::fma(p, r, 1.0f);
    return std::isnan(x) ? x
                         : p * float_from_bits(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

// ---- row operations ------------------------------------------------------------------------------------

// The scale that maps the largest magnitude to `limit`, and its inverse. Below the threshold the inverse
// would overflow; such a block counts as zero.
void block_scales(const float* x, float limit, float& scale, float& inverse) {
    float largest = 0.0f;
    for (int i = 0; i < kBlockCols; i++) {
        const float magnitude = std::fabs(x[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    const bool is_zero = largest < 1e-30f;
    inverse = is_zero ? 0.0f : limit / largest;
    scale = is_zero ? 0.0f : largest / limit;
}

void quantize8(const float* x, int64_t cols, int8_t* q, float* scale, float* scaled_sum) {
    for (int64_t b = 0; b < cols / kBlockCols; b++, x += kBlockCols, q += kTokenTile * kBlockCols) {
        float inverse;
        block_scales(x, 127.0f, scale[b * kTokenTile], inverse);
        int32_t sum = 0;
        for (int i = 0; i < kBlockCols; i++) {
            const auto value = static_cast<int32_t>(round_to_even(x[i] * inverse));
            q[i] = static_cast<int8_t>(value);
            sum += value;
        }
        scaled_sum[b * kTokenTile] = scale[b * kTokenTile] * static_cast<float>(sum);
    }
}

void quantize16(const float* x, int64_t cols, int16_t* q, float* scale) {
    constexpr int kOrder[4] = {0, 2, 1, 3};
    for (int64_t b = 0; b < cols / kBlockCols; b++, x += kBlockCols, q += kTokenTile * kBlockCols) {
        float inverse;
        block_scales(x, 32767.0f, scale[b * kTokenTile], inverse);
        for (int i = 0; i < kBlockCols; i++) {
            const float value = x[i / 4 * 4 + kOrder[i % 4]];
            q[i] = static_cast<int16_t>(round_to_even(value * inverse));
        }
    }
}

void rms_norm(const float* x, const float* weight, int64_t cols, float eps, float* out) {
    float lane[kLanes] = {};
    for (int64_t i = 0; i < cols; i++) {
        lane[i % kLanes] = std::fma(x[i], x[i], lane[i % kLanes]);
    }
    const float inverse = 1.0f / std::sqrt(sum_lanes(lane) / static_cast<float>(cols) + eps);
    for (int64_t i = 0; i < cols; i++) {
        out[i] = x[i] * inverse * weight[i];
    }
}

void swiglu(const float* gate, const float* up, int64_t cols, float* out) {
    for (int64_t i = 0; i < cols; i++) {
        out[i] = gate[i] / (1.0f + exp_polynomial(-gate[i])) * up[i];
    }
}

void to_half(const float* x, int64_t count, uint16_t* out) {
    for (int64_t i = 0; i < count; i++) {
        out[i] = half_from_float(x[i]);
    }
}

// ---- attention -----------------------------------------------------------------------------------------

// Scores of one row; returns their largest.
float score_tile(const KVTile& tile, const float* query, int64_t head_dim, float (&score)[kPositionTile]) {
    float largest = -INFINITY;
    for (int64_t p = 0; p < tile.num_positions; p++) {
        const uint16_t* const k = tile.k[p / kHalfTile] + p % kHalfTile;
        score[p] = 0.0f;
        for (int64_t d = 0; d < head_dim; d++) {
            score[p] = std::fma(half_to_float(k[d * tile.k_stride]), query[d], score[p]);
        }
        largest = score[p] > largest ? score[p] : largest;
    }
    return largest;
}

// The weights' total: four vectors of 8 lanes, added in pairs.
float sum_weights(const float (&weight)[kPositionTile]) {
    float lane[kLanes];
    for (int i = 0; i < kLanes; i++) {
        lane[i] = (weight[i] + weight[i + 8]) + (weight[i + 16] + weight[i + 24]);
    }
    return sum_lanes(lane);
}

void attend(const KVTile& tile, const float* query, const SoftmaxState& state) {
    const int64_t head_dim = state.head_dim;
    for (int64_t row = 0; row < state.num_rows; row++) {
        float* const out = state.out + row * head_dim;
        float score[kPositionTile];
        const float largest = score_tile(tile, query + row * head_dim, head_dim, score);
        if (largest > state.max[row]) {
            const float shrink = exp_polynomial(state.max[row] - largest);
            state.max[row] = largest;
            state.sum[row] *= shrink;
            for (int64_t d = 0; d < head_dim; d++) {
                out[d] *= shrink;
            }
        }
        float weight[kPositionTile] = {};
        for (int64_t p = 0; p < tile.num_positions; p++) {
            weight[p] = exp_polynomial(score[p] - state.max[row]);
        }
        state.sum[row] += sum_weights(weight);
        for (int64_t p = 0; p < tile.num_positions; p++) {
            const uint16_t* const v = tile.v[p / kHalfTile] + p % kHalfTile * head_dim;
            for (int64_t d = 0; d < head_dim; d++) {
                out[d] = std::fma(weight[p], half_to_float(v[d]), out[d]);
            }
        }
    }
}

void merge(const SoftmaxState& into, const SoftmaxState& from) {
    for (int64_t row = 0; row < into.num_rows; row++) {
        const float largest = into.max[row] > from.max[row] ? into.max[row] : from.max[row];
        const float keep = exp_polynomial(into.max[row] - largest);
        const float add = exp_polynomial(from.max[row] - largest);
        into.max[row] = largest;
        into.sum[row] = std::fma(from.sum[row], add, into.sum[row] * keep);
        for (int64_t i = row * into.head_dim; i < (row + 1) * into.head_dim; i++) {
            into.out[i] = std::fma(from.out[i], add, into.out[i] * keep);
        }
    }
}

KernelTable make_table() {
    KernelTable table = {};
    table.isa = "scalar";
    set_scalar_matmul(table);
    table.quantize8 = quantize8;
    table.quantize16 = quantize16;
    table.rms_norm = rms_norm;
    table.swiglu = swiglu;
    table.to_half = to_half;
    table.attend = attend;
    table.merge = merge;
    return table;
}

} // namespace

const KernelTable& scalar_kernels() {
    static const KernelTable table = make_table();
    return table;
}

} // namespace ridgeline
