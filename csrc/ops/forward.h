// One step of the whole ragged batch through a decoder-only transformer.
#pragma once

#include <memory>

#include "model.h"
#include "ops/attention.h"
#include "ops/batch.h"
#include "ops/matmul.h"
#include "thread_pool.h"

namespace ridgeline {

// What a step's time is booked on. Block copies count as embed. Quantising the input of a product counts with
// what made it: with the norm, with attention, with SwiGLU (gate_up_proj). RoPE and the KV write count as
// qkv_proj, residual sums with their product.
enum class Op { kEmbed, kNorms, kQkvProj, kAttention, kOProj, kGateUpProj, kDownProj, kLmHead };
constexpr int kNumOps = 8;
extern const char* const kOpNames[kNumOps];

// Reused from step to step; T tokens.
struct ForwardScratch {
    GrowingBuffer<float> hidden;    // [T][hidden]: the residual stream
    GrowingBuffer<float> projected; // [T][q + 2 kv], [T][hidden] or [T][2 ffn]
    GrowingBuffer<float> cosine;    // [T][pairs]
    GrowingBuffer<float> sine;
    GrowingBuffer<int32_t> slots;   // [T]: block of each token
    GrowingBuffer<uint16_t> halves; // [threads][head_dim]
    ActivationBuffer input;         // of the next product
    AttentionScratch attention;
};

struct Model {
    ModelDims dims;
    ModelWeights weights;
    const KernelTable* kernels;
    std::unique_ptr<ThreadPool> pool;
    ForwardScratch scratch;
};

// Writes K and V of all tokens to the cache and the logits of batch.logits_rows to logits [R][vocab]. The
// batch is checked already. Adds the seconds spent to op_seconds [kNumOps].
void forward(Model& model, const Batch& batch, const KVCache& cache, float* logits, double* op_seconds);

} // namespace ridgeline
