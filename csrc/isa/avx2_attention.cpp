// AVX2 attention over one tile of 32 positions; float operations in the order of dispatch.h.
//
// Scores: K lies transposed, so 8 positions are 8 lanes and a score is a chain of multiply-adds over the
// dimensions, with no sums across lanes; lanes past the context's end come out as garbage and are never
// looked at. Then one online softmax step (Milakov & Gimelshein 2018): with a larger maximum m' the sum and
// the output so far shrink by exp(m - m'), weights are exp(score - m'). Output: out += weight[p] * V[p],
// positions in order. Three rows go together (12 accumulators), so that every K and V vector is widened from
// fp16 once for all of them: the query heads of one KV head, or of several tokens. Meanwhile the next tile is
// fetched.
#include <algorithm>
#include <cmath>

#include "isa/avx2.h"

namespace ridgeline {

namespace {

constexpr int kMaxRows = 3;
constexpr int kTileVectors = kPositionTile / kLanes;

template <int num_rows>
void score_tile(const KVTile& tile, const float* query, int64_t head_dim, float (*score)[kPositionTile]) {
    __m256 acc[num_rows][kTileVectors];
#pragma GCC unroll 3
    for (int r = 0; r < num_rows; r++) { // an initialiser would be a memset, and keep the sums in memory
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = _mm256_setzero_ps();
    }
    for (int64_t d = 0; d < head_dim; d++) {
        _mm_prefetch(reinterpret_cast<const char*>(tile.next_k + d * tile.k_stride), _MM_HINT_T0);
        // 12 accumulators, 3 queries and one K vector are all the registers there are.
        __m256 q[num_rows];
#pragma GCC unroll 3
        for (int r = 0; r < num_rows; r++) {
            q[r] = _mm256_broadcast_ss(query + r * head_dim + d);
        }
#pragma GCC unroll 4
        for (int j = 0; j < kTileVectors; j++) {
            const __m256 k = load_half8(tile.k[j / 2] + d * tile.k_stride + j % 2 * kLanes);
#pragma GCC unroll 3
            for (int r = 0; r < num_rows; r++) {
                acc[r][j] = _mm256_fmadd_ps(k, q[r], acc[r][j]);
            }
        }
    }
#pragma GCC unroll 3
    for (int r = 0; r < num_rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < kTileVectors; j++) {
            _mm256_store_ps(score[r] + j * kLanes, acc[r][j]);
        }
    }
}

// Turns scores into weights exp(score - max) (zero beyond the end) and brings max, sum and out up to date.
void update_softmax(const SoftmaxState& state, int64_t row, int64_t num_positions, float* score) {
    std::fill(score + num_positions, score + kPositionTile, -INFINITY);
    __m256 s[kTileVectors];
    for (int j = 0; j < kTileVectors; j++) {
        s[j] = _mm256_load_ps(score + j * kLanes);
    }
    const float largest = max_lanes(_mm256_max_ps(_mm256_max_ps(s[0], s[1]), _mm256_max_ps(s[2], s[3])));
    if (largest > state.max[row]) {
        const float shrink = exp_polynomial(state.max[row] - largest);
        state.max[row] = largest;
        state.sum[row] *= shrink;
        float* const out = state.out + row * state.head_dim;
        for (int64_t d = 0; d < state.head_dim; d += kLanes) {
            _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(out + d), _mm256_set1_ps(shrink)));
        }
    }
    const __m256 max = _mm256_set1_ps(state.max[row]);
    for (int j = 0; j < kTileVectors; j++) {
        s[j] = exp_polynomial(_mm256_sub_ps(s[j], max));
        _mm256_store_ps(score + j * kLanes, s[j]);
    }
    if (num_positions < kPositionTile) {
        std::fill(score + num_positions, score + kPositionTile, 0.0f);
        for (int j = 0; j < kTileVectors; j++) {
            s[j] = _mm256_load_ps(score + j * kLanes);
        }
    }
    state.sum[row] += sum_lanes(_mm256_add_ps(_mm256_add_ps(s[0], s[1]), _mm256_add_ps(s[2], s[3])));
}

