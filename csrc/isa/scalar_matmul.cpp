// Scalar matmul over panels: the twin of every other instruction set's, written from the definitions in
// dispatch.h (order of operations) and panels.h (layout) and nothing else.
#include <algorithm>
#include <cmath>

#include "isa/scalar.h"

namespace ridgeline {

namespace {

// Tokens that share one unpacked block.
constexpr int64_t kTokens = 16;

int32_t dot8(const RowBlock& block, const int8_t* q) {
    int32_t sum = 0;
    for (int i = 0; i < kBlockCols; i++) {
        sum += block.q[i] * q[i];
    }
    return sum;
}

// Every 4 activations lie in the order 0, 2, 1, 3.
int32_t dot16(const RowBlock& block, const int16_t* q) {
    int32_t sum = 0;
    for (int i = 0; i < kBlockCols; i += 4) {
        sum += block.q[i] * q[i] + block.q[i + 2] * q[i + 1];
        sum += block.q[i + 1] * q[i + 2] + block.q[i + 3] * q[i + 3];
    }
    return sum;
}

template <bool is_int16, bool has_minimum>
float add_block(const RowBlock& block, const Activations& x, int64_t at, float acc) {
    if (is_int16) {
        const auto sum = static_cast<float>(dot16(block, x.q16 + at * kBlockCols));
        return std::fma(sum, block.scale * x.scale16[at], acc);
    }
    const auto sum = static_cast<float>(dot8(block, x.q8 + at * kBlockCols));
    acc = std::fma(sum, block.scale * x.scale8[at], acc);
    return has_minimum ? std::fma(block.minimum, x.sum8[at], acc) : acc;
}

template <bool is_int16, bool has_minimum>
void matmul_quantized(const MatmulSlice& slice, const Activations& activations) {
    const PackedMatrix& weight = *slice.weight;
    const int64_t num_blocks = weight.cols / kBlockCols;
    const int64_t row_end = std::min(weight.rows, slice.panel_end * kPanelRows);
    for (int64_t row = slice.panel_begin * kPanelRows; row < row_end; row++) {
        const uint8_t* const panel = weight.panel(row / kPanelRows);
        for (int64_t first = slice.token_begin; first < slice.token_end; first += kTokens) {
            const int64_t count = std::min(kTokens, slice.token_end - first);
            float acc[kTokens] = {};
            for (int64_t b = 0; b < num_blocks; b++) {
                RowBlock block;
                unpack_row_block(weight, panel, row % kPanelRows, b, block);
                for (int64_t i = 0; i < count; i++) {
                    const int64_t at = input_at(activations, first + i, b);
                    acc[i] = add_block<is_int16, has_minimum>(block, activations, at, acc[i]);
                }
            }
            float* const out = slice.out + (first - slice.token_begin) * slice.out_stride;
            for (int64_t i = 0; i < count; i++) {
                out[i * slice.out_stride + row - slice.panel_begin * kPanelRows] = acc[i];
            }
        }
    }
}

void matmul_float(const MatmulSlice& slice, const Activations& activations) {
    const PackedMatrix& weight = *slice.weight;
    const int64_t row_end = std::min(weight.rows, slice.panel_end * kPanelRows);
    for (int64_t row = slice.panel_begin * kPanelRows; row < row_end; row++) {
        const uint8_t* const panel = weight.panel(row / kPanelRows);
        for (int64_t token = slice.token_begin; token < slice.token_end; token++) {
            const float* const x = activations.x + token * weight.cols;
            float acc = 0.0f;
            for (int64_t col = 0; col < weight.cols; col++) {
                acc = std::fma(unpack_float(weight, panel, row % kPanelRows, col), x[col], acc);
            }
            slice.out[(token - slice.token_begin) * slice.out_stride + row - slice.panel_begin * kPanelRows] =
                acc;
        }
    }
}

} // namespace

void set_scalar_matmul(KernelTable& table) {
    for (int i = 0; i < kNumQuantTypes; i++) {
        table.matmul[i] = matmul_quantized<false, true>;
    }
    for (const QuantType type : {QuantType::F32, QuantType::F16, QuantType::BF16}) {
        table.matmul[static_cast<int>(type)] = matmul_float;
    }
    table.matmul[static_cast<int>(QuantType::Q8_0)] = matmul_quantized<true, false>;
    table.matmul[static_cast<int>(QuantType::Q6_K)] = matmul_quantized<false, false>;
}

} // namespace ridgeline
