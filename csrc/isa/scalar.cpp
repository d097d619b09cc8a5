// Scalar kernels: the twin every other instruction set is compared with, bit for bit, and the fallback.
//
// The float operations and their order are those of dispatch.h; std::fma is exact on every machine.
#include <cmath>
#include <cstring>

#include "dispatch.h"

namespace ridgeline {

namespace {

constexpr int kLanes = 8;

float float_from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 31;
    const uint32_t mantissa = half & 1023;
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    if (exponent == 31) {
        const uint32_t quiet = mantissa != 0 ? 0x400000 : 0;
        return float_from_bits(sign | 0x7f800000 | quiet | mantissa << 13);
    }
    return float_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t half_from_float(float value) {
    const uint32_t bits = bits_of(value);
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    }
    if (magnitude >= 0x477ff000) { // 65520 and above round to infinity
        return static_cast<uint16_t>(sign | 0x7c00);
    }
    if (magnitude < 0x38800000) { // below the smallest normal half: adding 0.5 leaves multiples of 2^-24
        const uint32_t rounded = bits_of(float_from_bits(magnitude) + 0.5f) - bits_of(0.5f);
        return static_cast<uint16_t>(sign | rounded);
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112 << 10)));
}

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

// ---- quant formats -------------------------------------------------------------------------------------

// 32 weights: w = scale * q + minimum. Small integer scales of sub-blocks below 32 are in q already.
struct Block32 {
    int32_t q[32];
    float scale;
    float minimum;
};

using Unpack = void (*)(const uint8_t* row, int64_t block, Block32& out);

template <class Block>
Block load_block(const uint8_t* row, int64_t index) {
    Block block;
    std::memcpy(&block, row + index * static_cast<int64_t>(sizeof(Block)), sizeof block);
    return block;
}

void unpack_nibbles(const uint8_t* qs, Block32& out) {
    for (int i = 0; i < 16; i++) {
        out.q[i] = qs[i] & 15;
        out.q[i + 16] = qs[i] >> 4;
    }
}

void add_fifth_bits(const uint8_t* qh, Block32& out) {
    for (int i = 0; i < 32; i++) {
        out.q[i] |= (qh[i / 8] >> (i % 8) & 1) << 4;
    }
}

void unpack_q4_0(const uint8_t* row, int64_t index, Block32& out) {
    const auto block = load_block<BlockQ4_0>(row, index);
    unpack_nibbles(block.qs, out);
    out.scale = half_to_float(block.d);
    out.minimum = -8.0f * out.scale;
}

void unpack_q4_1(const uint8_t* row, int64_t index, Block32& out) {
    const auto block = load_block<BlockQ4_1>(row, index);
    unpack_nibbles(block.qs, out);
    out.scale = half_to_float(block.d);
    out.minimum = half_to_float(block.m);
}

void unpack_q5_0(const uint8_t* row, int64_t index, Block32& out) {
    const auto block = load_block<BlockQ5_0>(row, index);
    unpack_nibbles(block.qs, out);
    add_fifth_bits(block.qh, out);
    out.scale = half_to_float(block.d);
    out.minimum = -16.0f * out.scale;
}

void unpack_q5_1(const uint8_t* row, int64_t index, Block32& out) {
    const auto block = load_block<BlockQ5_1>(row, index);
    unpack_nibbles(block.qs, out);
    add_fifth_bits(block.qh, out);
    out.scale = half_to_float(block.d);
    out.minimum = half_to_float(block.m);
}

void unpack_q8_0(const uint8_t* row, int64_t index, Block32& out) {
    const auto block = load_block<BlockQ8_0>(row, index);
    for (int i = 0; i < 32; i++) {
        out.q[i] = block.qs[i];
    }
    out.scale = half_to_float(block.d);
    out.minimum = 0.0f;
}

// The 6-bit scale and min of sub-block j: the first four lie in the low 6 bits of bytes j and j + 4; of the
// others the low nibbles share byte j + 4 and the high two bits are the spare ones of bytes j - 4 and j.
void unpack_scale_and_min(const uint8_t* scales, int64_t j, int32_t& scale, int32_t& min) {
    if (j < 4) {
        scale = scales[j] & 63;
        min = scales[j + 4] & 63;
    } else {
        scale = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
        min = (scales[j + 4] >> 4) | (scales[j] >> 6) << 4;
    }
}

template <class Block>
void unpack_scales(const Block& block, int64_t j, Block32& out) {
    int32_t scale, min;
    unpack_scale_and_min(block.scales, j, scale, min);
    out.scale = half_to_float(block.d) * static_cast<float>(scale);
    out.minimum = half_to_float(block.dmin) * static_cast<float>(-min);
}

