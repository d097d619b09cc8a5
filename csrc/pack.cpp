// Packing: a stored matrix's quant blocks into panels. One function a family of formats puts one row of one
// stored quant block in place; the layout is told in panels.h.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "panels.h"

namespace ridgeline {

namespace {

// Where the parts of one block of 32 columns of a panel begin.
struct BlockPlace {
    uint8_t* super;
    uint8_t* scales;
    uint8_t* quants;
};

template <class Block>
const Block& block_at(const uint8_t* row, int64_t index) {
    return *reinterpret_cast<const Block*>(row + index * static_cast<int64_t>(sizeof(Block)));
}

void put_half(uint8_t* halves, int64_t index, uint16_t half) {
    std::memcpy(halves + 2 * index, &half, sizeof half);
}

// num_groups groups of 4 columns of one row, each into its 64 bytes.
void put_groups(const void* bytes, int64_t num_groups, int64_t row, uint8_t* quants) {
    for (int64_t j = 0; j < num_groups; j++) {
        std::memcpy(quants + 64 * j + 4 * row, static_cast<const uint8_t*>(bytes) + 4 * j, 4);
    }
}

void put_fifth_bits(uint32_t bits, int64_t row, uint8_t* plane) {
    for (int64_t t = 0; t < 4; t++) {
        // Bits t, t + 4, ..., t + 28, gathered into a byte.
        uint32_t x = bits >> t & 0x11111111;
        x = (x | x >> 3) & 0x03030303;
        x = (x | x >> 6) & 0x000f000f;
        plane[4 * row + t] = static_cast<uint8_t>(x | x >> 12);
    }
}

// Elements i and i + 16 of a sub-block of the K-quants, in one byte.
void join_nibbles(const uint8_t* qs, int shift, uint8_t* pairs) {
    for (int i = 0; i < 16; i++) {
        pairs[i] = static_cast<uint8_t>((qs[i] >> shift & 15) | (qs[i + 16] >> shift & 15) << 4);
    }
}

template <class Block>
void pack_32(const uint8_t* stored, int64_t index, int64_t row, const BlockPlace& place) {
    const auto& block = block_at<Block>(stored, index);
    put_half(place.scales, row, block.d);
    put_groups(block.qs, sizeof block.qs / 4, row, place.quants);
    if constexpr (std::is_same_v<Block, BlockQ4_1> || std::is_same_v<Block, BlockQ5_1>) {
        put_half(place.scales, kPanelRows + row, block.m);
    }
    if constexpr (std::is_same_v<Block, BlockQ5_0> || std::is_same_v<Block, BlockQ5_1>) {
        uint32_t bits;
        std::memcpy(&bits, block.qh, sizeof bits);
        put_fifth_bits(bits, row, place.quants + 256);
    }
}

// The 6-bit scale and min of sub-block j: the first four lie in the low 6 bits of bytes j and j + 4; of the
// others the low nibbles share byte j + 4 and the high two bits are the spare ones of bytes j - 4 and j.
void put_scale_and_min(const uint8_t* scales, int64_t j, int64_t row, uint8_t* out) {
    const bool is_low = j < 4;
    const int scale = is_low ? scales[j] & 63 : (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
    const int min = is_low ? scales[j + 4] & 63 : (scales[j + 4] >> 4) | (scales[j] >> 6) << 4;
    out[row] = static_cast<uint8_t>(scale);
    out[kPanelRows + row] = static_cast<uint8_t>(min);
}

template <class Block>
void pack_k(const uint8_t* stored, int64_t index, int64_t row, const BlockPlace& place) {
    const auto& block = block_at<Block>(stored, index / 8);
    const int64_t j = index % 8;
    put_half(place.super, row, block.d);
    put_half(place.super, kPanelRows + row, block.dmin);
    put_scale_and_min(block.scales, j, row, place.scales);
    uint8_t pairs[16];
    join_nibbles(block.qs + j / 2 * 32, static_cast<int>(j % 2 * 4), pairs);
    put_groups(pairs, 4, row, place.quants);
    if constexpr (std::is_same_v<Block, BlockQ5_K>) {
        uint32_t bits = 0;
        for (int i = 0; i < 32; i++) {
            bits |= static_cast<uint32_t>(block.qh[i] >> j & 1) << i;
        }
        put_fifth_bits(bits, row, place.quants + 256);
    }
}

void pack_q6_k(const uint8_t* stored, int64_t index, int64_t row, const BlockPlace& place) {
    const auto& block = block_at<BlockQ6_K>(stored, index / 8);
    const int64_t half = index % 8 / 4;
    const int64_t j = index % 4;
    put_half(place.super, row, block.d);
    for (int64_t i = 0; i < 2; i++) {
        place.scales[i * kPanelRows + row] = static_cast<uint8_t>(block.scales[half * 8 + j * 2 + i]);
    }
    uint8_t pairs[16];
    join_nibbles(block.ql + half * 64 + j % 2 * 32, static_cast<int>(j / 2 * 4), pairs);
    put_groups(pairs, 4, row, place.quants);
    const uint8_t* const high = block.qh + half * 32;
    for (int64_t col = 0; col < kBlockCols; col++) {
        uint8_t& byte = place.quants[256 + col / 16 * 64 + 4 * row + col % 4];
        byte = static_cast<uint8_t>(byte | (high[col] >> (2 * j) & 3) << (col % 16 / 4 * 2));
    }
}

using PackBlock = void (*)(const uint8_t* stored, int64_t index, int64_t row, const BlockPlace& place);

template <PackBlock pack_block>
void pack_blocks(const PackedMatrix& matrix, const uint8_t* rows, int64_t num_rows, uint8_t* out) {
    const PanelParts& parts = kPanelParts[static_cast<int>(matrix.type)];
    const int64_t row_bytes = row_size_bytes(matrix.type, matrix.cols);
    for (int64_t block = 0; block < matrix.cols / kBlockCols; block++) {
        const BlockOffsets offsets = block_offsets(parts, block);
        const BlockPlace place = {out + offsets.super, out + offsets.scales, out + offsets.quants};
        for (int64_t row = 0; row < num_rows; row++) {
            pack_block(rows + row * row_bytes, block, row, place);
        }
    }
}

template <class Value>
void pack_floats(const PackedMatrix& matrix, const uint8_t* rows, int64_t num_rows, uint8_t* out) {
    const auto* const values = reinterpret_cast<const Value*>(rows);
    auto* const packed = reinterpret_cast<Value*>(out);
    for (int64_t col = 0; col < matrix.cols; col++) {
        for (int64_t row = 0; row < num_rows; row++) {
            packed[col * kPanelRows + row] = values[row * matrix.cols + col];
        }
    }
}

using PackRows = void (*)(const PackedMatrix&, const uint8_t* rows, int64_t num_rows, uint8_t* out);

// Indexed by QuantType.
const PackRows kPackRows[kNumQuantTypes] = {
    pack_floats<uint32_t>,           pack_floats<uint16_t>,           pack_floats<uint16_t>,
    pack_blocks<pack_32<BlockQ4_0>>, pack_blocks<pack_32<BlockQ4_1>>, pack_blocks<pack_32<BlockQ5_0>>,
    pack_blocks<pack_32<BlockQ5_1>>, pack_blocks<pack_32<BlockQ8_0>>, pack_blocks<pack_k<BlockQ4_K>>,
    pack_blocks<pack_k<BlockQ5_K>>,  pack_blocks<pack_q6_k>,
};

} // namespace

void pack_panel(const PackedMatrix& matrix, const uint8_t* stored, int64_t panel, uint8_t* out) {
    const int64_t first = panel * kPanelRows;
    const int64_t num_rows = std::min(kPanelRows, matrix.rows - first);
    const bool is_or_ed = matrix.type == QuantType::Q6_K;
    if (num_rows < kPanelRows || is_or_ed) {
        std::memset(out, 0, static_cast<size_t>(matrix.panel_bytes));
    }
    kPackRows[static_cast<int>(matrix.type)](
        matrix, stored + first * row_size_bytes(matrix.type, matrix.cols), num_rows, out);
}

} // namespace ridgeline
