// AVX2 + FMA + F16C kernels; float operations in the order of dispatch.h, so bits equal the scalar twin's.
#include "isa/avx2.h"

namespace ridgeline {

namespace {

// ---- vectors -------------------------------------------------------------------------------------------

// Eight floats; past `count` of them, zeros.
__m256 load_floats(const float* x, int64_t count) {
    if (count >= kLanes) {
        return _mm256_loadu_ps(x);
    }
    float padded[kLanes] = {};
    std::memcpy(padded, x, static_cast<size_t>(count) * sizeof(float));
    return _mm256_loadu_ps(padded);
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

// ---- row operations ------------------------------------------------------------------------------------

// 32 activations as integers of magnitude up to `limit`; returns the scale. Below the threshold the inverse
// would overflow; such a block counts as zero.
float round_block(const float* x, float limit, __m256i (&n)[4]) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 v[4];
    __m256 largest_lanes = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        largest_lanes = _mm256_max_ps(_mm256_andnot_ps(sign, v[i]), largest_lanes);
    }
    const float largest = max_lanes(largest_lanes);
    const bool is_zero = largest < 1e-30f;
    const __m256 inverse = _mm256_set1_ps(is_zero ? 0.0f : limit / largest);
    for (int i = 0; i < 4; i++) {
        n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    }
    return is_zero ? 0.0f : largest / limit;
}

int32_t sum_integers(__m256i v) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

void quantize8(const float* x, int64_t cols, int8_t* q, float* scale, float* scaled_sum) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); // undoes the packs' interleaving
    for (int64_t b = 0; b < cols / kBlockCols; b++, x += kBlockCols, q += kTokenTile * kBlockCols) {
        __m256i n[4];
        const float block_scale = round_block(x, 127.0f, n);
        scale[b * kTokenTile] = block_scale;
        const __m256i total = _mm256_add_epi32(_mm256_add_epi32(n[0], n[1]), _mm256_add_epi32(n[2], n[3]));
        scaled_sum[b * kTokenTile] = block_scale * static_cast<float>(sum_integers(total));
        const __m256i packed =
            _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(packed, order));
    }
}

void quantize16(const float* x, int64_t cols, int16_t* q, float* scale) {
    for (int64_t b = 0; b < cols / kBlockCols; b++, x += kBlockCols, q += kTokenTile * kBlockCols) {
        __m256i n[4];
        scale[b * kTokenTile] = round_block(x, 32767.0f, n);
        for (int i = 0; i < 2; i++) {
            // Columns 0 2 1 3 of every 4 in a lane; packs takes lanes of both, the permutation sorts them.
            const __m256i packed = _mm256_packs_epi32(_mm256_shuffle_epi32(n[2 * i], 0xd8),
                                                      _mm256_shuffle_epi32(n[2 * i + 1], 0xd8));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + 16 * i),
                                _mm256_permute4x64_epi64(packed, 0xd8));
        }
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

KernelTable make_table() {
    KernelTable table = {};
    table.isa = "avx2";
    set_avx2_matmul(table);
    set_avx2_attention(table);
    table.quantize8 = quantize8;
    table.quantize16 = quantize16;
    table.rms_norm = rms_norm;
    table.swiglu = swiglu;
    table.to_half = to_half;
    return table;
}

} // namespace

const KernelTable& avx2_kernels() {
    static const KernelTable table = make_table();
    return table;
}

} // namespace ridgeline
