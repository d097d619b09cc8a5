#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ridgeline {

namespace {

// With fewer items than this per thread, the ranges of one context go to different threads.
constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kFloatsPerLine = 16;
constexpr int64_t kTinyPositions = 256; // of all items together

// The job: an item is a group of tokens and a KV head, in one part or in one part a range.
struct Job {
    const KernelTable& kernels;
    const AttentionCall& call;
    AttentionScratch& scratch;
    int64_t num_groups;
    int64_t longest;    // context, in positions
    int64_t max_ranges; // of it
    int64_t heads_per_kv_head;
    int64_t state_stride; // floats from one SoftmaxState to the next; whole cache lines

    int64_t head_dim() const { return call.cache->head_dim; }
    int64_t num_kv_heads() const { return call.cache->num_kv_heads; }
    int64_t max_rows() const { return kTokensPerGroup * heads_per_kv_head; }
    int64_t context_of(int64_t token) const { return call.batch->positions[token] + 1; }
    int64_t ranges_of(int64_t token) const { return call.batch->positions[token] / kPositionRange + 1; }
};

struct Item {
    TokenGroup group;
    int64_t kv_head;
};

// Rows are tokens, then the query heads of the item's KV head.
SoftmaxState state_at(const Job& job, const Item& item, int64_t index) {
    float* const out = job.scratch.states.data() + index * job.state_stride;
    float* const max = out + job.max_rows() * job.head_dim();
    const int64_t num_rows = (item.group.token_end - item.group.token_begin) * job.heads_per_kv_head;
    return {num_rows, job.head_dim(), out, max, max + job.max_rows()};
}

// The rows of one token of the group.
SoftmaxState rows_of(const Job& job, const SoftmaxState& state, int64_t token_in_group) {
    const int64_t first = token_in_group * job.heads_per_kv_head;
    return {job.heads_per_kv_head, state.head_dim, state.out + first * state.head_dim, state.max + first,
            state.sum + first};
}

const float* gather_queries(const Job& job, const Item& item, int worker) {
    const int64_t token_floats = job.heads_per_kv_head * job.head_dim();
    float* const rows = job.scratch.queries.data() + worker * job.max_rows() * job.head_dim();
    for (int64_t t = item.group.token_begin; t < item.group.token_end; t++) {
        const float* const query = job.call.query + t * job.call.query_stride + item.kv_head * token_floats;
        std::memcpy(rows + (t - item.group.token_begin) * token_floats, query,
                    static_cast<size_t>(token_floats) * sizeof(float));
    }
    return rows;
}

// The tile at `position`; what lies at and past `end` is not read, or is replaced by something readable.
KVTile tile_at(const Job& job, const Item& item, int64_t position, int64_t end) {
    const KVCache& cache = *job.call.cache;
    const int32_t* const blocks = job.call.batch->block_tables + item.group.seq * job.call.batch->max_blocks;
    KVTile tile = {};
    const uint16_t* k[4];
    const uint16_t* v[4];
    for (int64_t i = 0; i < 4; i++) { // two halves of this tile, two of the next
        const int64_t at = position + i * kHalfTile < end ? position + i * kHalfTile : position;
        const int64_t block = blocks[at / cache.block_size];
        const int64_t offset = at % cache.block_size;
        k[i] = cache.keys(block, job.call.layer, item.kv_head) + offset;
        v[i] = cache.values(block, job.call.layer, item.kv_head) + offset * cache.head_dim;
    }
    std::copy(k, k + 2, tile.k);
    std::copy(v, v + 2, tile.v);
    tile.next_k = k[2];
    tile.next_v = v[2];
    tile.k_stride = cache.block_size;
    tile.num_positions = kPositionTile;
    return tile;
}

// The softmax over one range of the context, for all rows of the item.
void attend_range(const Job& job, const Item& item, int64_t range, const float* query,
                  const SoftmaxState& state) {
    std::fill(state.out, state.out + state.num_rows * state.head_dim, 0.0f);
    std::fill(state.max, state.max + state.num_rows, -INFINITY);
    std::fill(state.sum, state.sum + state.num_rows, 0.0f);
    const int64_t first_context = job.context_of(item.group.token_begin);
    const int64_t end = std::min((range + 1) * kPositionRange, job.context_of(item.group.token_end - 1));
    for (int64_t position = range * kPositionRange; position < end; position += kPositionTile) {
        KVTile tile = tile_at(job, item, position, end);
        if (position + kPositionTile <= first_context) {
            job.kernels.attend(tile, query, state);
            continue;
        }
        for (int64_t i = 0; i < item.group.token_end - item.group.token_begin; i++) {
            const int64_t visible = job.context_of(item.group.token_begin + i) - position;
            if (visible > 0) {
                tile.num_positions = std::min(visible, kPositionTile);
                job.kernels.attend(tile, query + i * job.heads_per_kv_head * state.head_dim,
                                   rows_of(job, state, i));
            }
        }
    }
}

// Adds a later range's state, for the tokens that reach into it.
void merge_range(const Job& job, const Item& item, int64_t range, const SoftmaxState& into,
                 const SoftmaxState& from) {
    for (int64_t t = item.group.token_begin; t < item.group.token_end; t++) {
        if (range < job.ranges_of(t)) {
            const int64_t i = t - item.group.token_begin;
            job.kernels.merge(rows_of(job, into, i), rows_of(job, from, i));
        }
    }
}

void write_out(const Job& job, const Item& item, const SoftmaxState& state) {
    const int64_t token_floats = job.heads_per_kv_head * job.head_dim();
    for (int64_t row = 0; row < state.num_rows; row++) {
        const int64_t token = item.group.token_begin + row / job.heads_per_kv_head;
        float* const out = job.scratch.out.data() + token * job.call.num_heads * state.head_dim +
                           item.kv_head * token_floats + row % job.heads_per_kv_head * state.head_dim;
        const float inverse = 1.0f / state.sum[row];
        for (int64_t d = 0; d < state.head_dim; d++) {
            out[d] = state.out[row * state.head_dim + d] * inverse;
        }
    }
}

void store_group(const Job& job, const TokenGroup& group) {
    const int64_t width = job.call.num_heads * job.head_dim();
    for (int64_t t = group.token_begin; t < group.token_end; t++) {
        store_input(job.kernels, *job.call.out, t, 0, job.scratch.out.data() + t * width, width);
    }
}

// True for the last part of a group to get done.
bool is_last_part(const Job& job, int64_t group, int64_t num_parts) {
    return job.scratch.parts_done.data()[group].fetch_add(1, std::memory_order_acq_rel) + 1 == num_parts;
}

// One worker walks all ranges of an item, merging as it goes.
void attend_whole_items(const Job& job, ThreadPool& pool) {
    job.scratch.states.reserve(2 * pool.num_threads() * job.state_stride);
    const int64_t num_items = job.num_groups * job.num_kv_heads();
    // A few short contexts are done before another thread has heard of them.
    const bool is_tiny = num_items * job.longest <= kTinyPositions;
    pool.parallel_for(num_items, is_tiny ? num_items : 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t index = begin; index < end; index++) {
            // Later groups of a prompt have more to do: take them first.
            const int64_t group = job.num_groups - 1 - index / job.num_kv_heads();
            const Item item = {job.scratch.groups.data()[group], index % job.num_kv_heads()};
            const SoftmaxState state = state_at(job, item, 2 * worker);
            const SoftmaxState next = state_at(job, item, 2 * worker + 1);
            const float* const query = gather_queries(job, item, worker);
            attend_range(job, item, 0, query, state);
            for (int64_t range = 1; range < job.ranges_of(item.group.token_end - 1); range++) {
                attend_range(job, item, range, query, next);
                merge_range(job, item, range, state, next);
            }
            write_out(job, item, state);
            if (is_last_part(job, group, job.num_kv_heads())) {
                store_group(job, item.group);
            }
        }
    });
}

