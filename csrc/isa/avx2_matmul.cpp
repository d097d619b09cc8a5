// AVX2 matmul kernels; float operations in the order of dispatch.h, so bits equal the scalar twin's.
//
// A quantised dot product takes 32 weights at a time: maddubs multiplies unsigned bytes (the quants, or the
// magnitudes of signed ones) by int8 activations into pairs of int16, madd adds pairs to int32. A pair stays
// within 2 * 128 * 127 < 2^15, since activations never hold -128. Four such vectors (1 row x 4 tokens, or
// 4 rows x 1 token) are then added up across to four exact int32 sums, one per lane, and every further step
// is per lane: that keeps one accumulator per (row, token) at no cost over lane-wise accumulators.
#include "isa/avx2.h"

namespace ridgeline {

namespace {

// ---- quant formats -------------------------------------------------------------------------------------

// 32 weights as bytes; a format says whether they are signed, have a minimum, or carry integer factors.
struct Block32 {
    __m256i q;
    __m256i factors; // int16, per pair of quants; only of formats with sub-blocks below 32
    __m128 scales;   // lane 0: scale, lane 1: minimum
};

template <class Block>
const Block* block_at(const uint8_t* row, int64_t index) {
    return reinterpret_cast<const Block*>(row + index * static_cast<int64_t>(sizeof(Block)));
}

Block32 make_block(__m256i q, __m128 scales) {
    return {q, _mm256_setzero_si256(), scales};
}

// Lane 0: the half at p.
__m128 load_half(const uint16_t* p) {
    return _mm_cvtph_ps(_mm_cvtsi32_si128(*p));
}

// Lanes 0 and 1: the two halves at p.
__m128 load_half_pair(const uint16_t* p) {
    return _mm_cvtph_ps(_mm_loadu_si32(p));
}

// A scale and a minimum of `offset` times the scale.
__m128 load_offset_scale(const uint16_t* p, float offset) {
    const __m128 scale = load_half(p);
    return _mm_mul_ps(_mm_moveldup_ps(scale), _mm_setr_ps(1.0f, offset, 0.0f, 0.0f));
}

// Bytes 0..15: low nibbles, 16..31: high nibbles.
__m256i unpack_nibbles(const uint8_t* qs) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(qs));
    const __m256i both = _mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

// Byte i is 16 where bit i of the 32 bits at qh is set.
__m256i unpack_fifth_bits(const uint8_t* qh) {
    int32_t bits;
    std::memcpy(&bits, qh, sizeof bits);
    const __m256i byte_of_lane =
        _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0x0000000000000000);
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of_lane);
    const __m256i mask = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, mask), mask);
    return _mm256_and_si256(is_set, _mm256_set1_epi8(16));
}

struct FormatQ4_0 {
    static constexpr bool kIsSigned = false, kHasMinimum = true, kHasFactors = false;
    static Block32 unpack(const uint8_t* row, int64_t index) {
        const auto* block = block_at<BlockQ4_0>(row, index);
        return make_block(unpack_nibbles(block->qs), load_offset_scale(&block->d, -8.0f));
    }
};

struct FormatQ4_1 {
    static constexpr bool kIsSigned = false, kHasMinimum = true, kHasFactors = false;
    static Block32 unpack(const uint8_t* row, int64_t index) {
        const auto* block = block_at<BlockQ4_1>(row, index);
        return make_block(unpack_nibbles(block->qs), load_half_pair(&block->d));
    }
};

struct FormatQ5_0 {
    static constexpr bool kIsSigned = false, kHasMinimum = true, kHasFactors = false;
    static Block32 unpack(const uint8_t* row, int64_t index) {
        const auto* block = block_at<BlockQ5_0>(row, index);
        const __m256i q = _mm256_or_si256(unpack_nibbles(block->qs), unpack_fifth_bits(block->qh));
        return make_block(q, load_offset_scale(&block->d, -16.0f));
    }
};

struct FormatQ5_1 {
    static constexpr bool kIsSigned = false, kHasMinimum = true, kHasFactors = false;
    static Block32 unpack(const uint8_t* row, int64_t index) {
        const auto* block = block_at<BlockQ5_1>(row, index);
        const __m256i q = _mm256_or_si256(unpack_nibbles(block->qs), unpack_fifth_bits(block->qh));
        return make_block(q, load_half_pair(&block->d));
    }
};

struct FormatQ8_0 {
    static constexpr bool kIsSigned = true, kHasMinimum = false, kHasFactors = false;
    static Block32 unpack(const uint8_t* row, int64_t index) {
        const auto* block = block_at<BlockQ8_0>(row, index);
        const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block->qs));
        return make_block(q, load_half(&block->d));
    }
};

