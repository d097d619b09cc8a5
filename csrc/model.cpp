#include "model.h"

#include "growing_buffer.h"

namespace ridgeline {

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); i++) {
        text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
    }
    return text + "]";
}

// Looks tensors up and remembers the first thing that is wrong.
class TensorFinder {
  public:
    TensorFinder(const StoredTensors& tensors, std::vector<MatrixSource>& sources)
        : tensors_(tensors), sources_(sources) {}

    const std::string& error() const { return error_; }

    // Plans `matrix` and notes where it comes from.
    void matrix(const std::string& name, int64_t rows, int64_t cols, PackedMatrix& matrix) {
        const StoredTensor* const tensor = find(name, {rows, cols});
        if (tensor != nullptr) {
            matrix = plan_panels(static_cast<QuantType>(find_quant_type(tensor->type_id)), rows, cols);
            sources_.push_back({&matrix, tensor->data, tensor->is_mapped});
        }
    }

    std::vector<float> vector(const std::string& name, int64_t size) {
        std::vector<float> values;
        const StoredTensor* const tensor = find(name, {size});
        if (tensor != nullptr) {
            PackedMatrix row = plan_panels(static_cast<QuantType>(find_quant_type(tensor->type_id)), 1, size);
            GrowingBuffer<uint8_t> panel;
            row.data = panel.reserve(row.panel_bytes);
            pack_panel(row, tensor->data, 0, panel.data());
            values.resize(static_cast<size_t>(size));
            unpack_row(row, 0, values.data());
        }
        return values;
    }

  private:
    const StoredTensor* find(const std::string& name, const std::vector<int64_t>& shape) {
        if (!error_.empty()) {
            return nullptr;
        }
        const auto found = tensors_.find(name);
        if (found == tensors_.end()) {
            error_ = "tensor " + name + " is missing";
            return nullptr;
        }
        const StoredTensor& tensor = found->second;
        error_ = check(tensor, shape);
        if (!error_.empty()) {
            error_ = "tensor " + name + " " + error_;
            return nullptr;
        }
        return &tensor;
    }

    static std::string check(const StoredTensor& tensor, const std::vector<int64_t>& shape) {
        const int type = find_quant_type(tensor.type_id);
        if (type < 0) {
            return "has the unsupported type " + std::to_string(tensor.type_id);
        }
        if (tensor.shape != shape) {
            return "has the shape " + shape_text(tensor.shape) + ", expected " + shape_text(shape);
        }
        if (shape.back() % kQuantTypes[type].quant_block_size != 0) {
            return std::string("has rows that are not whole quant blocks of ") + kQuantTypes[type].name;
        }
        const int64_t num_rows = shape.size() == 2 ? shape[0] : 1;
        const int64_t num_bytes = num_rows * row_size_bytes(static_cast<QuantType>(type), shape.back());
        if (tensor.num_bytes != num_bytes) {
            return "holds " + std::to_string(tensor.num_bytes) + " bytes, expected " +
                   std::to_string(num_bytes);
        }
        const size_t alignment = kQuantTypes[type].type_size == 4 ? 4 : 2;
        if (reinterpret_cast<uintptr_t>(tensor.data) % alignment != 0) {
            return "starts at an odd address";
        }
        return {};
    }

    const StoredTensors& tensors_;
    std::vector<MatrixSource>& sources_;
    std::string error_;
};

void find_layer(const ModelDims& dims, int64_t layer, TensorFinder& finder, LayerWeights& weights) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    weights.attn_norm = finder.vector(prefix + "attn_norm.weight", dims.hidden_size);
    finder.matrix(prefix + "attn_q.weight", dims.q_size(), dims.hidden_size, weights.q);
    finder.matrix(prefix + "attn_k.weight", dims.kv_size(), dims.hidden_size, weights.k);
    finder.matrix(prefix + "attn_v.weight", dims.kv_size(), dims.hidden_size, weights.v);
    if (dims.has_qkv_bias) {
        weights.q_bias = finder.vector(prefix + "attn_q.bias", dims.q_size());
        weights.k_bias = finder.vector(prefix + "attn_k.bias", dims.kv_size());
        weights.v_bias = finder.vector(prefix + "attn_v.bias", dims.kv_size());
    }
    if (dims.has_qk_norm) {
        weights.q_norm = finder.vector(prefix + "attn_q_norm.weight", dims.head_dim);
        weights.k_norm = finder.vector(prefix + "attn_k_norm.weight", dims.head_dim);
    }
    finder.matrix(prefix + "attn_output.weight", dims.hidden_size, dims.q_size(), weights.output);
    weights.ffn_norm = finder.vector(prefix + "ffn_norm.weight", dims.hidden_size);
    finder.matrix(prefix + "ffn_gate.weight", dims.ffn_size, dims.hidden_size, weights.gate);
    finder.matrix(prefix + "ffn_up.weight", dims.ffn_size, dims.hidden_size, weights.up);
    finder.matrix(prefix + "ffn_down.weight", dims.hidden_size, dims.ffn_size, weights.down);
}

} // namespace

std::string check_dims(const ModelDims& dims) {
    if (dims.num_layers < 1 || dims.hidden_size < 1 || dims.num_heads < 1 || dims.num_kv_heads < 1 ||
        dims.head_dim < 1 || dims.ffn_size < 1 || dims.vocab_size < 1) {
        return "every dimension must be at least 1";
    }
    if (dims.num_heads % dims.num_kv_heads != 0) {
        return "num_heads must be a multiple of num_kv_heads";
    }
    if (dims.head_dim % 8 != 0) {
        return "head_dim must be a multiple of 8";
    }
    if (2 * dims.num_rope_pairs() > dims.head_dim) {
        return "rope_inv_freq has more pairs than a head";
    }
    return {};
}

std::string find_weights(const ModelDims& dims, const StoredTensors& tensors, ModelWeights& weights) {
    TensorFinder finder(tensors, weights.sources);
    weights.layers.resize(static_cast<size_t>(dims.num_layers)); // sources point into it from here on
    for (int64_t layer = 0; layer < dims.num_layers && finder.error().empty(); layer++) {
        find_layer(dims, layer, finder, weights.layers[static_cast<size_t>(layer)]);
    }
    weights.output_norm = finder.vector("output_norm.weight", dims.hidden_size);
    if (!dims.is_tied) {
        finder.matrix("output.weight", dims.vocab_size, dims.hidden_size, weights.lm_head);
    }
    finder.matrix("token_embd.weight", dims.vocab_size, dims.hidden_size, weights.token_embd);
    return finder.error();
}

} // namespace ridgeline
