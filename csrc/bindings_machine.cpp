// Micro-benchmarks as Python classes, for calibration.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <tuple>

#include "bindings.h"
#include "ops/machine.h"
#include "ops/matmul.h"

namespace ridgeline {

using namespace nb::literals;

namespace {

// Threads and numbered memory that stay warm from one measurement to the next.
class MachineBench {
  public:
    MachineBench(int num_threads, int64_t num_bytes)
        : pool_(make_pool(num_threads)), arena_(checked_size(num_bytes)) {
        const nb::gil_scoped_release release;
        number_words(arena_.data(), arena_.size(), *pool_);
    }

    std::tuple<double, uint64_t> stream(int64_t num_bytes, int64_t num_passes) {
        require_part(num_bytes, 1, num_passes);
        const nb::gil_scoped_release release;
        const Measured<uint64_t> measured = stream_memory(arena_.data(), num_bytes, num_passes, *pool_);
        return {measured.seconds, measured.check};
    }

    std::tuple<double, uint64_t> read_parts(int64_t part_bytes, int64_t num_passes) {
        require_part(part_bytes, pool_->num_threads(), num_passes);
        const nb::gil_scoped_release release;
        const Measured<uint64_t> measured =
            ridgeline::read_parts(arena_.data(), part_bytes, num_passes, *pool_);
        return {measured.seconds, measured.check};
    }

    std::tuple<double, int64_t> dispatch(int64_t num_jobs) {
        require(num_jobs > 0, "num_jobs must be positive");
        const nb::gil_scoped_release release;
        const Measured<int64_t> measured = dispatch_jobs(num_jobs, *pool_);
        return {measured.seconds, measured.check};
    }

    std::tuple<double, double> attend(int64_t head_dim, int64_t num_rows, int64_t num_tiles,
                                      int64_t num_passes) {
        require(head_dim > 0 && head_dim % 8 == 0, "head_dim must be a multiple of 8");
        require(num_rows > 0 && num_tiles > 0 && num_passes > 0, "counts must be positive");
        const nb::gil_scoped_release release;
        const Measured<double> measured =
            attend_tiles(kernels_called({}), head_dim, num_rows, num_tiles, num_passes, *pool_);
        return {measured.seconds, measured.check};
    }

    // out = x times the transposed stored matrix, num_passes times; seconds of the fastest pass.
    double matmul(const Bytes& data, int type_id, const FloatRows& x, const FloatRowsOut& out,
                  int64_t num_passes) {
        require(out.shape(0) == x.shape(0), "x and out differ in rows");
        require(num_passes > 0, "num_passes must be positive");
        const auto cols = static_cast<int64_t>(x.shape(1));
        PackedWeight weight;
        pack_stored(data, type_id, static_cast<int64_t>(out.shape(1)), cols, weight);
        const nb::gil_scoped_release release;
        const KernelTable& kernels = kernels_called({});
        ActivationBuffer buffer;
        const Activations input =
            buffer.reserve(input_form(weight.matrix.type), static_cast<int64_t>(x.shape(0)), cols);
        for (int64_t token = 0; token < input.num_tokens; token++) {
            store_input(kernels, input, token, 0, x.data() + token * cols, cols);
        }
        BlockCounters counters;
        const MatmulTarget target = {&weight.matrix, out.data(), weight.matrix.rows};
        double best = std::numeric_limits<double>::infinity();
        for (int64_t pass = 0; pass < num_passes; pass++) {
            const auto start = std::chrono::steady_clock::now();
            ridgeline::matmul(kernels, *pool_, counters, &target, 1, input, [](int64_t, int64_t, int) {});
            best = std::min(best,
                            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        }
        return best;
    }

  private:
    static constexpr int64_t kPartUnit = 256;

    static int64_t checked_size(int64_t num_bytes) {
        require(num_bytes > 0 && num_bytes % kPartUnit == 0, "num_bytes must be a multiple of 256");
        return num_bytes;
    }

    void require_part(int64_t part_bytes, int64_t num_parts, int64_t num_passes) const {
        require(part_bytes > 0 && part_bytes % kPartUnit == 0, "bytes must be a multiple of 256");
        require(part_bytes <= arena_.size() / num_parts, "bytes exceed the memory");
        require(num_passes > 0, "num_passes must be positive");
    }

    std::unique_ptr<ThreadPool> pool_;
    Arena arena_;
};

} // namespace

void bind_machine(nb::module_& m) {
    nb::class_<MachineBench>(m, "MachineBench")
        .def(nb::init<int, int64_t>(), "num_threads"_a, "num_bytes"_a)
        .def("stream", &MachineBench::stream, "num_bytes"_a, "num_passes"_a)
        .def("read_parts", &MachineBench::read_parts, "part_bytes"_a, "num_passes"_a)
        .def("dispatch", &MachineBench::dispatch, "num_jobs"_a)
        .def("attend", &MachineBench::attend, "head_dim"_a, "num_rows"_a, "num_tiles"_a, "num_passes"_a)
        .def("matmul", &MachineBench::matmul, "data"_a, "type_id"_a, "x"_a, "out"_a.noconvert(),
             "num_passes"_a);
}

} // namespace ridgeline
