// The sampler's loops for whatever the compiler's own target is.
#include "isa/sampling_loops.h"

namespace ridgeline {

const SamplingKernels& scalar_sampling_kernels() {
    return kSamplingLoops;
}

} // namespace ridgeline
