// The Python module ridgeline.kernels._native; with bindings_sampling.cpp all that knows nanobind.
// Checks shapes, types, contiguity and values, releases the GIL, calls the ops. What is wrong raises
// ValueError (TypeError for an array of another type); kernels/ops.py turns that into ridgeline's own errors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "bindings_sampling.h"
#include "ops/attention.h"
#include "ops/forward.h"
#include "ops/matmul.h"
#include "ops/rope.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {

namespace {

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

using OpSeconds = nb::typed<nb::dict, nb::str, double>;

constexpr int kMaxThreads = 256;
constexpr int kMaxIsas = 8;

void require(bool condition, const std::string& message) {
    if (!condition) {
        throw nb::value_error(message.c_str());
    }
}

void require_no_error(const std::string& error) {
    require(error.empty(), error);
}

template <class A, class B>
void require_same_shape(const A& a, const B& b, const char* names) {
    for (size_t i = 0; i < a.ndim(); i++) {
        require(a.shape(i) == b.shape(i), std::string(names) + " differ in shape");
    }
}

const KernelTable& kernels_called(const std::optional<std::string>& isa) {
    const KernelTable* const kernels = find_kernels(isa ? isa->c_str() : nullptr);
    require(kernels != nullptr, "isa: this machine has no kernels of that name");
    return *kernels;
}

void require_block_size(int64_t block_size) {
    require(block_size >= kPositionTile && block_size % kPositionTile == 0,
            "block_size must be a multiple of " + std::to_string(kPositionTile));
}

std::unique_ptr<ThreadPool> make_pool(int num_threads) {
    require(num_threads >= 1 && num_threads <= kMaxThreads,
            "num_threads must be in 1.." + std::to_string(kMaxThreads));
    return std::make_unique<ThreadPool>(num_threads);
}

std::vector<std::string> available_isas() {
    const KernelTable* tables[kMaxIsas];
    const int count = available_kernels(tables, kMaxIsas);
    std::vector<std::string> names;
    for (int i = 0; i < count; i++) {
        names.emplace_back(tables[i]->isa);
    }
    return names;
}

std::vector<std::tuple<int, std::string, int64_t, int64_t>> quant_types() {
    std::vector<std::tuple<int, std::string, int64_t, int64_t>> rows;
    for (const QuantTypeInfo& info : kQuantTypes) {
        rows.emplace_back(info.type_id, info.name, info.quant_block_size, info.type_size);
    }
    return rows;
}

// ---- the model -----------------------------------------------------------------------------------------

// Name -> (type id, shape, bytes).
using TensorDict = std::map<std::string, std::tuple<int, std::vector<int64_t>, Bytes>>;

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

// A model with its threads and scratch, and the references that keep its weights mapped.
class NativeModel {
  public:
    NativeModel(const ModelDims& dims, TensorDict tensors, int64_t block_size, int num_threads,
                const std::optional<std::string>& isa)
        : dims_(dims), block_size_(block_size), isa_(kernels_called(isa).isa), tensors_(std::move(tensors)) {
        require_block_size(block_size);
        require_no_error(check_dims(dims));
        StoredTensors stored;
        for (const auto& [name, tensor] : tensors_) {
            const auto& [type_id, shape, data] = tensor;
            stored[name] = {type_id, shape, data.data(), static_cast<int64_t>(data.size())};
        }
        model_ = std::make_unique<Model>();
        model_->dims = dims;
        model_->kernels = &kernels_called(isa);
        require_no_error(find_weights(dims, stored, model_->weights));
        model_->pool = make_pool(num_threads);
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

    // Waits for a step in progress, then ends the threads, frees the scratch and lets go of the weights.
    void close() {
        {
            const nb::gil_scoped_release release;
            const std::lock_guard<std::mutex> lock(mutex_);
            model_.reset();
        }
        tensors_.clear();
    }

    const char* isa() const { return isa_; }

  private:
    const ModelDims dims_;
    const int64_t block_size_;
    const char* const isa_;
    TensorDict tensors_;
    std::mutex mutex_; // of model_
    std::unique_ptr<Model> model_;
};

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
        .def(nb::init<const ModelDims&, TensorDict, int64_t, int, const std::optional<std::string>&>(),
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

// ---- single ops, for the tests of the kernels ----------------------------------------------------------

void bind_quantize_activations(const FloatRows& x, const Array<int8_t, 2>& q, const FloatRowsOut& scales,
                               const FloatRowsOut& scaled_sums, const std::optional<std::string>& isa) {
    const KernelTable& kernels = kernels_called(isa);
    const auto num_tokens = static_cast<int64_t>(x.shape(0));
    const auto cols = static_cast<int64_t>(x.shape(1));
    require(cols % kActivationBlock == 0, "x must have a multiple of 32 columns");
    require_same_shape(x, q, "x and q");
    require_same_shape(scales, scaled_sums, "scales and scaled_sums");
    require(scales.shape(0) == x.shape(0) && static_cast<int64_t>(scales.shape(1)) == cols / kActivationBlock,
            "scales must be [tokens, cols / 32]");
    std::vector<float> scale(static_cast<size_t>(cols)), scaled_sum(static_cast<size_t>(cols));
    for (int64_t token = 0; token < num_tokens; token++) {
        kernels.quantize(x.data() + token * cols, cols, q.data() + token * cols, scale.data(),
                         scaled_sum.data());
        for (int64_t b = 0; b < cols / kActivationBlock; b++) {
            scales.data()[token * (cols / kActivationBlock) + b] = scale[static_cast<size_t>(b * kTokenTile)];
            scaled_sums.data()[token * (cols / kActivationBlock) + b] =
                scaled_sum[static_cast<size_t>(b * kTokenTile)];
        }
    }
}

void bind_matmul(const Bytes& data, int type_id, const FloatRows& x, const FloatRowsOut& out, int num_threads,
                 const std::optional<std::string>& isa) {
    const KernelTable& kernels = kernels_called(isa);
    const int type = find_quant_type(type_id);
    require(type >= 0, "type_id is not supported");
    const auto rows = static_cast<int64_t>(out.shape(1));
    const auto cols = static_cast<int64_t>(x.shape(1));
    require(cols % kQuantTypes[type].quant_block_size == 0, "columns must be whole quant blocks");
    const int64_t row_bytes = row_size_bytes(static_cast<QuantType>(type), cols);
    require(static_cast<int64_t>(data.size()) == rows * row_bytes, "data has the wrong size");
    require(out.shape(0) == x.shape(0), "x and out differ in rows");
    const std::unique_ptr<ThreadPool> pool = make_pool(num_threads);
    const nb::gil_scoped_release release;
    ActivationBuffer buffer;
    const Activations input = buffer.reserve(static_cast<int64_t>(x.shape(0)), cols);
    std::copy(x.data(), x.data() + x.size(), input.x);
    for (int64_t token = 0; token < input.num_tokens; token++) {
        quantize_token(kernels, input, token);
    }
    const WeightMatrix weight = {static_cast<QuantType>(type), rows, cols, row_bytes, data.data()};
    const MatmulTarget target = {&weight, out.data(), rows};
    matmul(kernels, *pool, &target, 1, input);
}

void bind_dequantize_rows(const Bytes& data, int type_id, const FloatRowsOut& out,
                          const std::optional<std::string>& isa) {
    const KernelTable& kernels = kernels_called(isa);
    const int type = find_quant_type(type_id);
    require(type >= 0, "type_id is not supported");
    const auto cols = static_cast<int64_t>(out.shape(1));
    require(cols % kQuantTypes[type].quant_block_size == 0, "columns must be whole quant blocks");
    const int64_t row_bytes = row_size_bytes(static_cast<QuantType>(type), cols);
    require(data.size() == out.shape(0) * static_cast<size_t>(row_bytes), "data has the wrong size");
    for (int64_t row = 0; row < static_cast<int64_t>(out.shape(0)); row++) {
        kernels.dequantize[type](data.data() + row * row_bytes, cols, out.data() + row * cols);
    }
}

void bind_rms_norm(const FloatRows& x, const Floats& weight, float eps, const FloatRowsOut& out,
                   const std::optional<std::string>& isa) {
    const KernelTable& kernels = kernels_called(isa);
    require_same_shape(x, out, "x and out");
    require(weight.size() == x.shape(1), "weight must have one value per column");
    const auto cols = static_cast<int64_t>(x.shape(1));
    for (int64_t row = 0; row < static_cast<int64_t>(x.shape(0)); row++) {
        kernels.rms_norm(x.data() + row * cols, weight.data(), cols, eps, out.data() + row * cols);
    }
}

void bind_rope_tables(const Ints& positions, const std::vector<double>& inv_freq, const FloatRowsOut& cosine,
                      const FloatRowsOut& sine) {
    require_same_shape(cosine, sine, "cosine and sine");
    require(cosine.shape(0) == positions.size() && cosine.shape(1) == inv_freq.size(),
            "cosine must be [tokens, pairs]");
    for (size_t token = 0; token < positions.size(); token++) {
        const size_t at = token * inv_freq.size();
        rope_angles(positions.data()[token], inv_freq.data(), static_cast<int64_t>(inv_freq.size()),
                    cosine.data() + at, sine.data() + at);
    }
}

void bind_rope(const FloatHeadsOut& heads, const FloatRows& cosine, const FloatRows& sine, bool is_neox) {
    const size_t num_pairs = cosine.shape(1);
    require_same_shape(cosine, sine, "cosine and sine");
    require(cosine.shape(0) == heads.shape(0), "cosine must have one row per token");
    require(2 * num_pairs <= heads.shape(2), "cosine has more pairs than a head");
    for (size_t token = 0; token < heads.shape(0); token++) {
        const RopeAngles angles = {cosine.data() + token * num_pairs, sine.data() + token * num_pairs,
                                   static_cast<int64_t>(num_pairs), is_neox};
        rope(angles, heads.data() + token * heads.shape(1) * heads.shape(2),
             static_cast<int64_t>(heads.shape(1)), static_cast<int64_t>(heads.shape(2)));
    }
}

void bind_swiglu(const FloatRows& gate, const FloatRows& up, const FloatRowsOut& out,
                 const std::optional<std::string>& isa) {
    const KernelTable& kernels = kernels_called(isa);
    require_same_shape(gate, up, "gate and up");
    require_same_shape(gate, out, "gate and out");
    const auto cols = static_cast<int64_t>(gate.shape(1));
    for (int64_t row = 0; row < static_cast<int64_t>(gate.shape(0)); row++) {
        kernels.swiglu(gate.data() + row * cols, up.data() + row * cols, cols, out.data() + row * cols);
    }
}

// Attention of layer 0 of a cache.
void bind_attention(const FloatHeads& query, const KVArray& kv_cache, const Ints& positions,
                    const Ints& query_start_loc, const Ints& seq_lens, const IntTable& block_tables,
                    const FloatHeadsOut& out, int num_threads, const std::optional<std::string>& isa) {
    const KernelTable& kernels = kernels_called(isa);
    const auto num_heads = static_cast<int64_t>(query.shape(1));
    const auto head_dim = static_cast<int64_t>(query.shape(2));
    require_same_shape(query, out, "query and out");
    require(query.shape(0) == positions.size(), "query and positions differ in length");
    require(head_dim > 0 && head_dim % 8 == 0, "head_dim must be a multiple of 8");
    const KVCache cache = view_cache(kv_cache, head_dim, static_cast<int64_t>(kv_cache.shape(4)) / head_dim);
    require(cache.num_kv_heads > 0 && num_heads % cache.num_kv_heads == 0,
            "query heads must be a multiple of KV heads");
    const Batch batch = view_batch(positions, query_start_loc, seq_lens, block_tables);
    require_no_error(check_sequences(batch, cache));
    const std::unique_ptr<ThreadPool> pool = make_pool(num_threads);
    const nb::gil_scoped_release release;
    AttentionScratch scratch;
    const AttentionCall call = {&batch, &cache, 0, num_heads, query.data(), num_heads * head_dim, out.data()};
    attention(kernels, *pool, call, scratch);
}

void bind_ops(nb::module_& m) {
    m.def("available_isas", &available_isas);
    m.def("quant_types", &quant_types);
    m.def("quantize_activations", &bind_quantize_activations, "x"_a, "q"_a.noconvert(),
          "scales"_a.noconvert(), "scaled_sums"_a.noconvert(), "isa"_a.none());
    m.def("matmul", &bind_matmul, "data"_a, "type_id"_a, "x"_a, "out"_a.noconvert(), "num_threads"_a,
          "isa"_a.none());
    m.def("dequantize_rows", &bind_dequantize_rows, "data"_a, "type_id"_a, "out"_a.noconvert(),
          "isa"_a.none());
    m.def("rms_norm", &bind_rms_norm, "x"_a, "weight"_a, "eps"_a, "out"_a.noconvert(), "isa"_a.none());
    m.def("rope_tables", &bind_rope_tables, "positions"_a, "inv_freq"_a, "cosine"_a.noconvert(),
          "sine"_a.noconvert());
    m.def("rope", &bind_rope, "heads"_a.noconvert(), "cosine"_a, "sine"_a, "is_neox"_a);
    m.def("swiglu", &bind_swiglu, "gate"_a, "up"_a, "out"_a.noconvert(), "isa"_a.none());
    m.def("attention", &bind_attention, "query"_a, "kv_cache"_a.noconvert(), "positions"_a,
          "query_start_loc"_a, "seq_lens"_a, "block_tables"_a, "out"_a.noconvert(), "num_threads"_a,
          "isa"_a.none());
}

} // namespace

} // namespace ridgeline

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false); // a model still alive when the interpreter ends is no error
    m.doc() = "Native kernels of ridgeline; called through ridgeline.kernels.ops only.";
    ridgeline::bind_model(m);
    ridgeline::bind_ops(m);
    ridgeline::bind_sampling(m);
}