void merge_group(const Job& job, int64_t group) {
    for (int64_t kv_head = 0; kv_head < job.num_kv_heads(); kv_head++) {
        const Item item = {job.scratch.groups.data()[group], kv_head};
        const int64_t first = (group * job.num_kv_heads() + kv_head) * job.max_ranges;
        const SoftmaxState state = state_at(job, item, first);
        for (int64_t range = 1; range < job.max_ranges; range++) {
            merge_range(job, item, range, state, state_at(job, item, first + range));
        }
        write_out(job, item, state);
    }
    store_group(job, job.scratch.groups.data()[group]);
}

// The ranges of an item are shared out; whoever does a group's last one merges them.
void attend_shared_ranges(const Job& job, ThreadPool& pool) {
    const int64_t num_items = job.num_groups * job.num_kv_heads();
    job.scratch.states.reserve(num_items * job.max_ranges * job.state_stride);
    pool.parallel_for(num_items * job.max_ranges, 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t index = begin; index < end; index++) {
            // Neighbouring indices are the KV heads of one range, which lie next to each other in a block.
            const int64_t kv_head = index % job.num_kv_heads();
            const int64_t range = index / job.num_kv_heads() % job.max_ranges;
            const int64_t group = index / job.num_kv_heads() / job.max_ranges;
            const Item item = {job.scratch.groups.data()[group], kv_head};
            if (range < job.ranges_of(item.group.token_end - 1)) {
                const int64_t at = (group * job.num_kv_heads() + kv_head) * job.max_ranges + range;
                attend_range(job, item, range, gather_queries(job, item, worker), state_at(job, item, at));
            }
            if (is_last_part(job, group, job.num_kv_heads() * job.max_ranges)) {
                merge_group(job, group);
            }
        }
    });
}

