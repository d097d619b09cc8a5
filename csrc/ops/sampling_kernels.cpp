#include "ops/sampling_kernels.h"

#include <cstring>

namespace ridgeline {

namespace {

struct NamedKernels {
    const char* isa;
    const SamplingKernels& (*kernels)();
    bool (*is_supported)();
};

const NamedKernels kNamedKernels[] = {
    {"scalar", scalar_sampling_kernels, [] { return true; }},
#ifdef RIDGELINE_HAS_X86
    {"avx2", avx2_sampling_kernels, [] { return __builtin_cpu_supports("avx2") != 0; }},
    {"avx512", avx512_sampling_kernels,
     [] { return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0; }},
#endif
};

} // namespace

const SamplingKernels* find_sampling_kernels(const char* isa) {
    const SamplingKernels* found = nullptr;
    for (const NamedKernels& named : kNamedKernels) {
        if (named.is_supported() && (isa == nullptr || std::strcmp(named.isa, isa) == 0)) {
            found = &named.kernels();
        }
    }
    return found;
}

std::vector<const char*> available_sampling_isas() {
    std::vector<const char*> names;
    for (const NamedKernels& named : kNamedKernels) {
        if (named.is_supported()) {
            names.push_back(named.isa);
        }
    }
    return names;
}

} // namespace ridgeline
