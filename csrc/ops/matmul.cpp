#include "ops/matmul.h"

namespace ridgeline {

namespace {

// A cell reads about this many bytes of weights (times tokens / 4 if there are more): a few microseconds.
constexpr int64_t kBytesPerCell = 256 << 10;
constexpr int64_t kMinChunksPerThread = 2;
constexpr int64_t kTokensPerTile = 8;
constexpr int64_t kMaxTokensPerBlock = 64; // whose input stays in the caches

} // namespace

Grid plan_grid(int64_t num_units, int64_t unit_bytes, int64_t num_tokens, int num_threads) {
    const int64_t even = num_tokens / (2 * num_threads) / kTokensPerTile * kTokensPerTile;
    const int64_t tokens = std::clamp(even, kTokensPerTile, kMaxTokensPerBlock);
    const int64_t work_bytes = unit_bytes * std::max<int64_t>(1, std::min(tokens, num_tokens) / 4);
    const int64_t units = std::max<int64_t>(1, kBytesPerCell / work_bytes);
    const int64_t most = std::max<int64_t>(1, num_units / (num_threads * kMinChunksPerThread));
    return {num_units, std::min(units, most), num_tokens, tokens};
}

void multiply(const KernelTable& kernels, const MatmulTarget* targets, int num_targets,
              const PanelRange& range, const Activations& input) {
    int64_t first = 0;
    for (int i = 0; i < num_targets; i++) {
        const PackedMatrix& weight = *targets[i].weight;
        const int64_t begin = std::max<int64_t>(range.panel_begin - first, 0);
        const int64_t end = std::min(range.panel_end - first, weight.num_panels());
        first += weight.num_panels();
        if (begin < end) {
            float* const out =
                targets[i].out + range.token_begin * targets[i].out_stride + begin * kPanelRows;
            kernels.matmul[static_cast<int>(weight.type)](
                {&weight, begin, end, range.token_begin, range.token_end, out, targets[i].out_stride}, input);
        }
    }
}

} // namespace ridgeline
