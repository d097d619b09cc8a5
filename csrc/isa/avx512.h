// What the AVX-512 files share. Its functions are static, so that none compiled for AVX-512 can stand in for
// one of another instruction set at link time; no file of another instruction set may include this.
#pragma once

#include <immintrin.h>

#include "dispatch.h"

namespace ridgeline {

// Put the matmul and attention kernels into the table.
void set_avx512_matmul(KernelTable& table);
void set_avx512_attention(KernelTable& table);

constexpr int64_t kVector = 16;

static inline __m512 load_half16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}

} // namespace ridgeline
