// AVX-512 VNNI matmul over panels, one vector for 16 rows; float operations in the order of dispatch.h, so
// bits equal the scalar twin's.
//
// 64 bytes hold 16 rows x 4 columns, unsigned; vpdpbusd multiplies them by 4 broadcast activations and adds
// to int32, exactly. Q6_K's 0..63 become q - 32 by a second product with 32 and its scales multiply the sums
// of 16 columns. 8-bit weights are widened in place, even and odd bytes, for vpdpwssd by int16 activations. A
// tile is 16 rows x 1..8 tokens: integer and float sums both stay in registers.
#include "isa/avx512.h"
#include "isa/tiles.h"

namespace ridgeline {

namespace {

constexpr int kMaxTokens = 8;

inline __m512i load(const uint8_t* p) {
    return _mm512_loadu_si512(p);
}

inline __m512i broadcast4(const void* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return _mm512_set1_epi32(bytes);
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

} // namespace

void set_avx512_matmul(KernelTable& table) {
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

} // namespace ridgeline
