// Matrices times token rows: the split of the work over threads, and what happens when a part is done.
#pragma once

#include <algorithm>
#include <atomic>

#include "ops/activations.h"
#include "thread_pool.h"

namespace ridgeline {

// One product of a group that shares its input: out[token * out_stride + row].
struct MatmulTarget {
    const PackedMatrix* weight;
    float* out;
    int64_t out_stride;
};

// How a job is shared out: chunks of `units` (panels) times blocks of tokens. All token blocks of a chunk
// come before the next chunk, so its weights are read from memory once.
struct Grid {
    int64_t num_units;
    int64_t units_per_chunk;
    int64_t num_tokens;
    int64_t tokens_per_block;

    int64_t num_chunks() const { return (num_units + units_per_chunk - 1) / units_per_chunk; }
    int64_t num_blocks() const { return (num_tokens + tokens_per_block - 1) / tokens_per_block; }
};

// A grid fine enough that a slow thread holds nobody up, coarse enough that a chunk streams.
Grid plan_grid(int64_t num_units, int64_t unit_bytes, int64_t num_tokens, int num_threads);

// Counts chunks done per token block.
using BlockCounters = GrowingBuffer<std::atomic<int64_t>>;

// Calls work(unit_begin, unit_end, token_begin, token_end, worker) for every cell, and
// finish(token_begin, token_end, worker) by whoever has done the last cell of a block of tokens: so what
// follows on whole rows (norms, RoPE, quantising) costs no barrier of its own.
template <class Work, class Finish>
void run_grid(ThreadPool& pool, const Grid& grid, BlockCounters& counters, const Work& work,
              const Finish& finish) {
    const int64_t num_blocks = grid.num_blocks();
    const int64_t num_chunks = grid.num_chunks();
    std::atomic<int64_t>* const done = counters.reserve(num_blocks);
    for (int64_t i = 0; i < num_blocks; i++) {
        done[i].store(0, std::memory_order_relaxed);
    }
    pool.parallel_for(num_chunks * num_blocks, 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t index = begin; index < end; index++) {
            const int64_t unit = index / num_blocks * grid.units_per_chunk;
            const int64_t block = index % num_blocks;
            const int64_t token = block * grid.tokens_per_block;
            const int64_t token_end = std::min(token + grid.tokens_per_block, grid.num_tokens);
            work(unit, std::min(unit + grid.units_per_chunk, grid.num_units), token, token_end, worker);
            if (done[block].fetch_add(1, std::memory_order_acq_rel) + 1 == num_chunks) {
                finish(token, token_end, worker);
            }
        }
    });
}

// Panels [panel_begin, panel_end) of the targets' panels, counted one target after another, times tokens
// [token_begin, token_end).
struct PanelRange {
    int64_t panel_begin;
    int64_t panel_end;
    int64_t token_begin;
    int64_t token_end;
};
void multiply(const KernelTable& kernels, const MatmulTarget* targets, int num_targets,
              const PanelRange& range, const Activations& input);

// All targets as one job; then finish, as in run_grid.
template <class Finish>
void matmul(const KernelTable& kernels, ThreadPool& pool, BlockCounters& counters,
            const MatmulTarget* targets, int num_targets, const Activations& input, const Finish& finish) {
    int64_t num_panels = 0;
    int64_t num_bytes = 0;
    for (int i = 0; i < num_targets; i++) {
        num_panels += targets[i].weight->num_panels();
        num_bytes += targets[i].weight->num_panels() * targets[i].weight->panel_bytes;
    }
    const Grid grid = plan_grid(num_panels, num_bytes / num_panels, input.num_tokens, pool.num_threads());
    run_grid(
        pool, grid, counters,
        [&](int64_t panel, int64_t panel_end, int64_t token, int64_t token_end, int) {
            multiply(kernels, targets, num_targets, {panel, panel_end, token, token_end}, input);
        },
        finish);
}

} // namespace ridgeline
