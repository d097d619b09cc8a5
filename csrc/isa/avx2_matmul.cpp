// AVX2 matmul over panels: a register tile of 16 rows x 1..4 tokens; float operations in the order of
// dispatch.h, so bits equal the scalar twin's.
//
// Up to 6 bits: 32 bytes hold 8 rows x 4 columns, unsigned. One maddubs multiplies them by 4 broadcast
// activations into pairs of int16: |pair| <= 2 * q * 127. Eight of those fit an int16 if q <= 15 (30480),
// four if q <= 31 (31496), which is all 32 or half of the columns; then one madd, by ones, adds pairs to
// int32. The quants of Q6_K are 0..63: a pair is 16002 and does not saturate, and taking 32 * x off at every
// step brings the sum of four back to |q - 32| <= 32, so 32512 (what overflows on the way wraps and unwraps);
// its madd is by the scales of 16 columns instead of ones.
//
// 8 bits: the even and the odd bytes are widened in place to int16 pairs (columns 0, 2 and 1, 3 of 4), and
// madd by int16 activations goes straight to int32: 16 * 128 * 32767 * 2 < 2^31.
//
// A tile keeps its integer accumulators in registers and its float ones in memory: both would not fit.
#include "isa/avx2.h"
#include "isa/tiles.h"

