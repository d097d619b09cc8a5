#include "ops/matmul.h"

#include <algorithm>

namespace ridgeline {

namespace {

// A chunk of rows is taken at a time: small enough to even out slow threads, large enough to stream.
constexpr int64_t kMinRowsPerChunk = 16;
constexpr int64_t kMaxRowsPerChunk = 64;
constexpr int64_t kChunksPerThread = 8;

int64_t rows_per_chunk(int64_t num_rows, int num_threads) {
    if (num_threads == 1) {
        return kMaxRowsPerChunk;
    }
    const int64_t even = num_rows / (num_threads * kChunksPerThread) / kTokenTile * kTokenTile;
    return std::clamp(even, kMinRowsPerChunk, kMaxRowsPerChunk);
}

} // namespace

Activations ActivationBuffer::reserve(int64_t num_tokens, int64_t cols) {
    const int64_t num_tiles = (num_tokens + kTokenTile - 1) / kTokenTile;
    const int64_t num_padded = num_tiles * kTokenTile;
    const int64_t num_scales = num_padded * (cols / kActivationBlock);
    return {num_tokens,
            cols,
            x.reserve(num_padded * cols),
            q.reserve(num_padded * cols),
            scale.reserve(num_scales),
            scaled_sum.reserve(num_scales)};
}

void quantize_token(const KernelTable& kernels, const Activations& activations, int64_t token) {
    const int64_t cols = activations.cols;
    if (cols % kActivationBlock != 0) {
        return;
    }
    const int64_t tile_at = token / kTokenTile * (cols / kActivationBlock) * kTokenTile;
    const int64_t scales_at = tile_at + token % kTokenTile;
    kernels.quantize(activations.x + token * cols, cols, activations.q + token * cols,
                     activations.scale + scales_at, activations.scaled_sum + scales_at);
}

void matmul(const KernelTable& kernels, ThreadPool& pool, const MatmulTarget* targets, int num_targets,
            const Activations& activations) {
    if (activations.num_tokens == 0) {
        return;
    }
    int64_t num_rows = 0;
    for (int i = 0; i < num_targets; i++) {
        num_rows += targets[i].weight->rows;
    }
    const int64_t chunk = rows_per_chunk(num_rows, pool.num_threads());
    const auto chunks_of = [chunk](const MatmulTarget& t) { return (t.weight->rows + chunk - 1) / chunk; };
    int64_t num_chunks = 0;
    for (int i = 0; i < num_targets; i++) {
        num_chunks += chunks_of(targets[i]);
    }
    pool.parallel_for(num_chunks, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t index = begin; index < end; index++) {
            const MatmulTarget* target = targets;
            int64_t chunk_in_target = index;
            while (chunk_in_target >= chunks_of(*target)) {
                chunk_in_target -= chunks_of(*target);
                target++;
            }
            const int64_t row = chunk_in_target * chunk;
            const WeightMatrix* const weight = target->weight;
            kernels.matmul[static_cast<int>(weight->type)](
                {weight, row, std::min(row + chunk, weight->rows), target->out, target->out_stride},
                activations);
        }
    });
}

} // namespace ridgeline
