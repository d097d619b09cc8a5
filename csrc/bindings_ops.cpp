// Single ops as Python functions, for the tests of the kernels.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings.h"
#include "ops/attention.h"
#include "ops/matmul.h"
#include "ops/rope.h"

namespace ridgeline {

using namespace nb::literals;

void pack_stored(const Bytes& data, int type_id, int64_t rows, int64_t cols, PackedWeight& out) {
    const int type = find_quant_type(type_id);
    require(type >= 0, "type_id is not supported");
    require(cols % kQuantTypes[type].quant_block_size == 0, "columns must be whole quant blocks");
    require(static_cast<int64_t>(data.size()) == rows * row_size_bytes(static_cast<QuantType>(type), cols),
            "data has the wrong size");
    require(reinterpret_cast<uintptr_t>(data.data()) % 4 == 0, "data must be aligned to 4 bytes");
    out.matrix = plan_panels(static_cast<QuantType>(type), rows, cols);
    uint8_t* const panels = out.panels.reserve(out.matrix.num_panels() * out.matrix.panel_bytes);
    out.matrix.data = panels;
    for (int64_t panel = 0; panel < out.matrix.num_panels(); panel++) {
        pack_panel(out.matrix, data.data(), panel, panels + panel * out.matrix.panel_bytes);
    }
}

namespace {

constexpr int kMaxIsas = 8;

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

Activations quantize_all(const FloatRows& x, InputForm form, const std::optional<std::string>& isa,
                         ActivationBuffer& buffer) {
    require(x.shape(1) % kBlockCols == 0, "x must have a multiple of 32 columns");
    const auto cols = static_cast<int64_t>(x.shape(1));
    const Activations input = buffer.reserve(form, static_cast<int64_t>(x.shape(0)), cols);
    for (int64_t token = 0; token < input.num_tokens; token++) {
        store_input(kernels_called(isa), input, token, 0, x.data() + token * cols, cols);
    }
    return input;
}

// Calls copy(index in the input, index in rows) for every token's every block.
template <class Copy>
void for_each_block(const Activations& input, const Copy& copy) {
    const int64_t num_blocks = input.cols / kBlockCols;
    for (int64_t i = 0; i < input.num_tokens * num_blocks; i++) {
        copy(input_at(input, i / num_blocks, i % num_blocks), i);
    }
}

void bind_quantize8(const FloatRows& x, const Array<int8_t, 2>& q, const FloatRowsOut& scales,
                    const FloatRowsOut& scaled_sums, const std::optional<std::string>& isa) {
    require_same_shape(x, q, "x and q");
    require_same_shape(scales, scaled_sums, "scales and scaled_sums");
    require(scales.shape(0) == x.shape(0) && scales.shape(1) == x.shape(1) / kBlockCols,
            "scales must be [tokens, cols / 32]");
    ActivationBuffer buffer;
    const Activations input = quantize_all(x, kInt8Input, isa, buffer);
    for_each_block(input, [&](int64_t at, int64_t i) {
        std::copy_n(input.q8 + at * kBlockCols, kBlockCols, q.data() + i * kBlockCols);
        scales.data()[i] = input.scale8[at];
        scaled_sums.data()[i] = input.sum8[at];
    });
}

void bind_quantize16(const FloatRows& x, const Array<int16_t, 2>& q, const FloatRowsOut& scales,
                     const std::optional<std::string>& isa) {
    require_same_shape(x, q, "x and q");
    require(scales.shape(0) == x.shape(0) && scales.shape(1) == x.shape(1) / kBlockCols,
            "scales must be [tokens, cols / 32]");
    ActivationBuffer buffer;
    const Activations input = quantize_all(x, kInt16Input, isa, buffer);
    for_each_block(input, [&](int64_t at, int64_t i) {
        std::copy_n(input.q16 + at * kBlockCols, kBlockCols, q.data() + i * kBlockCols);
        scales.data()[i] = input.scale16[at];
    });
}

void bind_matmul(const Bytes& data, int type_id, const FloatRows& x, const FloatRowsOut& out, int num_threads,
                 const std::optional<std::string>& isa) {
    const KernelTable& kernels = kernels_called(isa);
    PackedWeight weight;
    require(out.shape(0) == x.shape(0), "x and out differ in rows");
    const auto cols = static_cast<int64_t>(x.shape(1));
    pack_stored(data, type_id, static_cast<int64_t>(out.shape(1)), cols, weight);
    const std::unique_ptr<ThreadPool> pool = make_pool(num_threads);
    const nb::gil_scoped_release release;
    ActivationBuffer buffer;
    const Activations input =
        buffer.reserve(input_form(weight.matrix.type), static_cast<int64_t>(x.shape(0)), cols);
    for (int64_t token = 0; token < input.num_tokens; token++) {
        store_input(kernels, input, token, 0, x.data() + token * cols, cols);
    }
    BlockCounters counters;
    const MatmulTarget target = {&weight.matrix, out.data(), weight.matrix.rows};
    matmul(kernels, *pool, counters, &target, 1, input, [](int64_t, int64_t, int) {});
}

void bind_dequantize_rows(const Bytes& data, int type_id, const FloatRowsOut& out) {
    PackedWeight weight;
    const auto cols = static_cast<int64_t>(out.shape(1));
    pack_stored(data, type_id, static_cast<int64_t>(out.shape(0)), cols, weight);
    for (int64_t row = 0; row < weight.matrix.rows; row++) {
        unpack_row(weight.matrix, row, out.data() + row * cols);
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
    ActivationBuffer buffer;
    const int64_t width = num_heads * head_dim;
    const Activations result = buffer.reserve(kFloatInput, batch.num_tokens, width);
    attention(kernels, *pool, {&batch, &cache, 0, num_heads, query.data(), width, &result}, scratch);
    std::copy(result.x, result.x + batch.num_tokens * width, out.data());
}

} // namespace

void bind_ops(nb::module_& m) {
    m.def("available_isas", &available_isas);
    m.def("quant_types", &quant_types);
    m.def("quantize8", &bind_quantize8, "x"_a, "q"_a.noconvert(), "scales"_a.noconvert(),
          "scaled_sums"_a.noconvert(), "isa"_a.none());
    m.def("quantize16", &bind_quantize16, "x"_a, "q"_a.noconvert(), "scales"_a.noconvert(), "isa"_a.none());
    m.def("matmul", &bind_matmul, "data"_a, "type_id"_a, "x"_a, "out"_a.noconvert(), "num_threads"_a,
          "isa"_a.none());
    m.def("dequantize_rows", &bind_dequantize_rows, "data"_a, "type_id"_a, "out"_a.noconvert());
    m.def("rms_norm", &bind_rms_norm, "x"_a, "weight"_a, "eps"_a, "out"_a.noconvert(), "isa"_a.none());
    m.def("rope_tables", &bind_rope_tables, "positions"_a, "inv_freq"_a, "cosine"_a.noconvert(),
          "sine"_a.noconvert());
    m.def("rope", &bind_rope, "heads"_a.noconvert(), "cosine"_a, "sine"_a, "is_neox"_a);
    m.def("swiglu", &bind_swiglu, "gate"_a, "up"_a, "out"_a.noconvert(), "isa"_a.none());
    m.def("attention", &bind_attention, "query"_a, "kv_cache"_a.noconvert(), "positions"_a,
          "query_start_loc"_a, "seq_lens"_a, "block_tables"_a, "out"_a.noconvert(), "num_threads"_a,
          "isa"_a.none());
}

} // namespace ridgeline
