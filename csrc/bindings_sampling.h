// The sampler's part of the module ridgeline.kernels._native.
#pragma once

#include <nanobind/nanobind.h>

namespace ridgeline {

void bind_sampling(nanobind::module_& m);

} // namespace ridgeline
