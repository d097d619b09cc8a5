// Paged attention with grouped query heads over the whole ragged batch.
//
// The context of a token is walked in tiles of 32 positions inside fixed ranges of 512; each range is an
// online softmax of its own (Milakov & Gimelshein 2018), and ranges are merged in order. Tiles and ranges
// depend on positions alone, so neither the batch, nor the chunking of a prompt, nor the block size, nor the
// number of threads changes a bit of the result: they only change which queries share a read of K and V, and
// who computes a range.
#pragma once

#include <atomic>

#include "dispatch.h"
#include "growing_buffer.h"
#include "ops/activations.h"
#include "ops/batch.h"
#include "ops/kv_cache.h"
#include "thread_pool.h"

namespace ridgeline {

constexpr int64_t kPositionRange = 512;
constexpr int64_t kTokensPerGroup = 8; // neighbouring tokens of a sequence that share reads of K and V

struct TokenGroup {
    int64_t seq;
    int64_t token_begin;
    int64_t token_end;
};

struct AttentionScratch {
    GrowingBuffer<TokenGroup> groups;
    GrowingBuffer<std::atomic<int64_t>> parts_done; // [groups]
    GrowingBuffer<float> states;
    GrowingBuffer<float> queries; // [threads][group's rows][head_dim]
    GrowingBuffer<float> out;     // [T][heads * head_dim]
};

// Queries of one layer: token t, head h at query[t * query_stride + h * head_dim], scaled already; results go
// to `out`, [T][heads * head_dim].
struct AttentionCall {
    const Batch* batch;
    const KVCache* cache;
    int64_t layer;
    int64_t num_heads;
    const float* query;
    int64_t query_stride;
    const Activations* out;
};

void attention(const KernelTable& kernels, ThreadPool& pool, const AttentionCall& call,
               AttentionScratch& scratch);

} // namespace ridgeline
