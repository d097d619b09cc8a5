// What the AVX2 files share. Its functions are static, so that none compiled for AVX2 can stand in for one of
// another instruction set at link time; no other file may include this.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "dispatch.h"

namespace ridgeline {

// Puts the matmul kernels into the table.
void set_avx2_matmul(KernelTable& table);

constexpr int kLanes = 8;

static inline __m256 load_half8(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

static inline float sum_lanes(__m256 v) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// Eight floats; past `count` of them, zeros.
static inline __m256 load_floats(const float* x, int64_t count) {
    if (count >= kLanes) {
        return _mm256_loadu_ps(x);
    }
    float padded[kLanes] = {};
    std::memcpy(padded, x, static_cast<size_t>(count) * sizeof(float));
    return _mm256_loadu_ps(padded);
}

// Lane i of the result is the total of argument i.
static inline __m128 sum_across(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)));
}

} // namespace ridgeline
