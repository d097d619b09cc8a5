// The sampler's loops compiled for AVX-512 (F and DQ).
#include "isa/sampling_loops.h"

namespace ridgeline {

const SamplingKernels& avx512_sampling_kernels() {
    return kSamplingLoops;
}

} // namespace ridgeline