// Scale and minimum of sub-block j of Q4_K and Q5_K; the packing of the 6-bit pairs is told in scalar.cpp.
template <class Block>
__m128 unpack_scales(const Block& block, int64_t j) {
    const uint8_t* const scales = block.scales;
    const bool is_low = j < 4;
    const int scale = is_low ? scales[j] & 63 : (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
    const int min = is_low ? scales[j + 4] & 63 : (scales[j + 4] >> 4) | (scales[j] >> 6) << 4;
    return _mm_mul_ps(load_half_pair(&block.d), _mm_cvtepi32_ps(_mm_setr_epi32(scale, -min, 0, 0)));
}

__m256i unpack_k_nibbles(const uint8_t* qs, int64_t j) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(qs + j / 2 * 32));
    const __m256i shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(static_cast<int>(j % 2 * 4)));
    return _mm256_and_si256(shifted, _mm256_set1_epi8(15));
}

struct FormatQ4_K {
    static constexpr bool kIsSigned = false, kHasMinimum = true, kHasFactors = false;
    static Block32 unpack(const uint8_t* row, int64_t index) {
        const auto* block = block_at<BlockQ4_K>(row, index / 8);
        return make_block(unpack_k_nibbles(block->qs, index % 8), unpack_scales(*block, index % 8));
    }
};

struct FormatQ5_K {
    static constexpr bool kIsSigned = false, kHasMinimum = true, kHasFactors = false;
    static Block32 unpack(const uint8_t* row, int64_t index) {
        const auto* block = block_at<BlockQ5_K>(row, index / 8);
        const int64_t j = index % 8;
        const __m256i high_bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block->qh));
        const __m256i high = _mm256_srl_epi16(high_bytes, _mm_cvtsi32_si128(static_cast<int>(j)));
        const __m256i fifth = _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(1)), 4);
        return make_block(_mm256_or_si256(unpack_k_nibbles(block->qs, j), fifth), unpack_scales(*block, j));
    }
};

struct FormatQ6_K {
    static constexpr bool kIsSigned = true, kHasMinimum = false, kHasFactors = true;
    static Block32 unpack(const uint8_t* row, int64_t index) {
        const auto* block = block_at<BlockQ6_K>(row, index / 8);
        const int64_t half = index % 8 / 4;
        const int64_t j = index % 4;
        const uint8_t* const low_bytes = block->ql + half * 64 + j % 2 * 32;
        const __m256i low_pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low_bytes));
        const __m256i high_pairs =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block->qh + half * 32));
        const __m256i low = _mm256_srl_epi16(low_pairs, _mm_cvtsi32_si128(static_cast<int>(j / 2 * 4)));
        const __m256i high = _mm256_srl_epi16(high_pairs, _mm_cvtsi32_si128(static_cast<int>(j * 2)));
        const __m256i high_bits = _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(3)), 4);
        const __m256i q = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), high_bits);
        const int8_t* const factors = block->scales + half * 8 + j * 2;
        return {_mm256_sub_epi8(q, _mm256_set1_epi8(32)),
                _mm256_set_m128i(_mm_set1_epi16(factors[1]), _mm_set1_epi16(factors[0])),
                load_half(&block->d)};
    }
};

// ---- quantised matmul ----------------------------------------------------------------------------------

// int32 lanes whose total is the dot product of the block with 32 activations.
template <class Format>
__m256i dot_lanes(const Block32& block, const int8_t* activations) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(activations));
    const __m256i pairs = Format::kIsSigned
                              ? _mm256_maddubs_epi16(_mm256_abs_epi8(block.q), _mm256_sign_epi8(x, block.q))
                              : _mm256_maddubs_epi16(block.q, x);
    return _mm256_madd_epi16(pairs, Format::kHasFactors ? block.factors : _mm256_set1_epi16(1));
}

template <class Format>
__m128 accumulate(__m128 acc, __m128 sums, __m128 scale, __m128 minimum, __m128 scaled_sum) {
    acc = _mm_fmadd_ps(sums, scale, acc);
    return Format::kHasMinimum ? _mm_fmadd_ps(minimum, scaled_sum, acc) : acc;
}

