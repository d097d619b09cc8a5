// The table of AVX-512 with VNNI: matmul and attention are its own, the rest is AVX2's.
#include "isa/avx512.h"

namespace ridgeline {

namespace {

KernelTable make_table() {
    KernelTable table = avx2_kernels();
    table.isa = "avx512_vnni";
    set_avx512_matmul(table);
    set_avx512_attention(table);
    return table;
}

} // namespace

const KernelTable& avx512_kernels() {
    static const KernelTable table = make_table();
    return table;
}

} // namespace ridgeline
