// AVX-512 with VNNI: matmul and attention with one vector for 16 rows or positions; the rest is AVX2's. Float
// operations in the order of dispatch.h, so bits equal the scalar twin's.
//
// Matmul: 64 bytes hold 16 rows x 4 columns, unsigned; vpdpbusd multiplies them by 4 broadcast activations
// and adds to int32, exactly. Q6_K's 0..63 become q - 32 by a second product with 32 and its scales multiply
// the sums of 16 columns. 8-bit weights are widened in place, even and odd bytes, for vpdpwssd by int16
// activations. A tile is 16 rows x 1..8 tokens: integer and float sums both stay in registers.
//
// Attention: as in avx2_attention.cpp, with two vectors for the 32 positions of a tile and up to 6 rows.
#include <immintrin.h>

#include <cmath>

#include "isa/tiles.h"

namespace ridgeline {

namespace {

constexpr int kMaxTokens = 8;
constexpr int64_t kVector = 16;

inline __m512i load(const uint8_t* p) {
    return _mm512_loadu_si512(p);
}

inline __m512i broadcast4(const void* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return _mm512_set1_epi32(bytes);
}

inline __m512 load_half16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}

// ---- quants --------------------------------------------------------------------------------------------

// Columns 16 half + 4 j .. + 3 of 16 rows, low bits.
template <int half>
inline __m512i nibbles(const uint8_t* quants, int j) {
    const __m512i pairs = load(quants + 64 * j);
    return _mm512_and_si512(half == 0 ? pairs : _mm512_srli_epi16(pairs, 4), _mm512_set1_epi8(15));
}

// low | (bit `from` of every byte moved to bit 4, with the bits above it that `mask` keeps).
inline __m512i with_high_bits(__m512i low, __m512i plane, int from, char mask) {
    const __m512i moved = from < 4 ? _mm512_slli_epi16(plane, static_cast<unsigned>(4 - from))
                                   : _mm512_srli_epi16(plane, static_cast<unsigned>(from - 4));
    return _mm512_ternarylogic_epi32(low, moved, _mm512_set1_epi8(mask), 0xf8); // a | (b & c)
}

struct Quants4 {
    static constexpr int kOffset = 0;
    template <int half>
    static __m512i unpack(const uint8_t* quants, int j) {
        return nibbles<half>(quants, j);
    }
};

struct Quants5 {
    static constexpr int kOffset = 0;
    template <int half>
    static __m512i unpack(const uint8_t* quants, int j) {
        return with_high_bits(nibbles<half>(quants, j), load(quants + 256), 4 * half + j, 16);
    }
};

struct Quants6 {
    static constexpr int kOffset = 32;
    template <int half>
    static __m512i unpack(const uint8_t* quants, int j) {
        return with_high_bits(nibbles<half>(quants, j), load(quants + 256 + 64 * half), 2 * j, 48);
    }
};

// ---- scales --------------------------------------------------------------------------------------------

inline __m512 bytes_to_floats(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

// `offset` times the scale is the minimum (Q4_0: -8, Q5_0: -16).
template <int offset>
struct OffsetScales {
    static constexpr bool kHasMinimum = true;
    static __m512 scale(const uint8_t*, const uint8_t* scales) { return load_half16(scales); }
    static __m512 minimum(const uint8_t*, const uint8_t* scales) {
        return _mm512_mul_ps(load_half16(scales), _mm512_set1_ps(offset));
    }
};

struct PairScales {
    static constexpr bool kHasMinimum = true;
    static __m512 scale(const uint8_t*, const uint8_t* scales) { return load_half16(scales); }
    static __m512 minimum(const uint8_t*, const uint8_t* scales) { return load_half16(scales + 32); }
};

struct KScales {
    static constexpr bool kHasMinimum = true;
    static __m512 scale(const uint8_t* super, const uint8_t* scales) {
        return _mm512_mul_ps(load_half16(super), bytes_to_floats(scales));
    }
    static __m512 minimum(const uint8_t* super, const uint8_t* scales) {
        const __m512 negative = _mm512_mul_ps(load_half16(super + 32), _mm512_set1_ps(-1.0f));
        return _mm512_mul_ps(negative, bytes_to_floats(scales + 16));
    }
};

// The integer scales of 16 columns are in the sums already.
struct SuperScales {
    static constexpr bool kHasMinimum = false;
    static __m512 scale(const uint8_t* super, const uint8_t*) { return load_half16(super); }
    static __m512 minimum(const uint8_t*, const uint8_t*) { return _mm512_setzero_ps(); }
};

// ---- tiles ---------------------------------------------------------------------------------------------

// Columns 16 half .. + 15 of a block times n tokens, added to `sum`.
template <class Quants, int half, int n>
inline void add_half(const uint8_t* quants, const int8_t* x, __m512i (&sum)[n]) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512i q = Quants::template unpack<half>(quants, j);
#pragma GCC unroll 8
        for (int t = 0; t < n; t++) {
            const __m512i four = broadcast4(x + t * kBlockCols + 16 * half + 4 * j);
            sum[t] = _mm512_dpbusd_epi32(sum[t], q, four);
        }
    }
}

