// The Python module ridgeline.kernels._native: its model, and what the other binding files share.
#include "bindings.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <tuple>

#include "bindings_sampling.h"
#include "ops/forward.h"

namespace ridgeline {

using namespace nb::literals;

namespace {

using OpSeconds = nb::typed<nb::dict, nb::str, double>;

constexpr int kMaxThreads = 256;

} // namespace

void require(bool condition, const std::string& message) {
    if (!condition) {
        throw nb::value_error(message.c_str());
    }
}

void require_no_error(const std::string& error) {
    require(error.empty(), error);
}

const KernelTable& kernels_called(const std::optional<std::string>& isa) {
    const KernelTable* const kernels = find_kernels(isa ? isa->c_str() : nullptr);
    require(kernels != nullptr, "isa: this machine has no kernels of that name");
    return *kernels;
}

void require_block_size(int64_t block_size) {
    require(block_size >= kHalfTile && block_size % kHalfTile == 0,
            "block_size must be a multiple of " + std::to_string(kHalfTile));
}

std::unique_ptr<ThreadPool> make_pool(int num_threads) {
    require(num_threads >= 1 && num_threads <= kMaxThreads,
            "num_threads must be in 1.." + std::to_string(kMaxThreads));
    return std::make_unique<ThreadPool>(num_threads);
}

KVCache view_cache(const KVArray& array, int64_t head_dim, int64_t block_size) {
    require_block_size(block_size);
    require(array.shape(3) == 2 && static_cast<int64_t>(array.shape(4)) == head_dim * block_size,
            "kv_cache must end in [2, head_dim * block_size]");
    return {array.data(),
            static_cast<int64_t>(array.shape(0)),
            static_cast<int64_t>(array.shape(1)),
            static_cast<int64_t>(array.shape(2)),
            head_dim,
            block_size};
}

Batch view_batch(const Ints& positions, const Ints& query_start_loc, const Ints& seq_lens,
                 const IntTable& block_tables) {
    require(query_start_loc.size() == seq_lens.size() + 1,
            "query_start_loc must be one longer than seq_lens");
    require(block_tables.shape(0) == seq_lens.size(), "block_tables must have one row per sequence");
    Batch batch = {};
    batch.num_tokens = static_cast<int64_t>(positions.size());
    batch.num_seqs = static_cast<int64_t>(seq_lens.size());
    batch.max_blocks = static_cast<int64_t>(block_tables.shape(1));
    batch.positions = positions.data();
    batch.query_start_loc = query_start_loc.data();
    batch.seq_lens = seq_lens.data();
    batch.block_tables = block_tables.data();
    return batch;
}

namespace {

// Name -> (type id, shape, bytes, whether they are part of a mapped file).
using TensorDict = std::map<std::string, std::tuple<int, std::vector<int64_t>, Bytes, bool>>;

// A model with its threads, its packed weights and scratch.
class NativeModel {
  public:
    NativeModel(const ModelDims& dims, const TensorDict& tensors, int64_t block_size, int num_threads,
                const std::optional<std::string>& isa)
        : dims_(dims), block_size_(block_size), isa_(kernels_called(isa).isa) {
        require_block_size(block_size);
        require_no_error(check_dims(dims));
        StoredTensors stored;
        for (const auto& [name, tensor] : tensors) {
            const auto& [type_id, shape, data, is_mapped] = tensor;
            stored[name] = {type_id, shape, data.data(), static_cast<int64_t>(data.size()), is_mapped};
        }
        model_ = std::make_unique<Model>();
        model_->dims = dims;
        model_->kernels = &kernels_called(isa);
        model_->pool = make_pool(num_threads);
        require_no_error(find_weights(dims, stored, model_->weights));
        const nb::gil_scoped_release release;
        pack_weights(*model_->pool, model_->weights);
    }

