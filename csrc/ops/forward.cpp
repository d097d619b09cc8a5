#include "ops/forward.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "ops/rope.h"

namespace ridgeline {

const char* const kOpNames[kNumOps] = {"embed",  "norms",        "qkv_proj",  "attention",
                                       "o_proj", "gate_up_proj", "down_proj", "lm_head"};

namespace {

using Clock = std::chrono::steady_clock;

// Books the time since the last call.
class OpTimer {
  public:
    explicit OpTimer(double* op_seconds) : op_seconds_(op_seconds) {}

    void book(Op op) {
        const Clock::time_point now = Clock::now();
        op_seconds_[static_cast<int>(op)] += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

  private:
    double* op_seconds_;
    Clock::time_point last_ = Clock::now();
};

// The parts of a step that all of its functions need.
struct Step {
    Model& model;
    const Batch& batch;
    const KVCache& cache;
    float* hidden;
    OpTimer timer;
};

// Calls function(token, worker) for every token.
template <class Function>
void for_each_token(const Step& step, int64_t num_tokens, const Function& function) {
    constexpr int64_t kTokensPerChunk = 4;
    step.model.pool->parallel_for(num_tokens, kTokensPerChunk, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t token = begin; token < end; token++) {
            function(token, worker);
        }
    });
}

void embed(Step& step) {
    Model& model = step.model;
    ForwardScratch& scratch = model.scratch;
    const WeightMatrix& table = model.weights.token_embd;
    const int64_t num_tokens = step.batch.num_tokens;
    const int64_t num_pairs = model.dims.num_rope_pairs();
    step.hidden = scratch.hidden.reserve(num_tokens * table.cols);
    float* const cosine = scratch.cosine.reserve(num_tokens * num_pairs);
    float* const sine = scratch.sine.reserve(num_tokens * num_pairs);
    for_each_token(step, num_tokens, [&](int64_t token, int) {
        const uint8_t* const row = table.data + step.batch.token_ids[token] * table.row_bytes;
        model.kernels->dequantize[static_cast<int>(table.type)](row, table.cols,
                                                                step.hidden + token * table.cols);
        rope_angles(step.batch.positions[token], model.dims.rope_inv_freq.data(), num_pairs,
                    cosine + token * num_pairs, sine + token * num_pairs);
    });
    int32_t* const slots = scratch.slots.reserve(num_tokens);
    for (int64_t seq = 0; seq < step.batch.num_seqs; seq++) {
        const int32_t* const blocks = step.batch.block_tables + seq * step.batch.max_blocks;
        for (int64_t t = step.batch.query_start_loc[seq]; t < step.batch.query_start_loc[seq + 1]; t++) {
            slots[t] = blocks[step.batch.positions[t] / step.cache.block_size];
        }
    }
    step.timer.book(Op::kEmbed);
}

// Normalises `rows` of the hidden state (all tokens in order if null) into the input of the next product.
Activations normalize(Step& step, const std::vector<float>& weight, const int32_t* rows, int64_t num_rows) {
    Model& model = step.model;
    const int64_t hidden_size = model.dims.hidden_size;
    const Activations input = model.scratch.input.reserve(num_rows, hidden_size);
    for_each_token(step, num_rows, [&](int64_t i, int) {
        const float* const x = step.hidden + (rows == nullptr ? i : rows[i]) * hidden_size;
        model.kernels->rms_norm(x, weight.data(), hidden_size, model.dims.rms_norm_eps,
                                input.x + i * hidden_size);
        quantize_token(*model.kernels, input, i);
    });
    step.timer.book(Op::kNorms);
    return input;
}

void add_bias(float* x, const std::vector<float>& bias) {
    for (size_t i = 0; i < bias.size(); i++) {
        x[i] += bias[i];
    }
}

void norm_heads(const Model& model, float* heads, int64_t num_heads, const std::vector<float>& weight) {
    if (weight.empty()) {
        return;
    }
    const int64_t head_dim = model.dims.head_dim;
    for (int64_t head = 0; head < num_heads; head++) {
        float* const x = heads + head * head_dim;
        model.kernels->rms_norm(x, weight.data(), head_dim, model.dims.rms_norm_eps, x);
    }
}

// Biases, q/k norms, RoPE, KV write and the scaling of queries by 1 / sqrt(head_dim) for one token.
void finish_qkv(Step& step, int64_t layer_index, int64_t token, float* qkv, uint16_t* halves) {
    Model& model = step.model;
    const ModelDims& dims = model.dims;
    const LayerWeights& layer = model.weights.layers[static_cast<size_t>(layer_index)];
    float* const q = qkv;
    float* const k = q + dims.q_size();
    float* const v = k + dims.kv_size();
    add_bias(q, layer.q_bias);
    add_bias(k, layer.k_bias);
    add_bias(v, layer.v_bias);
    norm_heads(model, q, dims.num_heads, layer.q_norm);
    norm_heads(model, k, dims.num_kv_heads, layer.k_norm);
    const int64_t num_pairs = dims.num_rope_pairs();
    const RopeAngles angles = {model.scratch.cosine.data() + token * num_pairs,
                               model.scratch.sine.data() + token * num_pairs, num_pairs, dims.rope_is_neox};
    rope(angles, q, dims.num_heads, dims.head_dim);
    rope(angles, k, dims.num_kv_heads, dims.head_dim);
    const int64_t offset = step.batch.positions[token] % step.cache.block_size;
    write_kv(*model.kernels, step.cache, {model.scratch.slots.data()[token], layer_index, offset}, k, v,
             halves);
    const float scale = 1.0f / std::sqrt(static_cast<float>(dims.head_dim));
    for (int64_t i = 0; i < dims.q_size(); i++) {
        q[i] *= scale;
    }
}

// Returns the queries, [T][q + 2 kv].
float* project_qkv(Step& step, int64_t layer_index) {
    Model& model = step.model;
    const ModelDims& dims = model.dims;
    const LayerWeights& layer = model.weights.layers[static_cast<size_t>(layer_index)];
    const int64_t num_tokens = step.batch.num_tokens;
    const Activations input = normalize(step, layer.attn_norm, nullptr, num_tokens);
    const int64_t width = dims.q_size() + 2 * dims.kv_size();
    float* const qkv = model.scratch.projected.reserve(num_tokens * width);
    const MatmulTarget targets[] = {{&layer.q, qkv, width},
                                    {&layer.k, qkv + dims.q_size(), width},
                                    {&layer.v, qkv + dims.q_size() + dims.kv_size(), width}};
    matmul(*model.kernels, *model.pool, targets, 3, input);
    uint16_t* const halves = model.scratch.halves.reserve(model.pool->num_threads() * dims.head_dim);
    for_each_token(step, num_tokens, [&](int64_t token, int worker) {
        finish_qkv(step, layer_index, token, qkv + token * width, halves + worker * dims.head_dim);
    });
    step.timer.book(Op::kQkvProj);
    return qkv;
}

// hidden += weight * input.
void add_product(Step& step, const WeightMatrix& weight, const Activations& input) {
    Model& model = step.model;
    const int64_t size = model.dims.hidden_size;
    float* const product = model.scratch.projected.reserve(step.batch.num_tokens * size);
    const MatmulTarget target = {&weight, product, size};
    matmul(*model.kernels, *model.pool, &target, 1, input);
    for_each_token(step, step.batch.num_tokens, [&](int64_t token, int) {
        for (int64_t i = token * size; i < (token + 1) * size; i++) {
            step.hidden[i] += product[i];
        }
    });
}

void attention_block(Step& step, int64_t layer_index) {
    Model& model = step.model;
    const ModelDims& dims = model.dims;
    const float* const qkv = project_qkv(step, layer_index);
    const int64_t num_tokens = step.batch.num_tokens;
    const Activations attended = model.scratch.input.reserve(num_tokens, dims.q_size());
    const AttentionCall call = {&step.batch,    &step.cache, layer_index,
                                dims.num_heads, qkv,         dims.q_size() + 2 * dims.kv_size(),
                                attended.x};
    attention(*model.kernels, *model.pool, call, model.scratch.attention);
    for_each_token(step, num_tokens,
                   [&](int64_t token, int) { quantize_token(*model.kernels, attended, token); });
    step.timer.book(Op::kAttention);
    add_product(step, model.weights.layers[static_cast<size_t>(layer_index)].output, attended);
    step.timer.book(Op::kOProj);
}

void mlp_block(Step& step, int64_t layer_index) {
    Model& model = step.model;
    const int64_t ffn_size = model.dims.ffn_size;
    const LayerWeights& layer = model.weights.layers[static_cast<size_t>(layer_index)];
    const int64_t num_tokens = step.batch.num_tokens;
    const Activations input = normalize(step, layer.ffn_norm, nullptr, num_tokens);
    float* const gate_up = model.scratch.projected.reserve(num_tokens * 2 * ffn_size);
    const MatmulTarget targets[] = {{&layer.gate, gate_up, 2 * ffn_size},
                                    {&layer.up, gate_up + ffn_size, 2 * ffn_size}};
    matmul(*model.kernels, *model.pool, targets, 2, input);
    const Activations activated = model.scratch.input.reserve(num_tokens, ffn_size);
    for_each_token(step, num_tokens, [&](int64_t token, int) {
        const float* const gate = gate_up + token * 2 * ffn_size;
        model.kernels->swiglu(gate, gate + ffn_size, ffn_size, activated.x + token * ffn_size);
        quantize_token(*model.kernels, activated, token);
    });
    step.timer.book(Op::kGateUpProj);
    add_product(step, layer.down, activated);
    step.timer.book(Op::kDownProj);
}

} // namespace

void forward(Model& model, const Batch& batch, const KVCache& cache, float* logits, double* op_seconds) {
    Step step = {model, batch, cache, nullptr, OpTimer(op_seconds)};
    copy_blocks(cache, batch.block_copies, batch.num_copies);
    embed(step);
    for (int64_t layer = 0; layer < model.dims.num_layers; layer++) {
        attention_block(step, layer);
        mlp_block(step, layer);
    }
    const Activations input = normalize(step, model.weights.output_norm, batch.logits_rows, batch.num_logits);
    const MatmulTarget target = {&model.weights.lm_head, logits, model.dims.vocab_size};
    matmul(*model.kernels, *model.pool, &target, 1, input);
    step.timer.book(Op::kLmHead);
}

} // namespace ridgeline
