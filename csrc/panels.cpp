#include "panels.h"

#include "half.h"

namespace ridgeline {

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
    const BlockOffsets offsets = block_offsets(kPanelParts[static_cast<int>(matrix.type)], block);
    const uint8_t* const super = panel + offsets.super;
    const uint8_t* const scales = panel + offsets.scales;
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
    int64_t panel_bytes = round_to_line(cols * parts.quant_bytes / kBlockCols);
    if (!is_float_type(type)) {
        const int64_t unit_blocks = kCacheLine / parts.scale_bytes;
        const int64_t num_units = (cols / kBlockCols + unit_blocks - 1) / unit_blocks;
        panel_bytes = num_units * (kCacheLine + unit_blocks * parts.quant_bytes) +
                      cols / kSuperBlock * parts.super_bytes;
    }
    return {type, rows, cols, panel_bytes, 1, panel_bytes, nullptr};
}

void unpack_row_block(const PackedMatrix& matrix, const uint8_t* panel, int64_t row, int64_t block,
                      RowBlock& out) {
    const BlockOffsets offsets = block_offsets(kPanelParts[static_cast<int>(matrix.type)], block);
    unpack_quants(matrix.type, panel + offsets.quants, row, out.q);
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