    OpSeconds run_step(const Batch& batch, const KVArray& kv_cache, const FloatRowsOut& logits) {
        const KVCache cache = view_cache(kv_cache, dims_.head_dim, block_size_);
        require(cache.num_layers == dims_.num_layers && cache.num_kv_heads == dims_.num_kv_heads,
                "kv_cache must be [num_blocks, num_layers, num_kv_heads, 2, head_dim * block_size]");
        require(static_cast<int64_t>(logits.shape(0)) == batch.num_logits &&
                    static_cast<int64_t>(logits.shape(1)) == dims_.vocab_size,
                "logits must be [len(logits_rows), vocab_size]");
        require_no_error(check_batch(batch, cache, dims_.vocab_size));
        double op_seconds[kNumOps] = {};
        bool is_open = false;
        {
            const nb::gil_scoped_release release;
            const std::lock_guard<std::mutex> lock(mutex_);
            is_open = model_ != nullptr;
            if (is_open) {
                forward(*model_, batch, cache, logits.data(), op_seconds);
            }
        }
        require(is_open, "the model is closed");
        OpSeconds seconds;
        for (int i = 0; i < kNumOps; i++) {
            seconds[kOpNames[i]] = op_seconds[i];
        }
        return seconds;
    }

    // Waits for a step in progress, then ends the threads and frees all memory.
    void close() {
        const nb::gil_scoped_release release;
        const std::lock_guard<std::mutex> lock(mutex_);
        model_.reset();
    }

    const char* isa() const { return isa_; }

  private:
    const ModelDims dims_;
    const int64_t block_size_;
    const char* const isa_;
    std::mutex mutex_; // of model_
    std::unique_ptr<Model> model_;
};

void bind_model(nb::module_& m) {
    nb::class_<ModelDims>(m, "ModelDims")
        .def(nb::init<>())
        .def_rw("num_layers", &ModelDims::num_layers)
        .def_rw("hidden_size", &ModelDims::hidden_size)
        .def_rw("num_heads", &ModelDims::num_heads)
        .def_rw("num_kv_heads", &ModelDims::num_kv_heads)
        .def_rw("head_dim", &ModelDims::head_dim)
        .def_rw("ffn_size", &ModelDims::ffn_size)
        .def_rw("vocab_size", &ModelDims::vocab_size)
        .def_rw("rms_norm_eps", &ModelDims::rms_norm_eps)
        .def_rw("rope_is_neox", &ModelDims::rope_is_neox)
        .def_rw("rope_inv_freq", &ModelDims::rope_inv_freq)
        .def_rw("has_qkv_bias", &ModelDims::has_qkv_bias)
        .def_rw("has_qk_norm", &ModelDims::has_qk_norm)
        .def_rw("is_tied", &ModelDims::is_tied);
    nb::class_<NativeModel>(m, "NativeModel")
        .def(nb::init<const ModelDims&, const TensorDict&, int64_t, int, const std::optional<std::string>&>(),
             "dims"_a, "tensors"_a, "block_size"_a, "num_threads"_a, "isa"_a.none())
        .def_prop_ro("isa", &NativeModel::isa)
        .def("close", &NativeModel::close)
        .def(
            "forward",
            [](NativeModel& model, const Ints& token_ids, const Ints& positions, const Ints& query_start_loc,
               const Ints& seq_lens, const IntTable& block_tables, const IntTable& block_copies,
               const Ints& logits_rows, const KVArray& kv_cache, const FloatRowsOut& logits) {
                Batch batch = view_batch(positions, query_start_loc, seq_lens, block_tables);
                require(token_ids.size() == positions.size(), "token_ids and positions differ in length");
                require(block_copies.shape(1) == 2, "block_copies must be [copies, 2]");
                batch.token_ids = token_ids.data();
                batch.block_copies = block_copies.data();
                batch.num_copies = static_cast<int64_t>(block_copies.shape(0));
                batch.logits_rows = logits_rows.data();
                batch.num_logits = static_cast<int64_t>(logits_rows.size());
                return model.run_step(batch, kv_cache, logits);
            },
            "token_ids"_a.noconvert(), "positions"_a.noconvert(), "query_start_loc"_a.noconvert(),
            "seq_lens"_a.noconvert(), "block_tables"_a.noconvert(), "block_copies"_a.noconvert(),
            "logits_rows"_a.noconvert(), "kv_cache"_a.noconvert(), "logits"_a.noconvert());
}

} // namespace

} // namespace ridgeline

NB_MODULE(_native, m) {
    nanobind::set_leak_warnings(false); // a model still alive when the interpreter ends is no error
    m.doc() = "Native kernels of ridgeline; called through ridgeline.kernels.ops only.";
    ridgeline::bind_model(m);
    ridgeline::bind_ops(m);
    ridgeline::bind_machine(m);
    ridgeline::bind_sampling(m);
}