void unpack_q4_k(const uint8_t* row, int64_t index, Block32& out) {
    const auto block = load_block<BlockQ4_K>(row, index / 8);
    const int64_t j = index % 8;
    for (int i = 0; i < 32; i++) {
        out.q[i] = block.qs[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
    }
    unpack_scales(block, j, out);
}

void unpack_q5_k(const uint8_t* row, int64_t index, Block32& out) {
    const auto block = load_block<BlockQ5_K>(row, index / 8);
    const int64_t j = index % 8;
    for (int i = 0; i < 32; i++) {
        const int32_t low = block.qs[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
        out.q[i] = low | (block.qh[i] >> j & 1) << 4;
    }
    unpack_scales(block, j, out);
}

void unpack_q6_k(const uint8_t* row, int64_t index, Block32& out) {
    const auto block = load_block<BlockQ6_K>(row, index / 8);
    const int64_t half = index % 8 / 4;
    const int64_t j = index % 4;
    for (int i = 0; i < 32; i++) {
        const int32_t low = block.ql[half * 64 + j % 2 * 32 + i] >> (j / 2 * 4) & 15;
        const int32_t high = block.qh[half * 32 + i] >> (j * 2) & 3;
        out.q[i] = block.scales[half * 8 + j * 2 + i / 16] * ((low | high << 4) - 32);
    }
    out.scale = half_to_float(block.d);
    out.minimum = 0.0f;
}

// ---- matmul --------------------------------------------------------------------------------------------

// out += (scale * x_scale) * sum(q * x_q), then out += minimum * x_scaled_sum; blocks in order.
template <Unpack unpack, bool has_minimum>
void matmul_quantized(const MatmulSlice& slice, const Activations& activations) {
    const int64_t cols = activations.cols;
    const int64_t num_blocks = cols / kActivationBlock;
    for (int64_t row = slice.row_begin; row < slice.row_end; row++) {
        const uint8_t* const weight = slice.weight->data + row * slice.weight->row_bytes;
        for (int64_t first = 0; first < activations.num_tokens; first += kTokenTile) {
            float acc[kTokenTile] = {};
            for (int64_t b = 0; b < num_blocks; b++) {
                Block32 block;
                unpack(weight, b, block);
                const int64_t scales_at = (first / kTokenTile * num_blocks + b) * kTokenTile;
                for (int64_t lane = 0; lane < kTokenTile && first + lane < activations.num_tokens; lane++) {
                    const int8_t* const q = activations.q + (first + lane) * cols + b * kActivationBlock;
                    int32_t sum = 0;
                    for (int i = 0; i < 32; i++) {
                        sum += block.q[i] * q[i];
                    }
                    const float scale = block.scale * activations.scale[scales_at + lane];
                    acc[lane] = std::fma(static_cast<float>(sum), scale, acc[lane]);
                    if (has_minimum) {
                        acc[lane] =
                            std::fma(block.minimum, activations.scaled_sum[scales_at + lane], acc[lane]);
                    }
                }
            }
            for (int64_t lane = 0; lane < kTokenTile && first + lane < activations.num_tokens; lane++) {
                slice.out[(first + lane) * slice.out_stride + row] = acc[lane];
            }
        }
    }
}

using LoadElement = float (*)(const uint8_t* row, int64_t index);

float load_f32(const uint8_t* row, int64_t index) {
    float value;
    std::memcpy(&value, row + index * 4, sizeof value);
    return value;
}

float load_f16(const uint8_t* row, int64_t index) {
    uint16_t half;
    std::memcpy(&half, row + index * 2, sizeof half);
    return half_to_float(half);
}

float load_bf16(const uint8_t* row, int64_t index) {
    uint16_t high;
    std::memcpy(&high, row + index * 2, sizeof high);
    return float_from_bits(static_cast<uint32_t>(high) << 16);
}

template <LoadElement load>
void matmul_float(const MatmulSlice& slice, const Activations& activations) {
    const int64_t cols = activations.cols;
    for (int64_t row = slice.row_begin; row < slice.row_end; row++) {
        const uint8_t* const weight = slice.weight->data + row * slice.weight->row_bytes;
        for (int64_t token = 0; token < activations.num_tokens; token++) {
            float lane[kLanes] = {};
            for (int64_t i = 0; i < cols; i++) {
                lane[i % kLanes] =
                    std::fma(load(weight, i), activations.x[token * cols + i], lane[i % kLanes]);
            }
            slice.out[token * slice.out_stride + row] = sum_lanes(lane);
        }
    }
}

// ---- row operations ------------------------------------------------------------------------------------

template <Unpack unpack>
void dequantize_quantized(const uint8_t* row, int64_t cols, float* out) {
    for (int64_t b = 0; b < cols / 32; b++) {
        Block32 block;
        unpack(row, b, block);
        for (int i = 0; i < 32; i++) {
            out[b * 32 + i] = block.scale * static_cast<float>(block.q[i]) + block.minimum;
        }
    }
}

template <LoadElement load>
void dequantize_float(const uint8_t* row, int64_t cols, float* out) {
    for (int64_t i = 0; i < cols; i++) {
        out[i] = load(row, i);
    }
}

void quantize(const float* x, int64_t cols, int8_t* q, float* scale, float* scaled_sum) {
    for (int64_t b = 0; b < cols / kActivationBlock; b++, x += 32, q += 32) {
        float largest = 0.0f;
        for (int i = 0; i < 32; i++) {
            const float magnitude = std::fabs(x[i]);
            largest = magnitude > largest ? magnitude : largest;
        }
        // Below the threshold the inverse would overflow; such a block counts as zero.
        const bool is_zero = largest < 1e-30f;
        const float inverse = is_zero ? 0.0f : 127.0f / largest;
        const float block_scale = is_zero ? 0.0f : largest / 127.0f;
        int32_t sum = 0;
        for (int i = 0; i < 32; i++) {
            const auto value = static_cast<int32_t>(round_to_even(x[i] * inverse));
            q[i] = static_cast<int8_t>(value);
            sum += value;
        }
        scale[b * kTokenTile] = block_scale;
        scaled_sum[b * kTokenTile] = block_scale * static_cast<float>(sum);
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

// Scores of one head, -inf beyond the tile's end; returns their largest.
float score_tile(const KVTile& tile, const float* query, int64_t head_dim, float (&score)[kPositionTile]) {
    float largest = -INFINITY;
    for (int64_t p = 0; p < tile.num_positions; p++) {
        score[p] = 0.0f;
        for (int64_t d = 0; d < head_dim; d++) {
            score[p] = std::fma(half_to_float(tile.k[d * tile.k_stride + p]), query[d], score[p]);
        }
        largest = score[p] > largest ? score[p] : largest;
    }
    return largest;
}

void attend(const KVTile& tile, const float* query, const SoftmaxState& state) {
    const int64_t head_dim = state.head_dim;
    for (int64_t head = 0; head < state.num_heads; head++) {
        float* const out = state.out + head * head_dim;
        float score[kPositionTile];
        const float largest = score_tile(tile, query + head * head_dim, head_dim, score);
        if (largest > state.max[head]) {
            const float shrink = exp_polynomial(state.max[head] - largest);
            state.max[head] = largest;
            state.sum[head] *= shrink;
            for (int64_t d = 0; d < head_dim; d++) {
                out[d] *= shrink;
            }
        }
        float weight[kPositionTile] = {};
        float lane[kLanes] = {};
        for (int64_t p = 0; p < tile.num_positions; p++) {
            weight[p] = exp_polynomial(score[p] - state.max[head]);
        }
        for (int i = 0; i < kLanes; i++) {
            lane[i] = weight[i] + weight[i + kLanes];
        }
        state.sum[head] += sum_lanes(lane);
        for (int64_t p = 0; p < tile.num_positions; p++) {
            for (int64_t d = 0; d < head_dim; d++) {
                out[d] = std::fma(weight[p], half_to_float(tile.v[p * head_dim + d]), out[d]);
            }
        }
    }
}

void merge(const SoftmaxState& into, const SoftmaxState& from) {
    for (int64_t head = 0; head < into.num_heads; head++) {
        const float largest = into.max[head] > from.max[head] ? into.max[head] : from.max[head];
        const float keep = exp_polynomial(into.max[head] - largest);
        const float add = exp_polynomial(from.max[head] - largest);
        into.max[head] = largest;
        into.sum[head] = std::fma(from.sum[head], add, into.sum[head] * keep);
        for (int64_t i = head * into.head_dim; i < (head + 1) * into.head_dim; i++) {
            into.out[i] = std::fma(from.out[i], add, into.out[i] * keep);
        }
    }
}

const KernelTable kTable = {
    "scalar",
    {matmul_float<load_f32>, matmul_float<load_f16>, matmul_float<load_bf16>,
     matmul_quantized<unpack_q4_0, true>, matmul_quantized<unpack_q4_1, true>,
     matmul_quantized<unpack_q5_0, true>, matmul_quantized<unpack_q5_1, true>,
     matmul_quantized<unpack_q8_0, false>, matmul_quantized<unpack_q4_k, true>,
     matmul_quantized<unpack_q5_k, true>, matmul_quantized<unpack_q6_k, false>},
    {dequantize_float<load_f32>, dequantize_float<load_f16>, dequantize_float<load_bf16>,
     dequantize_quantized<unpack_q4_0>, dequantize_quantized<unpack_q4_1>, dequantize_quantized<unpack_q5_0>,
     dequantize_quantized<unpack_q5_1>, dequantize_quantized<unpack_q8_0>, dequantize_quantized<unpack_q4_k>,
     dequantize_quantized<unpack_q5_k>, dequantize_quantized<unpack_q6_k>},
    quantize,
    rms_norm,
    swiglu,
    to_half,
    attend,
    merge,
};

} // namespace

const KernelTable& scalar_kernels() {
    return kTable;
}

} // namespace ridgeline