// The same for Q6_K: its quants less 32, times their scales.
template <class Quants, int half, int n>
inline void add_scaled_half(const uint8_t* quants, const uint8_t* scales, const int8_t* x,
                            __m512i (&sum)[n]) {
    __m512i part[n];
    for (int t = 0; t < n; t++) {
        part[t] = _mm512_setzero_si512();
    }
    add_half<Quants, half>(quants, x, part);
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 16 * half));
    const __m512i factors = _mm512_cvtepi8_epi32(bytes);
    for (int t = 0; t < n; t++) {
        __m512i offset = _mm512_setzero_si512();
        for (int j = 0; j < 4; j++) {
            const __m512i four = broadcast4(x + t * kBlockCols + 16 * half + 4 * j);
            offset = _mm512_dpbusd_epi32(offset, _mm512_set1_epi8(Quants::kOffset), four);
        }
        const __m512i scaled = _mm512_mullo_epi32(_mm512_sub_epi32(part[t], offset), factors);
        sum[t] = _mm512_add_epi32(sum[t], scaled);
    }
}

template <QuantType type, class Quants, class Scales>
struct Int8Kernel {
    template <int n>
    static void run(const Tile& tile, TileSums<kMaxTokens>& out) {
        constexpr PanelParts kParts = kPanelParts[static_cast<int>(type)];
        int64_t at = input_at(*tile.x, tile.token, 0);
        const uint8_t* next = tile.next;
        __m512 acc[n] = {};
        for (int64_t b = 0; b < tile.weight->cols / kBlockCols; b++, at += kTokenTile) {
            const BlockOffsets offsets = block_offsets(kParts, b);
            const uint8_t* const quants = tile.panel + offsets.quants;
            const uint8_t* const scales = tile.panel + offsets.scales;
            const int8_t* const x = tile.x->q8 + at * kBlockCols;
            next = prefetch(next, kParts.quant_bytes + kParts.scale_bytes);
            __m512i sum[n] = {};
            if constexpr (Quants::kOffset == 0) {
                add_half<Quants, 0>(quants, x, sum);
                add_half<Quants, 1>(quants, x, sum);
            } else {
                add_scaled_half<Quants, 0>(quants, scales, x, sum);
                add_scaled_half<Quants, 1>(quants, scales, x, sum);
            }
            const __m512 scale = Scales::scale(tile.panel + offsets.super, scales);
            const __m512 minimum = Scales::minimum(tile.panel + offsets.super, scales);
#pragma GCC unroll 8
            for (int t = 0; t < n; t++) {
                const __m512 product = _mm512_mul_ps(scale, _mm512_set1_ps(tile.x->scale8[at + t]));
                acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t]), product, acc[t]);
                if (Scales::kHasMinimum) {
                    acc[t] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(tile.x->sum8[at + t]), acc[t]);
                }
            }
        }
        for (int t = 0; t < n; t++) {
            _mm512_store_ps(out[t], acc[t]);
        }
    }
};

