// The sampler's loops compiled for AVX2.
#include "isa/sampling_loops.h"

namespace ridgeline {

const SamplingKernels& avx2_sampling_kernels() {
    return kSamplingLoops;
}

} // namespace ridgeline
