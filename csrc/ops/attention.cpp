#include "ops/attention.h"

#include <algorithm>
#include <cmath>

namespace ridgeline {

namespace {

// With fewer items than this per thread, the ranges of one context go to different threads.
constexpr int64_t kItemsPerThread = 4;

constexpr int64_t kChunksPerThread = 16;
constexpr int64_t kFloatsPerLine = 16;

// What is shared out: an item is one token and one KV head.
struct Items {
    int64_t count;
    const int32_t* seq_of_token;
    int64_t max_ranges; // of the longest context
    int64_t heads_per_kv_head;
    int64_t state_stride; // floats from one SoftmaxState to the next; whole cache lines
};

struct Place {
    int64_t seq;
    int64_t token;
    int64_t kv_head;
    int64_t range;
};

SoftmaxState state_at(float* states, int64_t index, const Items& items, int64_t head_dim) {
    float* const out = states + index * items.state_stride;
    float* const max = out + items.heads_per_kv_head * head_dim;
    return {items.heads_per_kv_head, head_dim, out, max, max + items.heads_per_kv_head};
}

// The softmax over one range of the context of one token, for the query heads of one KV head.
void attend_range(const KernelTable& kernels, const AttentionCall& call, const Place& place,
                  const SoftmaxState& state) {
    const KVCache& cache = *call.cache;
    std::fill(state.out, state.out + state.num_heads * state.head_dim, 0.0f);
    std::fill(state.max, state.max + state.num_heads, -INFINITY);
    std::fill(state.sum, state.sum + state.num_heads, 0.0f);
    const float* const query =
        call.query + place.token * call.query_stride + place.kv_head * state.num_heads * state.head_dim;
    const int32_t* const blocks = call.batch->block_tables + place.seq * call.batch->max_blocks;
    const int64_t context_len = call.batch->positions[place.token] + 1;
    const int64_t end = std::min((place.range + 1) * kPositionRange, context_len);
    for (int64_t position = place.range * kPositionRange; position < end; position += kPositionTile) {
        const int64_t block = blocks[position / cache.block_size];
        const int64_t offset = position % cache.block_size;
        const KVTile tile = {cache.keys(block, call.layer, place.kv_head) + offset,
                             cache.values(block, call.layer, place.kv_head) + offset * cache.head_dim,
                             cache.block_size, std::min(kPositionTile, end - position)};
        kernels.attend(tile, query, state);
    }
}

int64_t num_ranges_of(const AttentionCall& call, int64_t token) {
    return call.batch->positions[token] / kPositionRange + 1;
}

void write_out(const AttentionCall& call, int64_t token, int64_t kv_head, const SoftmaxState& state) {
    float* out =
        call.out + token * call.num_heads * state.head_dim + kv_head * state.num_heads * state.head_dim;
    for (int64_t head = 0; head < state.num_heads; head++) {
        const float inverse = 1.0f / state.sum[head];
        for (int64_t d = 0; d < state.head_dim; d++) {
            *out++ = state.out[head * state.head_dim + d] * inverse;
        }
    }
}

// One worker walks all ranges of an item, merging as it goes.
void attend_whole_items(const KernelTable& kernels, ThreadPool& pool, const AttentionCall& call,
                        const Items& items, float* states) {
    const int64_t num_kv_heads = call.cache->num_kv_heads;
    const int64_t chunk = std::max<int64_t>(1, items.count / (pool.num_threads() * kChunksPerThread));
    pool.parallel_for(items.count, chunk, [&](int64_t begin, int64_t end, int worker) {
        const SoftmaxState state = state_at(states, 2 * worker, items, call.cache->head_dim);
        const SoftmaxState next = state_at(states, 2 * worker + 1, items, call.cache->head_dim);
        for (int64_t item = begin; item < end; item++) {
            const int64_t token = item / num_kv_heads;
            const int64_t kv_head = item % num_kv_heads;
            attend_range(kernels, call, {items.seq_of_token[token], token, kv_head, 0}, state);
            for (int64_t range = 1; range < num_ranges_of(call, token); range++) {
                attend_range(kernels, call, {items.seq_of_token[token], token, kv_head, range}, next);
                kernels.merge(state, next);
            }
            write_out(call, token, kv_head, state);
        }
    });
}

// The ranges of an item are shared out, and merged afterwards.
void attend_shared_ranges(const KernelTable& kernels, ThreadPool& pool, const AttentionCall& call,
                          const Items& items, float* states) {
    const int64_t num_kv_heads = call.cache->num_kv_heads;
    const int64_t head_dim = call.cache->head_dim;
    pool.parallel_for(items.count * items.max_ranges, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t index = begin; index < end; index++) {
            const int64_t item = index / items.max_ranges;
            const int64_t range = index % items.max_ranges;
            const int64_t token = item / num_kv_heads;
            if (range < num_ranges_of(call, token)) {
                attend_range(kernels, call, {items.seq_of_token[token], token, item % num_kv_heads, range},
                             state_at(states, index, items, head_dim));
            }
        }
    });
    for (int64_t item = 0; item < items.count; item++) {
        const int64_t token = item / num_kv_heads;
        const SoftmaxState state = state_at(states, item * items.max_ranges, items, head_dim);
        for (int64_t range = 1; range < num_ranges_of(call, token); range++) {
            kernels.merge(state, state_at(states, item * items.max_ranges + range, items, head_dim));
        }
        write_out(call, token, item % num_kv_heads, state);
    }
}

} // namespace

// Both ways make the same additions in the same order; only who makes them differs.
void attention(const KernelTable& kernels, ThreadPool& pool, const AttentionCall& call,
               AttentionScratch& scratch) {
    const Batch& batch = *call.batch;
    int32_t* const seq_of_token = scratch.seq_of_token.reserve(batch.num_tokens);
    int64_t max_ranges = 0;
    for (int64_t seq = 0; seq < batch.num_seqs; seq++) {
        const int64_t end = batch.query_start_loc[seq + 1];
        std::fill(seq_of_token + batch.query_start_loc[seq], seq_of_token + end, static_cast<int32_t>(seq));
        max_ranges = std::max(max_ranges, num_ranges_of(call, end - 1));
    }
    const int64_t heads_per_kv_head = call.num_heads / call.cache->num_kv_heads;
    const int64_t state_floats = heads_per_kv_head * (call.cache->head_dim + 2);
    const Items items = {batch.num_tokens * call.cache->num_kv_heads, seq_of_token, max_ranges,
                         heads_per_kv_head,
                         (state_floats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine};
    if (max_ranges > 1 && items.count < kItemsPerThread * pool.num_threads()) {
        float* const states = scratch.states.reserve(items.count * max_ranges * items.state_stride);
        attend_shared_ranges(kernels, pool, call, items, states);
    } else {
        float* const states = scratch.states.reserve(2 * pool.num_threads() * items.state_stride);
        attend_whole_items(kernels, pool, call, items, states);
    }
}

} // namespace ridgeline