// Cuts the sequences into groups.
void plan_groups(const Batch& batch, AttentionScratch& scratch, Job& job) {
    TokenGroup* const groups = scratch.groups.reserve(batch.num_tokens);
    int64_t num_groups = 0;
    for (int64_t seq = 0; seq < batch.num_seqs; seq++) {
        const int64_t end = batch.query_start_loc[seq + 1];
        for (int64_t t = batch.query_start_loc[seq]; t < end; t += kTokensPerGroup) {
            groups[num_groups++] = {seq, t, std::min(t + kTokensPerGroup, end)};
        }
        job.longest = std::max<int64_t>(job.longest, batch.positions[end - 1] + 1);
    }
    std::atomic<int64_t>* const parts_done = scratch.parts_done.reserve(batch.num_tokens);
    for (int64_t i = 0; i < num_groups; i++) {
        parts_done[i].store(0, std::memory_order_relaxed);
    }
    job.num_groups = num_groups;
    job.max_ranges = (job.longest + kPositionRange - 1) / kPositionRange;
}

} // namespace

// Both ways make the same additions in the same order; only who makes them differs.
void attention(const KernelTable& kernels, ThreadPool& pool, const AttentionCall& call,
               AttentionScratch& scratch) {
    const int64_t head_dim = call.cache->head_dim;
    Job job = {kernels, call, scratch, 0, 0, 0, call.num_heads / call.cache->num_kv_heads, 0};
    plan_groups(*call.batch, scratch, job);
    const int64_t state_floats = job.max_rows() * (head_dim + 2);
    job.state_stride = (state_floats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
    scratch.queries.reserve(pool.num_threads() * job.max_rows() * head_dim);
    scratch.out.reserve(call.batch->num_tokens * call.num_heads * head_dim);
    const int64_t num_items = job.num_groups * job.num_kv_heads();
    if (job.max_ranges > 1 && num_items < kItemsPerThread * pool.num_threads()) {
        attend_shared_ranges(job, pool);
    } else {
        attend_whole_items(job, pool);
    }
}

} // namespace ridgeline
