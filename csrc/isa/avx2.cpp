// AVX2 + FMA + F16C kernels; float operations in the order of dispatch.h, so bits equal the scalar twin's.
#include "isa/avx2.h"

#include <cmath>

namespace ridgeline {

namespace {

// ---- vectors -------------------------------------------------------------------------------------------

float max_lanes(__m256 v) {
    __m128 max = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    max = _mm_max_ps(max, _mm_movehl_ps(max, max));
    return _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)));
}

// Stores eight floats, or the first `count` if that is less.
void store_floats(float* out, __m256 v, int64_t count) {
    if (count >= kLanes) {
        _mm256_storeu_ps(out, v);
        return;
    }
    float padded[kLanes];
    _mm256_storeu_ps(padded, v);
    std::memcpy(out, padded, static_cast<size_t>(count) * sizeof(float));
}

// e^x = 2^n * p(r) with r = x - n ln 2 in [-0.35, 0.35]; relative error 2e-7; x is clamped to [-87, 88].
__m256 exp_polynomial(__m256 x) {
    x = _mm256_max_ps(_mm256_set1_ps(-87.0f), x); // operand order keeps a NaN
    x = _mm256_min_ps(_mm256_set1_ps(88.0f), x);
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(1.0f / 720), r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

float exp_polynomial(float x) {
    return _mm_cvtss_f32(_mm256_castps256_ps128(exp_polynomial(_mm256_set1_ps(x))));
}

// ---- row operations ------------------------------------------------------------------------------------

void quantize(const float* x, int64_t cols, int8_t* q, float* scale, float* scaled_sum) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256i order =
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); // undoes the packs' interleaving of halves
    for (int64_t b = 0; b < cols / kActivationBlock; b++, x += 32, q += 32) {
        __m256 v[4];
        __m256 largest_lanes = _mm256_setzero_ps();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            largest_lanes = _mm256_max_ps(_mm256_andnot_ps(sign, v[i]), largest_lanes);
        }
        const float largest = max_lanes(largest_lanes);
        // Below the threshold the inverse would overflow; such a block counts as zero.
        const bool is_zero = largest < 1e-30f;
        const __m256 inverse = _mm256_set1_ps(is_zero ? 0.0f : 127.0f / largest);
        const float block_scale = is_zero ? 0.0f : largest / 127.0f;
        __m256i n[4];
        for (int i = 0; i < 4; i++) {
            n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
        }
        const __m256i total = _mm256_add_epi32(_mm256_add_epi32(n[0], n[1]), _mm256_add_epi32(n[2], n[3]));
        const __m256i zero = _mm256_setzero_si256();
        const float sum = _mm_cvtss_f32(sum_across(total, zero, zero, zero));
        const __m256i packed =
            _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(packed, order));
        scale[b * kTokenTile] = block_scale;
        scaled_sum[b * kTokenTile] = block_scale * sum;
    }
}

void rms_norm(const float* x, const float* weight, int64_t cols, float eps, float* out) {
    __m256 squares = _mm256_setzero_ps();
    for (int64_t i = 0; i < cols; i += kLanes) {
        const __m256 v = load_floats(x + i, cols - i);
        squares = _mm256_fmadd_ps(v, v, squares);
    }
    const float mean = sum_lanes(squares) / static_cast<float>(cols);
    const float root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
    const __m256 inverse = _mm256_set1_ps(1.0f / root);
    for (int64_t i = 0; i < cols; i += kLanes) {
        const __m256 scaled = _mm256_mul_ps(load_floats(x + i, cols - i), inverse);
        store_floats(out + i, _mm256_mul_ps(scaled, load_floats(weight + i, cols - i)), cols - i);
    }
}

void swiglu(const float* gate, const float* up, int64_t cols, float* out) {
    const __m256 one = _mm256_set1_ps(1.0f);
    for (int64_t i = 0; i < cols; i += kLanes) {
        const __m256 g = load_floats(gate + i, cols - i);
        const __m256 exp_minus_g = exp_polynomial(_mm256_xor_ps(g, _mm256_set1_ps(-0.0f)));
        const __m256 silu = _mm256_div_ps(g, _mm256_add_ps(one, exp_minus_g));
        store_floats(out + i, _mm256_mul_ps(silu, load_floats(up + i, cols - i)), cols - i);
    }
}

void to_half(const float* x, int64_t count, uint16_t* out) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), halves);
    }
    for (; i < count; i++) {
        out[i] = _cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
    }
}

// ---- attention -----------------------------------------------------------------------------------------

// Up to four query heads go together, so that every K and V vector is loaded and widened once for all of
// them.
constexpr int kMaxHeads = 4;

// score[head][position] of a whole tile, positions in lanes: no sums across lanes. Columns beyond the end of
// the context come out as garbage and are never looked at.
template <int num_heads>
void score_tile(const KVTile& tile, const float* query, int64_t head_dim, float (*score)[kPositionTile]) {
    __m256 acc[num_heads][2] = {};
    for (int64_t d = 0; d < head_dim; d++) {
        const __m256 k0 = load_half8(tile.k + d * tile.k_stride);
        const __m256 k1 = load_half8(tile.k + d * tile.k_stride + kLanes);
        for (int h = 0; h < num_heads; h++) {
            const __m256 q = _mm256_broadcast_ss(query + h * head_dim + d);
            acc[h][0] = _mm256_fmadd_ps(k0, q, acc[h][0]);
            acc[h][1] = _mm256_fmadd_ps(k1, q, acc[h][1]);
        }
    }
    for (int h = 0; h < num_heads; h++) {
        _mm256_storeu_ps(score[h], acc[h][0]);
        _mm256_storeu_ps(score[h] + kLanes, acc[h][1]);
    }
}

