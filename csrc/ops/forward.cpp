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

// A product that reads the hidden state through a norm.
struct NormedInput {
    const std::vector<float>* norm;
    int forms;
};

NormedInput input_of_layer(const Model& model, size_t layer) {
    if (layer == model.weights.layers.size()) {
        return {nullptr, 0}; // the head takes only some of the rows
    }
    const LayerWeights& weights = model.weights.layers[layer];
    return {&weights.attn_norm,
            input_form(weights.q.type) | input_form(weights.k.type) | input_form(weights.v.type)};
}

NormedInput input_of_mlp(const LayerWeights& weights) {
    return {&weights.ffn_norm, input_form(weights.gate.type) | input_form(weights.up.type)};
}

// input[row] = the norm of x.
void store_normed(Step& step, const std::vector<float>& norm, const Activations& input, int64_t row,
                  const float* x, int worker) {
    Model& model = step.model;
    float* const normed = model.scratch.rows.data() + worker * input.cols;
    model.kernels->rms_norm(x, norm.data(), input.cols, model.dims.rms_norm_eps, normed);
    store_input(*model.kernels, input, row, 0, normed, input.cols);
}

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

void find_slots(Step& step) {
    int32_t* const slots = step.model.scratch.slots.reserve(step.batch.num_tokens);
    for (int64_t seq = 0; seq < step.batch.num_seqs; seq++) {
        const int32_t* const blocks = step.batch.block_tables + seq * step.batch.max_blocks;
        for (int64_t t = step.batch.query_start_loc[seq]; t < step.batch.query_start_loc[seq + 1]; t++) {
            slots[t] = blocks[step.batch.positions[t] / step.cache.block_size];
        }
    }
}

