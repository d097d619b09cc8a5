#include "ops/activations.h"

#include <cstring>

namespace ridgeline {

Activations ActivationBuffer::reserve(int forms, int64_t num_tokens, int64_t cols) {
    const int64_t num_padded = (num_tokens + kTokenTile - 1) / kTokenTile * kTokenTile;
    const int64_t count = num_padded * cols;
    const int64_t num_scales = num_padded * (cols / kBlockCols);
    Activations input = {forms, num_tokens, cols, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
    if ((forms & kFloatInput) != 0) {
        input.x = x.reserve(count);
    }
    if ((forms & kInt8Input) != 0) {
        input.q8 = q8.reserve(count);
        input.scale8 = scale8.reserve(num_scales);
        input.sum8 = sum8.reserve(num_scales);
    }
    if ((forms & kInt16Input) != 0) {
        input.q16 = q16.reserve(count);
        input.scale16 = scale16.reserve(num_scales);
    }
    return input;
}

void store_input(const KernelTable& kernels, const Activations& input, int64_t token, int64_t col,
                 const float* values, int64_t count) {
    if (input.x != nullptr) {
        std::memcpy(input.x + token * input.cols + col, values, static_cast<size_t>(count) * sizeof(float));
    }
    const int64_t at = input_at(input, token, col / kBlockCols);
    if (input.q8 != nullptr) {
        kernels.quantize8(values, count, input.q8 + at * kBlockCols, input.scale8 + at, input.sum8 + at);
    }
    if (input.q16 != nullptr) {
        kernels.quantize16(values, count, input.q16 + at * kBlockCols, input.scale16 + at);
    }
}

} // namespace ridgeline
