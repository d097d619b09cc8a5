// The loops of the sampler that run over a whole vocabulary, one table an instruction set.
//
// Nothing here sums floats across lanes, so every table gives the same bits.
#pragma once

#include <cstdint>
#include <vector>

namespace ridgeline {

constexpr int64_t kSampleBlock = 64; // tokens that share one maximum or one sum

// Mass of the most probable token; see sampling/selection.py.
constexpr double kMassOfBest = 8796093022208.0; // 2^43

struct SamplingKernels {
    // Largest value of each block of 64 (the last may be shorter); whether any value is NaN.
    bool (*block_maxima_f32)(const float* values, int64_t count, float* maxima);
    bool (*block_maxima_f64)(const double* values, int64_t count, double* maxima);
    // out = exp((value - best) * scale), the same bits as sampling/exponential.py.
    void (*weights_f32)(const float* values, int64_t count, double best, double scale, double* out);
    void (*weights_f64)(const double* values, int64_t count, double best, double scale, double* out);
    // The same as whole multiples of 1 / kMassOfBest, and the sum of each block of 64.
    void (*masses_f32)(const float* values, int64_t count, double best, double scale, int64_t* masses,
                       int64_t* block_sums);
    void (*masses_f64)(const double* values, int64_t count, double best, double scale, int64_t* masses,
                       int64_t* block_sums);
    // The sum of all values, which are lost: the upper half of a width that is a power of two is added to the
    // lower one, until one is left; missing values count as zeros.
    double (*halving_sum)(double* values, int64_t count);
    // Values above and equal to `value`.
    int64_t (*count_above)(const float* values, int64_t count, float value);
    int64_t (*count_equal)(const float* values, int64_t count, float value);
};

const SamplingKernels& scalar_sampling_kernels();
const SamplingKernels& avx2_sampling_kernels();
const SamplingKernels& avx512_sampling_kernels();

// The table called `isa` (the fastest one if null), or null if this machine does not have it.
const SamplingKernels* find_sampling_kernels(const char* isa);

// Names of the tables this machine can run, slowest first.
std::vector<const char*> available_sampling_isas();

} // namespace ridgeline