// Turns scores into weights exp(score - max) (zero beyond the end) and brings max, sum and out up to date.
void update_softmax(const SoftmaxState& state, int64_t head, int64_t num_positions, float* score) {
    for (int64_t p = num_positions; p < kPositionTile; p++) {
        score[p] = -INFINITY;
    }
    __m256 s0 = _mm256_loadu_ps(score), s1 = _mm256_loadu_ps(score + kLanes);
    const float largest = max_lanes(_mm256_max_ps(s0, s1));
    if (largest > state.max[head]) {
        const float shrink = exp_polynomial(state.max[head] - largest);
        state.max[head] = largest;
        state.sum[head] *= shrink;
        float* const out = state.out + head * state.head_dim;
        for (int64_t d = 0; d < state.head_dim; d += kLanes) {
            _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(out + d), _mm256_set1_ps(shrink)));
        }
    }
    const __m256 max = _mm256_set1_ps(state.max[head]);
    _mm256_storeu_ps(score, exp_polynomial(_mm256_sub_ps(s0, max)));
    _mm256_storeu_ps(score + kLanes, exp_polynomial(_mm256_sub_ps(s1, max)));
    for (int64_t p = num_positions; p < kPositionTile; p++) {
        score[p] = 0.0f;
    }
    s0 = _mm256_loadu_ps(score), s1 = _mm256_loadu_ps(score + kLanes);
    state.sum[head] += sum_lanes(_mm256_add_ps(s0, s1));
}

// out[head][d .. d + 8 * num_vectors) += weight[head][position] * V[position][d ..], positions in order.
template <int num_heads, int num_vectors>
void add_values(const KVTile& tile, const float (*weight)[kPositionTile], int64_t head_dim, int64_t d,
                float* out) {
    __m256 acc[num_heads][num_vectors];
    for (int h = 0; h < num_heads; h++) {
        for (int j = 0; j < num_vectors; j++) {
            acc[h][j] = _mm256_loadu_ps(out + h * head_dim + d + j * kLanes);
        }
    }
    for (int64_t p = 0; p < tile.num_positions; p++) {
        __m256 v[num_vectors];
        for (int j = 0; j < num_vectors; j++) {
            v[j] = load_half8(tile.v + p * head_dim + d + j * kLanes);
        }
        for (int h = 0; h < num_heads; h++) {
            const __m256 w = _mm256_broadcast_ss(&weight[h][p]);
            for (int j = 0; j < num_vectors; j++) {
                acc[h][j] = _mm256_fmadd_ps(w, v[j], acc[h][j]);
            }
        }
    }
    for (int h = 0; h < num_heads; h++) {
        for (int j = 0; j < num_vectors; j++) {
            _mm256_storeu_ps(out + h * head_dim + d + j * kLanes, acc[h][j]);
        }
    }
}

template <int num_heads>
void attend_heads(const KVTile& tile, const float* query, const SoftmaxState& state, int64_t first_head) {
    const int64_t head_dim = state.head_dim;
    float weight[num_heads][kPositionTile];
    score_tile<num_heads>(tile, query + first_head * head_dim, head_dim, weight);
    for (int h = 0; h < num_heads; h++) {
        update_softmax(state, first_head + h, tile.num_positions, weight[h]);
    }
    float* const out = state.out + first_head * head_dim;
    int64_t d = 0;
    for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) {
        add_values<num_heads, 2>(tile, weight, head_dim, d, out);
    }
    for (; d < head_dim; d += kLanes) {
        add_values<num_heads, 1>(tile, weight, head_dim, d, out);
    }
}

void attend(const KVTile& tile, const float* query, const SoftmaxState& state) {
    using AttendHeads = void (*)(const KVTile&, const float*, const SoftmaxState&, int64_t);
    constexpr AttendHeads kBySize[kMaxHeads + 1] = {nullptr, attend_heads<1>, attend_heads<2>,
                                                    attend_heads<3>, attend_heads<4>};
    for (int64_t head = 0; head < state.num_heads; head += kMaxHeads) {
        const int64_t left = state.num_heads - head;
        kBySize[left < kMaxHeads ? left : kMaxHeads](tile, query, state, head);
    }
}

void merge(const SoftmaxState& into, const SoftmaxState& from) {
    for (int64_t head = 0; head < into.num_heads; head++) {
        const float largest = into.max[head] > from.max[head] ? into.max[head] : from.max[head];
        const float keep = exp_polynomial(into.max[head] - largest);
        const float add = exp_polynomial(from.max[head] - largest);
        into.max[head] = largest;
        into.sum[head] = _mm_cvtss_f32(
            _mm_fmadd_ss(_mm_set_ss(from.sum[head]), _mm_set_ss(add), _mm_set_ss(into.sum[head] * keep)));
        for (int64_t i = head * into.head_dim; i < (head + 1) * into.head_dim; i += kLanes) {
            const __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(into.out + i), _mm256_set1_ps(keep));
            const __m256 added = _mm256_loadu_ps(from.out + i);
            _mm256_storeu_ps(into.out + i, _mm256_fmadd_ps(added, _mm256_set1_ps(add), kept));
        }
    }
}

KernelTable make_table() {
    KernelTable table = scalar_kernels(); // dequantize stays: it is a look-up of single rows
    table.isa = "avx2";
    set_avx2_matmul(table);
    table.quantize = quantize;
    table.rms_norm = rms_norm;
    table.swiglu = swiglu;
    table.to_half = to_half;
    table.attend = attend;
    table.merge = merge;
    return table;
}

} // namespace

const KernelTable& avx2_kernels() {
    static const KernelTable table = make_table();
    return table;
}

} // namespace ridgeline
