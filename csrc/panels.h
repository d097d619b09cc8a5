// Packed weights: panels of 16 rows, in the order in which the kernels read them.
//
// A panel is one stream of bytes, read from front to back: units of 64 bytes of scales, then the quants of
// the one or two blocks of 32 columns that those scales are for; K-quants have 64 bytes of supers before
// every 8 blocks. (Scales apart from their quants are a second stream, and halve the speed from memory.) Byte
// p = 4 r + t below is row r (0..15), column t (0..3) of a group of four.
//
//   4 bits   64 bytes for each j = 0..3: low nibble of byte p = q[r][4 j + t], high = q[r][16 + 4 j + t]
//   5 bits   the same, then 64 bytes: bit i of byte p = fifth bit of q[r][4 i + t], i = 0..7
//   6 bits   the nibbles, then 2 x 64 bytes: bits 2 j, 2 j + 1 of byte p = the high bits of q[r][4 j + t]
//            (first 64 bytes) and of q[r][16 + 4 j + t] (last 64)
//   8 bits   64 bytes for each j = 0..7: byte p = q[r][4 j + t], signed
//   floats   column by column, 16 values each
//
// Scales per block, 16 rows each: Q4_0, Q5_0, Q8_0 fp16 d; Q4_1, Q5_1 fp16 d, then fp16 m; Q4_K, Q5_K uint8
// scale, then uint8 min; Q6_K int8 scale of columns 0..15, then of 16..31. Supers per 256 columns: Q4_K, Q5_K
// fp16 d, then fp16 dmin; Q6_K fp16 d. So every format is kept exactly, in as many bytes as the file's (the
// K-quants of 4, 5 and 6 bits take 3, 2 and 1% more). A file's quant blocks hold elements i and i + 16 in one
// byte: packing 4 and 8 bits moves groups of 4 bytes. Rows past the last are zeros.
#pragma once

#include <cstdint>

#include "quant_blocks.h"

namespace ridgeline {

constexpr int64_t kPanelRows = 16;
constexpr int64_t kBlockCols = 32;
constexpr int64_t kCacheLine = 64;

// Bytes of the parts of a panel, per block of 32 columns and per 256.
struct PanelParts {
    int64_t super_bytes;
    int64_t scale_bytes;
    int64_t quant_bytes;
};

// Indexed by QuantType. Float types have no scales.
constexpr PanelParts kPanelParts[kNumQuantTypes] = {
    {0, 0, 16 * 32 * 4}, // F32
    {0, 0, 16 * 32 * 2}, // F16
    {0, 0, 16 * 32 * 2}, // BF16
    {0, 32, 256},        // Q4_0
    {0, 64, 256},        // Q4_1
    {0, 32, 256 + 64},   // Q5_0
    {0, 64, 256 + 64},   // Q5_1
    {0, 32, 512},        // Q8_0
    {64, 32, 256},       // Q4_K
    {64, 32, 256 + 64},  // Q5_K
    {64, 32, 256 + 128}, // Q6_K
};

// Where the parts of one block lie in a panel of a quantised type.
struct BlockOffsets {
    int64_t super;
    int64_t scales;
    int64_t quants;
};

constexpr BlockOffsets block_offsets(const PanelParts& parts, int64_t block) {
    const int64_t unit_blocks = kCacheLine / parts.scale_bytes;
    const int64_t unit_bytes = kCacheLine + unit_blocks * parts.quant_bytes;
    const int64_t num_supers = parts.super_bytes == 0 ? 0 : block / 8;
    const int64_t units = block / unit_blocks * unit_bytes;
    // Supers lie before the units of their 8 blocks.
    const int64_t super = num_supers * (8 / unit_blocks * unit_bytes + parts.super_bytes);
    const int64_t unit = units + num_supers * parts.super_bytes + parts.super_bytes;
    return {super, unit + block % unit_blocks * parts.scale_bytes,
            unit + kCacheLine + block % unit_blocks * parts.quant_bytes};
}

// A matrix in panels. Its panels lie in runs of `run` panels that start run_stride bytes apart, so that two
// matrices read together can be interleaved.
struct PackedMatrix {
    QuantType type;
    int64_t rows;
    int64_t cols;
    int64_t panel_bytes;
    int64_t run;
    int64_t run_stride;
    const uint8_t* data;

    int64_t num_panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
    const uint8_t* panel(int64_t index) const {
        return data + index / run * run_stride + index % run * panel_bytes;
    }
};

// The layout of a matrix of whole quant blocks a row; panels one after another, data still null.
PackedMatrix plan_panels(QuantType type, int64_t rows, int64_t cols);

// Packs rows [16 * panel, ...) of a stored matrix into its panel at `out` (matrix.panel_bytes).
void pack_panel(const PackedMatrix& matrix, const uint8_t* stored, int64_t panel, uint8_t* out);

// 32 columns of one row: w = scale * q + minimum. Small integer scales of 16 columns are in q already.
struct RowBlock {
    int32_t q[kBlockCols];
    float scale;
    float minimum;
};

// Reads back block `block` of row `row` (0..15) of a panel of a quantised type.
void unpack_row_block(const PackedMatrix& matrix, const uint8_t* panel, int64_t row, int64_t block,
                      RowBlock& out);

// One weight of a panel of a float type.
float unpack_float(const PackedMatrix& matrix, const uint8_t* panel, int64_t row, int64_t col);

// A whole row in float: scale * q + minimum, rounded twice.
void unpack_row(const PackedMatrix& matrix, int64_t row, float* out);

} // namespace ridgeline