struct Int16Kernel {
    template <int n>
    static void run(const Tile& tile, TileSums<kMaxTokens>& out) {
        constexpr PanelParts kParts = kPanelParts[static_cast<int>(QuantType::Q8_0)];
        int64_t at = input_at(*tile.x, tile.token, 0);
        const uint8_t* next = tile.next;
        __m512 acc[n] = {};
        for (int64_t b = 0; b < tile.weight->cols / kBlockCols; b++, at += kTokenTile) {
            const BlockOffsets offsets = block_offsets(kParts, b);
            const int16_t* const x = tile.x->q16 + at * kBlockCols;
            next = prefetch(next, kParts.quant_bytes + kParts.scale_bytes);
            __m512i sum[n] = {};
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                const __m512i bytes = load(tile.panel + offsets.quants + 64 * j);
                const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8);
                const __m512i odd = _mm512_srai_epi16(bytes, 8);
#pragma GCC unroll 8
                for (int t = 0; t < n; t++) {
                    const int16_t* const four = x + t * kBlockCols + 4 * j;
                    sum[t] = _mm512_dpwssd_epi32(sum[t], even, broadcast4(four));
                    sum[t] = _mm512_dpwssd_epi32(sum[t], odd, broadcast4(four + 2));
                }
            }
            const __m512 scale = load_half16(tile.panel + offsets.scales);
#pragma GCC unroll 8
            for (int t = 0; t < n; t++) {
                const __m512 product = _mm512_mul_ps(scale, _mm512_set1_ps(tile.x->scale16[at + t]));
                acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t]), product, acc[t]);
            }
        }
        for (int t = 0; t < n; t++) {
            _mm512_store_ps(out[t], acc[t]);
        }
    }
};

struct FormatF32 {
    static constexpr int64_t kSize = 4;
    static __m512 load(const uint8_t* p) { return _mm512_loadu_ps(p); }
};

struct FormatF16 {
    static constexpr int64_t kSize = 2;
    static __m512 load(const uint8_t* p) { return load_half16(p); }
};

struct FormatBF16 {
    static constexpr int64_t kSize = 2;
    static __m512 load(const uint8_t* p) {
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
    }
};

template <class Format>
struct FloatKernel {
    template <int n>
    static void run(const Tile& tile, TileSums<kMaxTokens>& out) {
        const int64_t cols = tile.weight->cols;
        const float* const x = tile.x->x + tile.token * cols;
        const uint8_t* weights = tile.panel;
        __m512 acc[n];
        for (int t = 0; t < n; t++) {
            acc[t] = _mm512_setzero_ps();
        }
        for (int64_t col = 0; col < cols; col++, weights += kPanelRows * Format::kSize) {
            const __m512 w = Format::load(weights);
            for (int t = 0; t < n; t++) {
                acc[t] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[t * cols + col]), acc[t]);
            }
        }
        for (int t = 0; t < n; t++) {
            _mm512_store_ps(out[t], acc[t]);
        }
    }
};

template <class Kernel>
void matmul(const MatmulSlice& slice, const Activations& activations) {
    constexpr RunTile<kMaxTokens> kRun[] = {nullptr,
                                            Kernel::template run<1>,
                                            Kernel::template run<2>,
                                            Kernel::template run<3>,
                                            Kernel::template run<4>,
                                            Kernel::template run<5>,
                                            Kernel::template run<6>,
                                            Kernel::template run<7>,
                                            Kernel::template run<8>};
    walk_tiles<kMaxTokens>(slice, activations, kRun);
}

void set_matmul(KernelTable& table) {
    const auto set = [&table](QuantType type, auto kernel) { table.matmul[static_cast<int>(type)] = kernel; };
    set(QuantType::F32, matmul<FloatKernel<FormatF32>>);
    set(QuantType::F16, matmul<FloatKernel<FormatF16>>);
    set(QuantType::BF16, matmul<FloatKernel<FormatBF16>>);
    set(QuantType::Q4_0, matmul<Int8Kernel<QuantType::Q4_0, Quants4, OffsetScales<-8>>>);
    set(QuantType::Q4_1, matmul<Int8Kernel<QuantType::Q4_1, Quants4, PairScales>>);
    set(QuantType::Q5_0, matmul<Int8Kernel<QuantType::Q5_0, Quants5, OffsetScales<-16>>>);
    set(QuantType::Q5_1, matmul<Int8Kernel<QuantType::Q5_1, Quants5, PairScales>>);
    set(QuantType::Q8_0, matmul<Int16Kernel>);
    set(QuantType::Q4_K, matmul<Int8Kernel<QuantType::Q4_K, Quants4, KScales>>);
    set(QuantType::Q5_K, matmul<Int8Kernel<QuantType::Q5_K, Quants5, KScales>>);
    set(QuantType::Q6_K, matmul<Int8Kernel<QuantType::Q6_K, Quants6, SuperScales>>);
}

// ---- attention -----------------------------------------------------------------------------------------

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

KernelTable make_table() {
    KernelTable table = avx2_kernels();
    table.isa = "avx512_vnni";
    set_matmul(table);
    table.attend = attend;
    return table;
}

} // namespace

const KernelTable& avx512_kernels() {
    static const KernelTable table = make_table();
    return table;
}

} // namespace ridgeline
