// Matrix times token rows: the input in the form the kernels want, and the split over threads.
#pragma once

#include "dispatch.h"
#include "growing_buffer.h"
#include "thread_pool.h"

namespace ridgeline {

// Storage of the input of a matmul, reused from one to the next.
struct ActivationBuffer {
    GrowingBuffer<float> x;
    GrowingBuffer<int8_t> q;
    GrowingBuffer<float> scale;
    GrowingBuffer<float> scaled_sum;

    // Room for num_tokens rows of cols, contents undefined.
    Activations reserve(int64_t num_tokens, int64_t cols);
};

// Fills q, scale and scaled_sum of one token from its x; does nothing unless cols is a multiple of 32.
void quantize_token(const KernelTable& kernels, const Activations& activations, int64_t token);

// One product of a group that shares its input: out[token * out_stride + row].
struct MatmulTarget {
    const WeightMatrix* weight;
    float* out;
    int64_t out_stride;
};

// All targets * activations as one job over all their rows.
void matmul(const KernelTable& kernels, ThreadPool& pool, const MatmulTarget* targets, int num_targets,
            const Activations& activations);

} // namespace ridgeline