// out[row][d .. d + 8 * num_vectors) += weight[row][position] * V[position][d ..], positions in order.
template <int num_rows, int num_vectors>
void add_values(const KVTile& tile, const float (*weight)[kPositionTile], int64_t head_dim, int64_t d,
                float* out) {
    __m256 acc[num_rows][num_vectors];
#pragma GCC unroll 3
    for (int r = 0; r < num_rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < num_vectors; j++) {
            acc[r][j] = _mm256_loadu_ps(out + r * head_dim + d + j * kLanes);
        }
    }
    for (int64_t p = 0; p < tile.num_positions; p++) {
        const int64_t at = p % kHalfTile * head_dim + d;
        const uint16_t* const next = tile.next_v + p * head_dim + d;
        _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
        __m256 w[num_rows];
#pragma GCC unroll 3
        for (int r = 0; r < num_rows; r++) {
            w[r] = _mm256_broadcast_ss(&weight[r][p]);
        }
#pragma GCC unroll 4
        for (int j = 0; j < num_vectors; j++) {
            const __m256 v = load_half8(tile.v[p / kHalfTile] + at + j * kLanes);
#pragma GCC unroll 3
            for (int r = 0; r < num_rows; r++) {
                acc[r][j] = _mm256_fmadd_ps(w[r], v, acc[r][j]);
            }
        }
    }
#pragma GCC unroll 3
    for (int r = 0; r < num_rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < num_vectors; j++) {
            _mm256_storeu_ps(out + r * head_dim + d + j * kLanes, acc[r][j]);
        }
    }
}

template <int num_rows>
void attend_rows(const KVTile& tile, const float* query, const SoftmaxState& state, int64_t first) {
    const int64_t head_dim = state.head_dim;
    alignas(32) float weight[num_rows][kPositionTile];
    score_tile<num_rows>(tile, query + first * head_dim, head_dim, weight);
    for (int r = 0; r < num_rows; r++) {
        update_softmax(state, first + r, tile.num_positions, weight[r]);
    }
    float* const out = state.out + first * head_dim;
    int64_t d = 0;
    for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) {
        add_values<num_rows, 4>(tile, weight, head_dim, d, out);
    }
    for (; d < head_dim; d += kLanes) {
        add_values<num_rows, 1>(tile, weight, head_dim, d, out);
    }
}

void attend(const KVTile& tile, const float* query, const SoftmaxState& state) {
    using AttendRows = void (*)(const KVTile&, const float*, const SoftmaxState&, int64_t);
    constexpr AttendRows kBySize[kMaxRows + 1] = {nullptr, attend_rows<1>, attend_rows<2>, attend_rows<3>};
    for (int64_t row = 0; row < state.num_rows; row += kMaxRows) {
        const int64_t left = state.num_rows - row;
        kBySize[left < kMaxRows ? left : kMaxRows](tile, query, state, row);
    }
}

void merge(const SoftmaxState& into, const SoftmaxState& from) {
    for (int64_t row = 0; row < into.num_rows; row++) {
        const float largest = into.max[row] > from.max[row] ? into.max[row] : from.max[row];
        const float keep = exp_polynomial(into.max[row] - largest);
        const float add = exp_polynomial(from.max[row] - largest);
        into.max[row] = largest;
        into.sum[row] = _mm_cvtss_f32(
            _mm_fmadd_ss(_mm_set_ss(from.sum[row]), _mm_set_ss(add), _mm_set_ss(into.sum[row] * keep)));
        for (int64_t i = row * into.head_dim; i < (row + 1) * into.head_dim; i += kLanes) {
            const __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(into.out + i), _mm256_set1_ps(keep));
            const __m256 added = _mm256_loadu_ps(from.out + i);
            _mm256_storeu_ps(into.out + i, _mm256_fmadd_ps(added, _mm256_set1_ps(add), kept));
        }
    }
}

} // namespace

void set_avx2_attention(KernelTable& table) {
    table.attend = attend;
    table.merge = merge;
}

} // namespace ridgeline