// One row, the four tokens of a tile: q [4][cols], scale and scaled_sum [blocks][4].
template <class Format>
__m128 dot_row_by_4_tokens(const uint8_t* row, int64_t cols, const Activations& tile) {
    const int8_t* q = tile.q;
    __m128 acc = _mm_setzero_ps();
    for (int64_t b = 0; b < cols / kActivationBlock; b++, q += kActivationBlock) {
        const Block32 block = Format::unpack(row, b);
        const __m128 sums =
            sum_across(dot_lanes<Format>(block, q), dot_lanes<Format>(block, q + cols),
                       dot_lanes<Format>(block, q + 2 * cols), dot_lanes<Format>(block, q + 3 * cols));
        const __m128 scale =
            _mm_mul_ps(_mm_broadcastss_ps(block.scales), _mm_loadu_ps(tile.scale + b * kTokenTile));
        const __m128 minimum = _mm_shuffle_ps(block.scales, block.scales, 0x55);
        acc = accumulate<Format>(acc, sums, scale, minimum, _mm_loadu_ps(tile.scaled_sum + b * kTokenTile));
    }
    return acc;
}

// Four rows, one token; scale and scaled_sum point at the token's lane.
template <class Format>
__m128 dot_4_rows_by_token(const uint8_t* const (&rows)[4], int64_t cols, const Activations& token) {
    __m128 acc = _mm_setzero_ps();
    // Four rows read side by side are four short streams to the hardware prefetcher; lead it to the next
    // four.
    const uint8_t* const next_rows = rows[3] + (rows[1] - rows[0]);
    const int64_t bytes_per_step = 4 * (rows[1] - rows[0]) / (cols / kActivationBlock);
    for (int64_t b = 0; b < cols / kActivationBlock; b++) {
        for (int64_t line = 0; line < bytes_per_step; line += 64) {
            _mm_prefetch(reinterpret_cast<const char*>(next_rows + b * bytes_per_step + line), _MM_HINT_T0);
        }
        const int8_t* const q = token.q + b * kActivationBlock;
        const Block32 w0 = Format::unpack(rows[0], b), w1 = Format::unpack(rows[1], b);
        const Block32 w2 = Format::unpack(rows[2], b), w3 = Format::unpack(rows[3], b);
        const __m128 sums = sum_across(dot_lanes<Format>(w0, q), dot_lanes<Format>(w1, q),
                                       dot_lanes<Format>(w2, q), dot_lanes<Format>(w3, q));
        const __m128 scales01 = _mm_unpacklo_ps(w0.scales, w1.scales);
        const __m128 scales23 = _mm_unpacklo_ps(w2.scales, w3.scales);
        const __m128 scale =
            _mm_mul_ps(_mm_movelh_ps(scales01, scales23), _mm_set1_ps(token.scale[b * kTokenTile]));
        const __m128 minimum = _mm_movehl_ps(scales23, scales01);
        acc = accumulate<Format>(acc, sums, scale, minimum, _mm_set1_ps(token.scaled_sum[b * kTokenTile]));
    }
    return acc;
}

// The activations from token `first` on; its scales start at lane first % 4.
Activations tokens_from(const Activations& all, int64_t first) {
    const int64_t scales_at =
        first / kTokenTile * (all.cols / kActivationBlock) * kTokenTile + first % kTokenTile;
    return {all.num_tokens - first,   all.cols,
            all.x + first * all.cols, all.q + first * all.cols,
            all.scale + scales_at,    all.scaled_sum + scales_at};
}

// Pointers to four rows from `row` on; beyond the end the last one again.
void point_at_rows(const MatmulSlice& slice, int64_t row, const uint8_t* (&rows)[4]) {
    for (int64_t i = 0; i < 4; i++) {
        const int64_t index = row + i < slice.row_end ? row + i : slice.row_end - 1;
        rows[i] = slice.weight->data + index * slice.weight->row_bytes;
    }
}

// How many tokens pass over a slice's rows before the next ones: their activations stay in the L1 cache.
constexpr int64_t kTokensPerPass = 32;

