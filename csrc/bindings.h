// What the binding files share: array types, and checks that raise. Only bindings*.cpp know nanobind.
//
// They check shapes, types, contiguity and values, release the GIL and call the ops. What is wrong raises
// ValueError (TypeError for an array of another type); kernels/ops.py turns that into ridgeline's own errors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>

#include "dispatch.h"
#include "growing_buffer.h"
#include "ops/batch.h"
#include "ops/kv_cache.h"
#include "thread_pool.h"

namespace ridgeline {

namespace nb = nanobind;

template <class Value, size_t ndim>
using Array = nb::ndarray<Value, nb::ndim<ndim>, nb::c_contig, nb::device::cpu>;
using Bytes = Array<const uint8_t, 1>;
using Ints = Array<const int32_t, 1>;
using IntTable = Array<const int32_t, 2>;
using Floats = Array<const float, 1>;
using FloatRows = Array<const float, 2>;
using FloatRowsOut = Array<float, 2>;
using FloatHeads = Array<const float, 3>;
using FloatHeadsOut = Array<float, 3>;
using KVArray = Array<uint16_t, 5>;

// Throws ValueError unless the condition holds.
void require(bool condition, const std::string& message);

// Throws ValueError with what a check has found, if anything.
void require_no_error(const std::string& error);

template <class A, class B>
void require_same_shape(const A& a, const B& b, const char* names) {
    for (size_t i = 0; i < a.ndim(); i++) {
        require(a.shape(i) == b.shape(i), std::string(names) + " differ in shape");
    }
}

void require_block_size(int64_t block_size);

// The kernels of that name, the fastest ones if none.
const KernelTable& kernels_called(const std::optional<std::string>& isa);

std::unique_ptr<ThreadPool> make_pool(int num_threads);

// A cache array [blocks, layers, KV heads, 2, head_dim * block_size] as the ops see it.
KVCache view_cache(const KVArray& array, int64_t head_dim, int64_t block_size);

// The part of a batch that attention needs; the rest is zero.
Batch view_batch(const Ints& positions, const Ints& query_start_loc, const Ints& seq_lens,
                 const IntTable& block_tables);

// A stored matrix and its panels.
struct PackedWeight {
    PackedMatrix matrix;
    GrowingBuffer<uint8_t> panels;
};

// Packs a stored matrix; throws ValueError if its type, size or alignment is wrong.
void pack_stored(const Bytes& data, int type_id, int64_t rows, int64_t cols, PackedWeight& out);

// Single ops, for the tests of the kernels.
void bind_ops(nb::module_& m);

// Micro-benchmarks, for calibration.
void bind_machine(nb::module_& m);

} // namespace ridgeline