namespace ridgeline {

namespace {

constexpr int kMaxTokens = 4;

// The compiler sees through the intrinsic, sinks a chain of such sums to its last use and spills what it
// sums.
inline __m256i add16(__m256i a, __m256i b) {
    asm("vpaddw %1, %0, %0" : "+x"(a) : "x"(b));
    return a;
}

inline __m256i add32(__m256i a, __m256i b) {
    asm("vpaddd %1, %0, %0" : "+x"(a) : "x"(b));
    return a;
}

// The same pointer, of which the compiler knows nothing: what it points to is loaded again, not kept and
// spilled.
template <class T>
inline T* forget(T* p) {
    asm("" : "+r"(p));
    return p;
}

inline __m256i load(const uint8_t* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

inline __m256i broadcast4(const void* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

// ---- quants --------------------------------------------------------------------------------------------

// Columns 16 half + 4 j .. + 3 of 8 rows (`rows` 0: rows 0..7, 1: 8..15), low bits.
template <int half>
inline __m256i nibbles(const uint8_t* quants, int j, int rows) {
    const __m256i pairs = load(quants + 64 * j + 32 * rows);
    return _mm256_and_si256(half == 0 ? pairs : _mm256_srli_epi16(pairs, 4), _mm256_set1_epi8(15));
}

// Moves bit `from` of every byte to bit 4, with the bits above it that `mask` keeps.
inline __m256i bits_to_4(__m256i bytes, int from, char mask) {
    const __m256i moved = from < 4 ? _mm256_slli_epi16(bytes, 4 - from) : _mm256_srli_epi16(bytes, from - 4);
    return _mm256_and_si256(moved, _mm256_set1_epi8(mask));
}

struct Quants4 {
    static constexpr int kOffset = 0;
    static constexpr bool kSumsHalves = false;
    template <int half>
    static __m256i unpack(const uint8_t* quants, int j, int rows) {
        return nibbles<half>(quants, j, rows);
    }
};

struct Quants5 {
    static constexpr int kOffset = 0;
    static constexpr bool kSumsHalves = true;
    template <int half>
    static __m256i unpack(const uint8_t* quants, int j, int rows) {
        const __m256i fifth = bits_to_4(load(quants + 256 + 32 * rows), 4 * half + j, 16);
        return _mm256_or_si256(nibbles<half>(quants, j, rows), fifth);
    }
};

struct Quants6 {
    static constexpr int kOffset = 32;
    static constexpr bool kSumsHalves = true;
    template <int half>
    static __m256i unpack(const uint8_t* quants, int j, int rows) {
        const __m256i high = bits_to_4(load(quants + 256 + 64 * half + 32 * rows), 2 * j, 48);
        return _mm256_or_si256(nibbles<half>(quants, j, rows), high);
    }
};

// ---- scales --------------------------------------------------------------------------------------------

// 16 rows as two vectors.
struct Rows16 {
    __m256 v[2];
};

inline Rows16 halves(const uint8_t* p) {
    return {{load_half8(p), load_half8(p + 16)}};
}

inline Rows16 times(const Rows16& a, float b) {
    return {{_mm256_mul_ps(a.v[0], _mm256_set1_ps(b)), _mm256_mul_ps(a.v[1], _mm256_set1_ps(b))}};
}

inline __m256 bytes_to_floats(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

inline Rows16 times_bytes(const Rows16& a, const uint8_t* p) {
    return {{_mm256_mul_ps(a.v[0], bytes_to_floats(p)), _mm256_mul_ps(a.v[1], bytes_to_floats(p + 8))}};
}

// `offset` times the scale is the minimum (Q4_0: -8, Q5_0: -16).
template <int offset>
struct OffsetScales {
    static constexpr bool kHasMinimum = true;
    static Rows16 scale(const uint8_t*, const uint8_t* scales) { return halves(scales); }
    static Rows16 minimum(const uint8_t*, const uint8_t* scales) { return times(halves(scales), offset); }
};

struct PairScales {
    static constexpr bool kHasMinimum = true;
    static Rows16 scale(const uint8_t*, const uint8_t* scales) { return halves(scales); }
    static Rows16 minimum(const uint8_t*, const uint8_t* scales) { return halves(scales + 32); }
};

struct KScales {
    static constexpr bool kHasMinimum = true;
    static Rows16 scale(const uint8_t* super, const uint8_t* scales) {
        return times_bytes(halves(super), scales);
    }
    static Rows16 minimum(const uint8_t* super, const uint8_t* scales) {
        return times_bytes(times(halves(super + 32), -1.0f), scales + 16);
    }
};

// The integer scales of 16 columns are in the sums already.
struct SuperScales {
    static constexpr bool kHasMinimum = false;
    static Rows16 scale(const uint8_t* super, const uint8_t*) { return halves(super); }
};

struct PlainScales {
    static constexpr bool kHasMinimum = false;
    static Rows16 scale(const uint8_t*, const uint8_t* scales) { return halves(scales); }
};

// What the second step of the sums multiplies by: ones, or Q6_K's scales of half `half` of the columns.
template <class Quants, int half>
inline __m256i factors(const uint8_t* scales, int rows) {
    if (Quants::kOffset == 0) {
        return _mm256_set1_epi16(1);
    }
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + 16 * half + 8 * rows));
    const __m256i wide = _mm256_cvtepi8_epi32(bytes);
    return _mm256_or_si256(_mm256_and_si256(wide, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(wide, 16));
}

// ---- tiles ---------------------------------------------------------------------------------------------

// Columns 16 half + 4 j .. + 3 of a block times n tokens, added to int16 sums of 16 rows, or the first of
// them.
template <class Quants, int half, int n>
inline void add_columns(const uint8_t* quants, const int8_t* x, int j, bool is_first, __m256i (&sum)[n][2]) {
    const __m256i q0 = Quants::template unpack<half>(quants, j, 0);
    const __m256i q1 = Quants::template unpack<half>(quants, j, 1);
#pragma GCC unroll 4
    for (int t = 0; t < n; t++) {
        const __m256i four = broadcast4(x + t * kBlockCols + 16 * half + 4 * j);
        __m256i p0 = _mm256_maddubs_epi16(q0, four), p1 = _mm256_maddubs_epi16(q1, four);
        if (Quants::kOffset != 0) {
            const __m256i offset = _mm256_maddubs_epi16(_mm256_set1_epi8(Quants::kOffset), four);
            p0 = _mm256_sub_epi16(p0, offset);
            p1 = _mm256_sub_epi16(p1, offset);
        }
        sum[t][0] = is_first ? p0 : add16(sum[t][0], p0);
        sum[t][1] = is_first ? p1 : add16(sum[t][1], p1);
    }
}

// The exact sums of one block, [tokens][16 rows].
template <class Quants, int n>
inline void sum_block(const uint8_t* quants, const uint8_t* scales, const int8_t* x, __m256i (&total)[n][2]) {
    __m256i sum[n][2];
    if (Quants::kSumsHalves) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            add_columns<Quants, 0>(quants, x, j, j == 0, sum);
        }
#pragma GCC unroll 4
        for (int t = 0; t < n; t++) {
            total[t][0] = _mm256_madd_epi16(sum[t][0], factors<Quants, 0>(scales, 0));
            total[t][1] = _mm256_madd_epi16(sum[t][1], factors<Quants, 0>(scales, 1));
        }
        quants = forget(quants);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        if (!Quants::kSumsHalves) {
            add_columns<Quants, 0>(quants, x, j, j == 0, sum);
        }
        add_columns<Quants, 1>(quants, x, j, j == 0 && Quants::kSumsHalves, sum);
    }
#pragma GCC unroll 4
    for (int t = 0; t < n; t++) {
        const __m256i p0 = _mm256_madd_epi16(sum[t][0], factors<Quants, 1>(scales, 0));
        const __m256i p1 = _mm256_madd_epi16(sum[t][1], factors<Quants, 1>(scales, 1));
        total[t][0] = Quants::kSumsHalves ? _mm256_add_epi32(total[t][0], p0) : p0;
        total[t][1] = Quants::kSumsHalves ? _mm256_add_epi32(total[t][1], p1) : p1;
    }
}

// acc [16] += scale * x_scale * total + minimum * x_sum.
template <class Scales>
inline void accumulate(const Rows16& scale, const Rows16& minimum, const __m256i (&total)[2], float x_scale,
                       float x_sum, float* acc) {
    for (int i = 0; i < 2; i++) {
        const __m256 product = _mm256_mul_ps(scale.v[i], _mm256_set1_ps(x_scale));
        __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[i]), product, _mm256_load_ps(acc + 8 * i));
        if (Scales::kHasMinimum) {
            sum = _mm256_fmadd_ps(minimum.v[i], _mm256_set1_ps(x_sum), sum);
        }
        _mm256_store_ps(acc + 8 * i, sum);
    }
}

