#include "dispatch.h"

#include <cstring>

#ifdef RIDGELINE_HAS_X86
#include <cpuid.h>
#endif

namespace ridgeline {

namespace {

struct Candidate {
    const KernelTable& (*table)();
    bool (*is_supported)();
};

bool always() {
    return true;
}

#ifdef RIDGELINE_HAS_X86
bool has_avx2() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c;
}

bool has_avx512_vnni() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

const Candidate kCandidates[] = {
    {scalar_kernels, always},
#ifdef RIDGELINE_HAS_X86
    {avx2_kernels, has_avx2},
    {avx512_kernels, has_avx512_vnni},
#endif
};

} // namespace

int available_kernels(const KernelTable** tables, int capacity) {
    int count = 0;
    for (const Candidate& candidate : kCandidates) {
        if (candidate.is_supported()) {
            if (count < capacity) {
                tables[count] = &candidate.table();
            }
            count++;
        }
    }
    return count;
}

const KernelTable* find_kernels(const char* isa) {
    const KernelTable* found = nullptr;
    for (const Candidate& candidate : kCandidates) {
        if (candidate.is_supported() && (isa == nullptr || std::strcmp(candidate.table().isa, isa) == 0)) {
            found = &candidate.table();
        }
    }
    return found;
}

} // namespace ridgeline
