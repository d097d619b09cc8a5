// AVX-512 attention over one tile of 32 positions: as in avx2_attention.cpp, with two vectors for the
// positions and up to 6 rows; float operations in the order of dispatch.h.
#include <cmath>

#include "isa/avx512.h"

namespace ridgeline {

namespace {

constexpr int kMaxRows = 6;

// See exp_polynomial in avx2.h.
inline __m512 exp_polynomial(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-87.0f), x); // operand order keeps a NaN
    x = _mm512_min_ps(_mm512_set1_ps(88.0f), x);
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(1.0f / 720), r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23)));
}

inline __m256 add_halves(__m512 v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

inline float sum_lanes(__m256 v) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// The lanes of the 16 dimensions from d on that a head has.
inline __mmask16 dimensions(int64_t d, int64_t head_dim) {
    return static_cast<__mmask16>(head_dim - d >= kVector ? 0xffff : 0x00ff);
}

template <int num_rows>
inline void score_tile(const KVTile& tile, const float* query, int64_t head_dim, __m512 (&acc)[num_rows][2]) {
    for (int r = 0; r < num_rows; r++) {
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    }
    for (int64_t d = 0; d < head_dim; d++) {
        __builtin_prefetch(tile.next_k + d * tile.k_stride);
        const __m512 k0 = load_half16(tile.k[0] + d * tile.k_stride);
        const __m512 k1 = load_half16(tile.k[1] + d * tile.k_stride);
        for (int r = 0; r < num_rows; r++) {
            const __m512 q = _mm512_set1_ps(query[r * head_dim + d]);
            acc[r][0] = _mm512_fmadd_ps(k0, q, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(k1, q, acc[r][1]);
        }
    }
}

// Scores to weights, [positions]; brings max, sum and out up to date.
inline void update_softmax(const SoftmaxState& state, int64_t row, int64_t num_positions,
                           const __m512 (&score)[2], float* weight) {
    const auto is_visible = static_cast<uint32_t>((uint64_t{1} << num_positions) - 1);
    const auto mask0 = static_cast<__mmask16>(is_visible), mask1 = static_cast<__mmask16>(is_visible >> 16);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    const __m512 s0 = _mm512_mask_mov_ps(none, mask0, score[0]);
    const __m512 s1 = _mm512_mask_mov_ps(none, mask1, score[1]);
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(s0, s1));
    if (largest > state.max[row]) {
        const __m512 shrink = exp_polynomial(_mm512_set1_ps(state.max[row] - largest));
        state.max[row] = largest;
        state.sum[row] *= _mm512_cvtss_f32(shrink);
        float* const out = state.out + row * state.head_dim;
        for (int64_t d = 0; d < state.head_dim; d += kVector) {
            const __mmask16 mask = dimensions(d, state.head_dim);
            const __m512 values = _mm512_maskz_loadu_ps(mask, out + d);
            _mm512_mask_storeu_ps(out + d, mask, _mm512_mul_ps(values, shrink));
        }
    }
    const __m512 max = _mm512_set1_ps(state.max[row]);
    const __m512 w0 = _mm512_maskz_mov_ps(mask0, exp_polynomial(_mm512_sub_ps(s0, max)));
    const __m512 w1 = _mm512_maskz_mov_ps(mask1, exp_polynomial(_mm512_sub_ps(s1, max)));
    _mm512_store_ps(weight, w0);
    _mm512_store_ps(weight + kVector, w1);
    state.sum[row] += sum_lanes(_mm256_add_ps(add_halves(w0), add_halves(w1)));
}

// out[row][d .. d + 16 * num_vectors) += weight[row][position] * V[position][d ..], positions in order; of a
// single vector only the lanes of `mask`.
template <int num_rows, int num_vectors>
inline void add_values(const KVTile& tile, const float (*weight)[kPositionTile], const SoftmaxState& state,
                       int64_t first, int64_t d) {
    const int64_t head_dim = state.head_dim;
    const __mmask16 mask = num_vectors > 1 ? 0xffff : dimensions(d, head_dim);
    float* const out = state.out + first * head_dim + d;
    __m512 acc[num_rows][num_vectors];
    for (int r = 0; r < num_rows; r++) {
        for (int j = 0; j < num_vectors; j++) {
            acc[r][j] = _mm512_maskz_loadu_ps(mask, out + r * head_dim + j * kVector);
        }
    }
    for (int64_t p = 0; p < tile.num_positions; p++) {
        const uint16_t* const values = tile.v[p / kHalfTile] + p % kHalfTile * head_dim + d;
        const uint16_t* const next = tile.next_v + p * head_dim + d;
        for (int j = 0; j < num_vectors; j += 2) {
            __builtin_prefetch(next + j * kVector);
        }
        __m512 w[num_rows];
        for (int r = 0; r < num_rows; r++) {
            w[r] = _mm512_set1_ps(weight[r][p]);
        }
        for (int j = 0; j < num_vectors; j++) {
            const __m512 v = num_vectors > 1 ? load_half16(values + j * kVector)
                                             : _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, values));
            for (int r = 0; r < num_rows; r++) {
                acc[r][j] = _mm512_fmadd_ps(w[r], v, acc[r][j]);
            }
        }
    }
    for (int r = 0; r < num_rows; r++) {
        for (int j = 0; j < num_vectors; j++) {
            _mm512_mask_storeu_ps(out + r * head_dim + j * kVector, mask, acc[r][j]);
        }
    }
}

template <int num_rows>
void attend_rows(const KVTile& tile, const float* query, const SoftmaxState& state, int64_t first) {
    const int64_t head_dim = state.head_dim;
    alignas(kCacheLine) float weight[num_rows][kPositionTile];
    __m512 score[num_rows][2];
    score_tile<num_rows>(tile, query + first * head_dim, head_dim, score);
    for (int r = 0; r < num_rows; r++) {
        update_softmax(state, first + r, tile.num_positions, score[r], weight[r]);
    }
    int64_t d = 0;
    for (; d + 4 * kVector <= head_dim; d += 4 * kVector) {
        add_values<num_rows, 4>(tile, weight, state, first, d);
    }
    for (; d < head_dim; d += kVector) {
        add_values<num_rows, 1>(tile, weight, state, first, d);
    }
}

void attend(const KVTile& tile, const float* query, const SoftmaxState& state) {
    using AttendRows = void (*)(const KVTile&, const float*, const SoftmaxState&, int64_t);
    constexpr AttendRows kBySize[kMaxRows + 1] = {nullptr,        attend_rows<1>, attend_rows<2>,
                                                  attend_rows<3>, attend_rows<4>, attend_rows<5>,
                                                  attend_rows<6>};
    for (int64_t row = 0; row < state.num_rows; row += kMaxRows) {
        const int64_t left = state.num_rows - row;
        kBySize[left < kMaxRows ? left : kMaxRows](tile, query, state, row);
    }
}

} // namespace

void set_avx512_attention(KernelTable& table) {
    table.attend = attend;
}

} // namespace ridgeline
