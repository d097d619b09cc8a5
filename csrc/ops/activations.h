// The input of a matmul in the forms its weights want.
#pragma once

#include "dispatch.h"
#include "growing_buffer.h"

namespace ridgeline {

// Storage of the input of a matmul, reused from step to step.
struct ActivationBuffer {
    GrowingBuffer<float> x;
    GrowingBuffer<int8_t> q8;
    GrowingBuffer<float> scale8;
    GrowingBuffer<float> sum8;
    GrowingBuffer<int16_t> q16;
    GrowingBuffer<float> scale16;

    // Room for num_tokens rows of cols in `forms`, contents undefined.
    Activations reserve(int forms, int64_t num_tokens, int64_t cols);
};

// Stores columns [col, col + count) of one token, in every form. Unless the only form is float, col and count
// are multiples of 32.
void store_input(const KernelTable& kernels, const Activations& input, int64_t token, int64_t col,
                 const float* values, int64_t count);

} // namespace ridgeline
