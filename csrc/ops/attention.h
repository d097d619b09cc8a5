// Paged attention with grouped query heads over the whole ragged batch.
//
// The context of a token is walked in tiles of 16 positions inside fixed ranges of 512; each range is an
// online softmax of its own (Milakov & Gimelshein 2018), and ranges are merged in order. Tiles and ranges
// depend on positions alone, so neither the batch, nor the chunking of a prompt, nor the block size, nor the
// number of threads changes a bit of the result.
#pragma once

#include "dispatch.h"
#include "growing_buffer.h"
#include "ops/batch.h"
#include "ops/kv_cache.h"
#include "thread_pool.h"

namespace ridgeline {

constexpr int64_t kPositionRange = 512;

struct AttentionScratch {
    GrowingBuffer<int32_t> seq_of_token;
    GrowingBuffer<float> states;
};

// Queries of one layer: token t, head h at query[t * query_stride + h * head_dim], scaled already; results at
// out[t * num_heads * head_dim + h * head_dim].
struct AttentionCall {
    const Batch* batch;
    const KVCache* cache;
    int64_t layer;
    int64_t num_heads;
    const float* query;
    int64_t query_stride;
    float* out;
};

void attention(const KernelTable& kernels, ThreadPool& pool, const AttentionCall& call,
               AttentionScratch& scratch);

} // namespace ridgeline
