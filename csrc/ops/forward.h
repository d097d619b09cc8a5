// One step of the whole ragged batch through a decoder-only transformer.
#pragma once

#include <memory>

#include "model.h"
#include "ops/attention.h"
#include "ops/batch.h"
#include "ops/matmul.h"
#include "thread_pool.h"

namespace ridgeline {

// What a step's time is booked on: five jobs a layer, each with what follows it on whole rows. embed: block
// copies, embedding and the first norm; qkv_proj: RoPE and the KV write too; attention: its output quantised;
// o_proj and down_proj: the residual sum, the next norm and its quantising; gate_up_proj: SwiGLU and its
// quantising; norms: the norm before the head, of the rows that need logits.
enum class Op { kEmbed, kNorms, kQkvProj, kAttention, kOProj, kGateUpProj, kDownProj, kLmHead };
constexpr int kNumOps = 8;
extern const char* const kOpNames[kNumOps];

// Reused from step to step; T tokens.
struct ForwardScratch {
    GrowingBuffer<float> hidden;    // [T][hidden]: the residual stream
    GrowingBuffer<float> projected; // [T][q + 2 kv] or [T][hidden]
    GrowingBuffer<float> cosine;    // [T][pairs]
    GrowingBuffer<float> sine;
    GrowingBuffer<int32_t> slots;   // [T]: block of each token
    GrowingBuffer<uint16_t> halves; // [threads][head_dim]
    GrowingBuffer<float> rows;      // [threads][hidden]: a normalised row
    GrowingBuffer<float> gate_up;   // [threads][2][tokens of a block][32]
    ActivationBuffer normed;        // inputs of products
    ActivationBuffer attended;
    ActivationBuffer activated;
    BlockCounters counters;
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
