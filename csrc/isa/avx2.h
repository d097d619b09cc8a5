// What the AVX2 files share. Its functions are static, so that none compiled for AVX2 can stand in for one of
// another instruction set at link time; no file of another instruction set may include this.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "dispatch.h"

namespace ridgeline {

// Put the matmul and attention kernels into the table.
void set_avx2_matmul(KernelTable& table);
void set_avx2_attention(KernelTable& table);

constexpr int kLanes = 8;

static inline __m256 load_half8(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

static inline float sum_lanes(__m256 v) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

static inline float max_lanes(__m256 v) {
    __m128 max = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    max = _mm_max_ps(max, _mm_movehl_ps(max, max));
    return _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)));
}

// e^x = 2^n * p(r) with r = x - n ln 2 in [-0.35, 0.35]; relative error 2e-7; x is clamped to [-87, 88].
static inline __m256 exp_polynomial(__m256 x) {
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

static inline float exp_polynomial(float x) {
    return _mm_cvtss_f32(_mm256_castps256_ps128(exp_polynomial(_mm256_set1_ps(x))));
}

} // namespace ridgeline