template <QuantType type, class Quants, class Scales>
struct Int8Kernel {
    template <int n>
    static void run(const Tile& tile, TileSums<kMaxTokens>& acc) {
        constexpr PanelParts kParts = kPanelParts[static_cast<int>(type)];
        const int64_t at = input_at(*tile.x, tile.token, 0), num_blocks = tile.weight->cols / kBlockCols;
        const int8_t* x = tile.x->q8 + at * kBlockCols;
        const float *x_scale = tile.x->scale8 + at, *x_sum = tile.x->sum8 + at;
        const uint8_t *const panel = tile.panel, *next = tile.next;
        float* sums = acc[0];
        for (int64_t b = 0; b < num_blocks; b++) {
            const BlockOffsets offsets = block_offsets(kParts, b);
            const uint8_t* const super = panel + offsets.super;
            const uint8_t* const scales = panel + offsets.scales;
            next = prefetch(next, kParts.quant_bytes + kParts.scale_bytes);
            __m256i total[n][2];
            sum_block<Quants, n>(panel + offsets.quants, scales, x, total);
            const Rows16 scale = Scales::scale(super, scales);
            Rows16 minimum = {};
            if constexpr (Scales::kHasMinimum) {
                minimum = Scales::minimum(super, scales);
            }
            sums = forget(sums);
#pragma GCC unroll 4
            for (int t = 0; t < n; t++) {
                accumulate<Scales>(scale, minimum, total[t], x_scale[t], x_sum[t], sums + t * kPanelRows);
            }
            x += kTokenTile * kBlockCols;
            x_scale += kTokenTile;
            x_sum += kTokenTile;
        }
    }
};

