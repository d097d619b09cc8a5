#include "panels.h"

#include "half.h"

namespace ridgeline {

const PanelParts kPanelParts[kNumQuantTypes] = {
    {0, 0, 16 * 32 * 4},      // F32
    {0, 0, 16 * 32 * 2},      // F16
    {0, 0, 16 * 32 * 2},      // BF16
    {0, 32, 256},             // Q4_0
    {0, 64, 256},             // Q4_1
    {0, 32, 256 + 64},        // Q5_0
    {0, 64, 256 + 64},        // Q5_1
    {0, 32, 512},             // Q8_0
    {64, 32, 256},            // Q4_K
    {64, 32, 256 + 64},       // Q5_K
    {32, 32, 256 + 128},      // Q6_K
};

namespace {

int64_t round_to_line(int64_t num_bytes) {
    return (num_bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

float load_half(const uint8_t* halves, int64_t index) {
    uint16_t half;
    std::memcpy(&half, halves + 2 * index, sizeof half);
    return half_to_float(half);
}

int32_t nibble_at(const uint8_t* quants, int64_t byte, int64_t col) {
    const uint8_t pair = quants[col % 16 / 4 * 64 + byte];
    return col < 16 ? pair & 15 : pair >> 4;
}

// The quants of one row of a block; Q6_K's are still without offset and scales.
void unpack_quants(QuantType type, const uint8_t* quants, int64_t row, int32_t* q) {
    for (int64_t col = 0; col < kBlockCols; col++) {
        const int64_t byte = 4 * row + col % 4;
        const int64_t step = col / 4;
        switch (type) {
        case QuantType::Q8_0:
            q[col] = static_cast<int8_t>(quants[64 * step + byte]);
            break;
        case QuantType::Q5_0:
        case QuantType::Q5_1:
        case QuantType::Q5_K:
            q[col] = nibble_at(quants, byte, col) | (quants[256 + byte] >> step & 1) << 4;
            break;
        case QuantType::Q6_K:
            q[col] = nibble_at(quants, byte, col) |
                     (quants[256 + step / 4 * 64 + byte] >> (2 * (step % 4)) & 3) << 4;
            break;
        default:
            q[col] = nibble_at(quants, byte, col);
        }
    }
}

void unpack_scales(const PackedMatrix& matrix, const uint8_t* panel, int64_t row, int64_t block,
                   RowBlock& out) {
    const PanelParts& parts = kPanelParts[static_cast<int>(matrix.type)];
    const uint8_t* const super = panel + block / 8 * parts.super_bytes;
    const uint8_t* const scales = panel + matrix.scales_at + block * parts.scale_bytes;
    out.minimum = 0.0f;
    switch (matrix.type) {
    case QuantType::Q4_0:
        out.scale = load_half(scales, row);
        out.minimum = -8.0f * out.scale;
        break;
    case QuantType::Q5_0:
        out.scale = load_half(scales, row);
        out.minimum = -16.0f * out.scale;
        break;
    case QuantType::Q4_1:
    case QuantType::Q5_1:
        out.scale = load_half(scales, row);
        out.minimum = load_half(scales, kPanelRows + row);
        break;
    case QuantType::Q4_K:
    case QuantType::Q5_K:
        out.scale = load_half(super, row) * static_cast<float>(scales[row]);
        out.minimum = load_half(super, kPanelRows + row) * -static_cast<float>(scales[kPanelRows + row]);
        break;
    case QuantType::Q6_K:
        out.scale = load_half(super, row);
        for (int64_t col = 0; col < kBlockCols; col++) {
            out.q[col] = static_cast<int8_t>(scales[col / 16 * kPanelRows + row]) * (out.q[col] - 32);
        }
        break;
    default:
        out.scale = load_half(scales, row);
    }
}

} // namespace

PackedMatrix plan_panels(QuantType type, int64_t rows, int64_t cols) {
    const PanelParts& parts = kPanelParts[static_cast<int>(type)];
    PackedMatrix matrix = {type, rows, cols, 0, 0, 0, 1, 0, nullptr};
    const int64_t num_blocks = cols / kBlockCols;
    matrix.scales_at = cols / kSuperBlock * parts.super_bytes;
    matrix.quants_at = round_to_line(matrix.scales_at + num_blocks * parts.scale_bytes);
    matrix.panel_bytes = matrix.quants_at + round_to_line(cols * parts.quant_bytes / kBlockCols);
    matrix.run_stride = matrix.panel_bytes;
    return matrix;
}

void unpack_row_block(const PackedMatrix& matrix, const uint8_t* panel, int64_t row, int64_t block,
                      RowBlock& out) {
    const int64_t quant_bytes = kPanelParts[static_cast<int>(matrix.type)].quant_bytes;
    unpack_quants(matrix.type, panel + matrix.quants_at + block * quant_bytes, row, out.q);
    unpack_scales(matrix, panel, row, block, out);
}

float unpack_float(const PackedMatrix& matrix, const uint8_t* panel, int64_t row, int64_t col) {
    const int64_t index = col * kPanelRows + row;
    if (matrix.type == QuantType::F32) {
        float value;
        std::memcpy(&value, panel + 4 * index, sizeof value);
        return value;
    }
    if (matrix.type == QuantType::F16) {
        return load_half(panel, index);
    }
    uint16_t high;
    std::memcpy(&high, panel + 2 * index, sizeof high);
    return float_from_bits(static_cast<uint32_t>(high) << 16);
}

void unpack_row(const PackedMatrix& matrix, int64_t row, float* out) {
    const uint8_t* const panel = matrix.panel(row / kPanelRows);
    if (is_float_type(matrix.type)) {
        for (int64_t col = 0; col < matrix.cols; col++) {
            out[col] = unpack_float(matrix, panel, row % kPanelRows, col);
        }
        return;
    }
    for (int64_t block = 0; block < matrix.cols / kBlockCols; block++) {
        RowBlock values;
        unpack_row_block(matrix, panel, row % kPanelRows, block, values);
        for (int64_t i = 0; i < kBlockCols; i++) {
            *out++ = values.scale * static_cast<float>(values.q[i]) + values.minimum;
        }
    }
}

} // namespace ridgeline
