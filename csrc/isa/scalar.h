// What the scalar files share.
#pragma once

#include "dispatch.h"

namespace ridgeline {

// Puts the matmul kernels into the table.
void set_scalar_matmul(KernelTable& table);

} // namespace ridgeline