struct Int16Kernel {
    template <int n>
    static void run(const Tile& tile, TileSums<kMaxTokens>& acc) {
        constexpr PanelParts kParts = kPanelParts[static_cast<int>(QuantType::Q8_0)];
        const int64_t at = input_at(*tile.x, tile.token, 0), num_blocks = tile.weight->cols / kBlockCols;
        const int16_t* x = tile.x->q16 + at * kBlockCols;
        const float* x_scale = tile.x->scale16 + at;
        const uint8_t *const panel = tile.panel, *next = tile.next;
        float* sums = acc[0];
        for (int64_t b = 0; b < num_blocks; b++) {
            const BlockOffsets offsets = block_offsets(kParts, b);
            next = prefetch(next, kParts.quant_bytes + kParts.scale_bytes);
            __m256i total[n][2];
            sum_block<n>(panel + offsets.quants, x, total);
            const Rows16 scale = halves(panel + offsets.scales);
            sums = forget(sums);
#pragma GCC unroll 4
            for (int t = 0; t < n; t++) {
                accumulate<PlainScales>(scale, {}, total[t], x_scale[t], 0.0f, sums + t * kPanelRows);
            }
            x += kTokenTile * kBlockCols;
            x_scale += kTokenTile;
        }
    }

    // The exact sums of one block, [tokens][16 rows].
    template <int n>
    static void sum_block(const uint8_t* quants, const int16_t* x, __m256i (&total)[n][2]) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) { // group i / 2 of 4 columns, even columns, then odd ones
            const __m256i v0 = load(quants + 64 * (i / 2)), v1 = load(quants + 64 * (i / 2) + 32);
            const __m256i q0 = _mm256_srai_epi16(i % 2 == 0 ? _mm256_slli_epi16(v0, 8) : v0, 8);
            const __m256i q1 = _mm256_srai_epi16(i % 2 == 0 ? _mm256_slli_epi16(v1, 8) : v1, 8);
#pragma GCC unroll 4
            for (int t = 0; t < n; t++) {
                const __m256i two = broadcast4(x + t * kBlockCols + 2 * i);
                const __m256i p0 = _mm256_madd_epi16(q0, two), p1 = _mm256_madd_epi16(q1, two);
                total[t][0] = i == 0 ? p0 : add32(total[t][0], p0);
                total[t][1] = i == 0 ? p1 : add32(total[t][1], p1);
            }
        }
    }
};

// ---- float weights -------------------------------------------------------------------------------------

struct FormatF32 {
    static constexpr int64_t kSize = 4;
    static __m256 load(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
};

struct FormatF16 {
    static constexpr int64_t kSize = 2;
    static __m256 load(const uint8_t* p) { return load_half8(p); }
};

struct FormatBF16 {
    static constexpr int64_t kSize = 2;
    static __m256 load(const uint8_t* p) {
        const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16));
    }
};

template <class Format>
struct FloatKernel {
    template <int n>
    static void run(const Tile& tile, TileSums<kMaxTokens>& acc) {
        const int64_t cols = tile.weight->cols;
        const float* const x = tile.x->x + tile.token * cols;
        const uint8_t* weights = tile.panel;
        __m256 sum[n][2];
#pragma GCC unroll 4
        for (int t = 0; t < n; t++) { // an initialiser would be a memset, and keep the sums in memory
            sum[t][0] = sum[t][1] = _mm256_setzero_ps();
        }
        for (int64_t col = 0; col < cols; col++, weights += kPanelRows * Format::kSize) {
            const __m256 w0 = Format::load(weights), w1 = Format::load(weights + kLanes * Format::kSize);
#pragma GCC unroll 4
            for (int t = 0; t < n; t++) {
                const __m256 value = _mm256_broadcast_ss(x + t * cols + col);
                sum[t][0] = _mm256_fmadd_ps(w0, value, sum[t][0]);
                sum[t][1] = _mm256_fmadd_ps(w1, value, sum[t][1]);
            }
        }
#pragma GCC unroll 4
        for (int t = 0; t < n; t++) {
            _mm256_store_ps(acc[t], sum[t][0]);
            _mm256_store_ps(acc[t] + kLanes, sum[t][1]);
        }
    }
};

template <class Kernel>
void matmul(const MatmulSlice& slice, const Activations& activations) {
    constexpr RunTile<kMaxTokens> kRun[] = {nullptr, Kernel::template run<1>, Kernel::template run<2>,
                                            Kernel::template run<3>, Kernel::template run<4>};
    walk_tiles<kMaxTokens>(slice, activations, kRun);
}

} // namespace

void set_avx2_matmul(KernelTable& table) {
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