// Runs dot_tile on (row, tile of 4 tokens) and dot_rows on (4 rows, token) until all of the slice is done.
// Three left-over tokens are a tile whose padding is not stored; one or two go by 4 rows, which is quicker.
template <class DotTile, class DotRows>
void for_each_tile(const MatmulSlice& slice, const Activations& activations, DotTile dot_tile,
                   DotRows dot_rows) {
    const int64_t num_tokens = activations.num_tokens;
    const int64_t num_left = num_tokens % kTokenTile < 3 ? num_tokens % kTokenTile : 0;
    const int64_t num_tiled = num_tokens - num_left;
    for (int64_t pass = 0; pass < num_tiled; pass += kTokensPerPass) {
        const int64_t pass_end = pass + kTokensPerPass < num_tiled ? pass + kTokensPerPass : num_tiled;
        for (int64_t row = slice.row_begin; row < slice.row_end; row++) {
            const uint8_t* const weight = slice.weight->data + row * slice.weight->row_bytes;
            for (int64_t token = pass; token < pass_end; token += kTokenTile) {
                float result[kTokenTile];
                _mm_storeu_ps(result, dot_tile(weight, activations.cols, tokens_from(activations, token)));
                for (int64_t i = 0; i < kTokenTile && token + i < pass_end; i++) {
                    slice.out[(token + i) * slice.out_stride + row] = result[i];
                }
            }
        }
    }
    for (int64_t row = slice.row_begin; num_left > 0 && row < slice.row_end; row += 4) {
        const int64_t num_rows = slice.row_end - row < 4 ? slice.row_end - row : 4;
        const uint8_t* rows[4];
        point_at_rows(slice, row, rows);
        for (int64_t token = num_tiled; token < num_tokens; token++) {
            float result[4];
            _mm_storeu_ps(result, dot_rows(rows, activations.cols, tokens_from(activations, token)));
            std::memcpy(slice.out + token * slice.out_stride + row, result,
                        static_cast<size_t>(num_rows) * sizeof(float));
        }
    }
}

template <class Format>
void matmul_quantized(const MatmulSlice& slice, const Activations& activations) {
    for_each_tile(slice, activations, dot_row_by_4_tokens<Format>, dot_4_rows_by_token<Format>);
}

// ---- float matmul --------------------------------------------------------------------------------------

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
__m256 load_weights(const uint8_t* row, int64_t i, int64_t count) {
    if (count >= kLanes) {
        return Format::load(row + i * Format::kSize);
    }
    uint8_t padded[kLanes * sizeof(float)] = {};
    std::memcpy(padded, row + i * Format::kSize, static_cast<size_t>(count * Format::kSize));
    return Format::load(padded);
}

__m128 sum_each(const __m256 (&acc)[4]) {
    return _mm_setr_ps(sum_lanes(acc[0]), sum_lanes(acc[1]), sum_lanes(acc[2]), sum_lanes(acc[3]));
}

template <class Format>
__m128 dot_float_row_by_4_tokens(const uint8_t* row, int64_t cols, const Activations& tile) {
    __m256 acc[4] = {};
    for (int64_t i = 0; i < cols; i += kLanes) {
        const __m256 weights = load_weights<Format>(row, i, cols - i);
        for (int64_t t = 0; t < 4; t++) {
            acc[t] = _mm256_fmadd_ps(weights, load_floats(tile.x + t * cols + i, cols - i), acc[t]);
        }
    }
    return sum_each(acc);
}

template <class Format>
__m128 dot_4_float_rows_by_token(const uint8_t* const (&rows)[4], int64_t cols, const Activations& token) {
    __m256 acc[4] = {};
    for (int64_t i = 0; i < cols; i += kLanes) {
        const __m256 x = load_floats(token.x + i, cols - i);
        for (int64_t r = 0; r < 4; r++) {
            acc[r] = _mm256_fmadd_ps(load_weights<Format>(rows[r], i, cols - i), x, acc[r]);
        }
    }
    return sum_each(acc);
}

template <class Format>
void matmul_float(const MatmulSlice& slice, const Activations& activations) {
    for_each_tile(slice, activations, dot_float_row_by_4_tokens<Format>, dot_4_float_rows_by_token<Format>);
}

} // namespace

void set_avx2_matmul(KernelTable& table) {
    const auto set = [&table](QuantType type, auto kernel) { table.matmul[static_cast<int>(type)] = kernel; };
    set(QuantType::F32, matmul_float<FormatF32>);
    set(QuantType::F16, matmul_float<FormatF16>);
    set(QuantType::BF16, matmul_float<FormatBF16>);
    set(QuantType::Q4_0, matmul_quantized<FormatQ4_0>);
    set(QuantType::Q4_1, matmul_quantized<FormatQ4_1>);
    set(QuantType::Q5_0, matmul_quantized<FormatQ5_0>);
    set(QuantType::Q5_1, matmul_quantized<FormatQ5_1>);
    set(QuantType::Q8_0, matmul_quantized<FormatQ8_0>);
    set(QuantType::Q4_K, matmul_quantized<FormatQ4_K>);
    set(QuantType::Q5_K, matmul_quantized<FormatQ5_K>);
    set(QuantType::Q6_K, matmul_quantized<FormatQ6_K>);
}

} // namespace ridgeline