// Returns the input of the first layer.
Activations embed(Step& step) {
    Model& model = step.model;
    ForwardScratch& scratch = model.scratch;
    const int64_t num_tokens = step.batch.num_tokens;
    const int64_t hidden_size = model.dims.hidden_size;
    const int64_t num_pairs = model.dims.num_rope_pairs();
    step.hidden = scratch.hidden.reserve(num_tokens * hidden_size);
    float* const cosine = scratch.cosine.reserve(num_tokens * num_pairs);
    float* const sine = scratch.sine.reserve(num_tokens * num_pairs);
    find_slots(step);
    const NormedInput first = input_of_layer(model, 0);
    const Activations input = scratch.normed.reserve(first.forms, num_tokens, hidden_size);
    for_each_token(step, num_tokens, [&](int64_t token, int worker) {
        float* const hidden = step.hidden + token * hidden_size;
        unpack_row(model.weights.token_embd, step.batch.token_ids[token], hidden);
        rope_angles(step.batch.positions[token], model.dims.rope_inv_freq.data(), num_pairs,
                    cosine + token * num_pairs, sine + token * num_pairs);
        store_normed(step, *first.norm, input, token, hidden, worker);
    });
    step.timer.book(Op::kEmbed);
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
float* project_qkv(Step& step, int64_t layer_index, const Activations& input) {
    Model& model = step.model;
    const ModelDims& dims = model.dims;
    const LayerWeights& layer = model.weights.layers[static_cast<size_t>(layer_index)];
    const int64_t width = dims.q_size() + 2 * dims.kv_size();
    float* const qkv = model.scratch.projected.reserve(input.num_tokens * width);
    const MatmulTarget targets[] = {{&layer.q, qkv, width},
                                    {&layer.k, qkv + dims.q_size(), width},
                                    {&layer.v, qkv + dims.q_size() + dims.kv_size(), width}};
    uint16_t* const halves = model.scratch.halves.reserve(model.pool->num_threads() * dims.head_dim);
    matmul(*model.kernels, *model.pool, model.scratch.counters, targets, 3, input,
           [&](int64_t token, int64_t token_end, int worker) {
               for (; token < token_end; token++) {
                   finish_qkv(step, layer_index, token, qkv + token * width, halves + worker * dims.head_dim);
               }
           });
    step.timer.book(Op::kQkvProj);
    return qkv;
}

Activations attend(Step& step, int64_t layer_index, const float* qkv) {
    Model& model = step.model;
    const ModelDims& dims = model.dims;
    const LayerWeights& layer = model.weights.layers[static_cast<size_t>(layer_index)];
    const Activations attended =
        model.scratch.attended.reserve(input_form(layer.output.type), step.batch.num_tokens, dims.q_size());
    const AttentionCall call = {&step.batch,    &step.cache, layer_index,
                                dims.num_heads, qkv,         dims.q_size() + 2 * dims.kv_size(),
                                &attended};
    attention(*model.kernels, *model.pool, call, model.scratch.attention);
    step.timer.book(Op::kAttention);
    return attended;
}

// hidden += weight * input. Returns the normalised input of what follows, if anything does.
Activations add_product(Step& step, const PackedMatrix& weight, const Activations& input,
                        const NormedInput& following) {
    Model& model = step.model;
    const int64_t size = model.dims.hidden_size;
    float* const product = model.scratch.projected.reserve(input.num_tokens * size);
    const Activations next = model.scratch.normed.reserve(following.forms, input.num_tokens, size);
    const MatmulTarget target = {&weight, product, size};
    matmul(*model.kernels, *model.pool, model.scratch.counters, &target, 1, input,
           [&](int64_t token, int64_t token_end, int worker) {
               for (; token < token_end; token++) {
                   float* const hidden = step.hidden + token * size;
                   for (int64_t i = 0; i < size; i++) {
                       hidden[i] += product[token * size + i];
                   }
                   if (following.norm != nullptr) {
                       store_normed(step, *following.norm, next, token, hidden, worker);
                   }
               }
           });
    return next;
}

// 32 rows of gate and of up times a block of tokens: the same 32 columns of the next product's input.
void activate(Step& step, const LayerWeights& layer, const Activations& input, const PanelRange& range,
              const Activations& activated, float* gate) {
    constexpr int64_t kWidth = 2 * kPanelRows;
    const KernelTable& kernels = *step.model.kernels;
    float* const up = gate + (range.token_end - range.token_begin) * kWidth;
    kernels.matmul[static_cast<int>(layer.gate.type)](
        {&layer.gate, range.panel_begin, range.panel_end, range.token_begin, range.token_end, gate, kWidth},
        input);
    kernels.matmul[static_cast<int>(layer.up.type)](
        {&layer.up, range.panel_begin, range.panel_end, range.token_begin, range.token_end, up, kWidth},
        input);
    const int64_t col = range.panel_begin * kPanelRows;
    const int64_t count = std::min(kWidth, layer.gate.rows - col);
    for (int64_t t = 0; t < range.token_end - range.token_begin; t++) {
        kernels.swiglu(gate + t * kWidth, up + t * kWidth, count, gate + t * kWidth);
        store_input(kernels, activated, range.token_begin + t, col, gate + t * kWidth, count);
    }
}

Activations gate_up(Step& step, const LayerWeights& layer, const Activations& input) {
    Model& model = step.model;
    const Activations activated =
        model.scratch.activated.reserve(input_form(layer.down.type), input.num_tokens, model.dims.ffn_size);
    const int64_t num_pairs = (layer.gate.num_panels() + 1) / 2;
    const Grid grid = plan_grid(num_pairs, 2 * (layer.gate.panel_bytes + layer.up.panel_bytes),
                                input.num_tokens, model.pool->num_threads());
    const int64_t worker_floats = 2 * 2 * kPanelRows * grid.tokens_per_block;
    float* const buffers = model.scratch.gate_up.reserve(model.pool->num_threads() * worker_floats);
    run_grid(
        *model.pool, grid, model.scratch.counters,
        [&](int64_t pair, int64_t pair_end, int64_t token, int64_t token_end, int worker) {
            for (; pair < pair_end; pair++) {
                const int64_t panel_end = std::min(2 * pair + 2, layer.gate.num_panels());
                activate(step, layer, input, {2 * pair, panel_end, token, token_end}, activated,
                         buffers + worker * worker_floats);
            }
        },
        [](int64_t, int64_t, int) {});
    step.timer.book(Op::kGateUpProj);
    return activated;
}

void predict(Step& step, float* logits) {
    Model& model = step.model;
    const PackedMatrix& head = model.weights.head(model.dims);
    const int64_t hidden_size = model.dims.hidden_size;
    const Activations input =
        model.scratch.normed.reserve(input_form(head.type), step.batch.num_logits, hidden_size);
    for_each_token(step, step.batch.num_logits, [&](int64_t i, int worker) {
        const float* const hidden = step.hidden + step.batch.logits_rows[i] * hidden_size;
        store_normed(step, model.weights.output_norm, input, i, hidden, worker);
    });
    step.timer.book(Op::kNorms);
    const MatmulTarget target = {&head, logits, model.dims.vocab_size};
    matmul(*model.kernels, *model.pool, model.scratch.counters, &target, 1, input,
           [](int64_t, int64_t, int) {});
    step.timer.book(Op::kLmHead);
}

} // namespace

void forward(Model& model, const Batch& batch, const KVCache& cache, float* logits, double* op_seconds) {
    Step step = {model, batch, cache, nullptr, OpTimer(op_seconds)};
    model.scratch.rows.reserve(model.pool->num_threads() * model.dims.hidden_size);
    copy_blocks(cache, batch.block_copies, batch.num_copies);
    Activations input = embed(step);
    for (int64_t index = 0; index < model.dims.num_layers; index++) {
        const LayerWeights& layer = model.weights.layers[static_cast<size_t>(index)];
        const float* const qkv = project_qkv(step, index, input);
        const Activations attended = attend(step, index, qkv);
        input = add_product(step, layer.output, attended, input_of_mlp(layer));
        step.timer.book(Op::kOProj);
        const Activations activated = gate_up(step, layer, input);
        const auto next_layer = static_cast<size_t>(index) + 1;
        input = add_product(step, layer.down, activated, input_of_layer(model, next_layer));
        step.timer.book(Op::kDownProj);
    }
    predict(step, logits);
}

} // namespace ridgeline
