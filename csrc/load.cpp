// From stored tensors to the arena: where each matrix goes, and the packing with all threads.
#include <algorithm>

#include "model.h"

namespace ridgeline {

namespace {

constexpr int64_t kStoredBytesPerChunk = 256 << 10;
// Gate and up panels that take turns in the arena: 32 rows of each make a block of the next product's input.
constexpr int64_t kPairedPanels = 2;

// Some panels of one matrix.
struct PackItem {
    MatrixSource source;
    int64_t panel_begin;
    int64_t panel_end;

    int64_t row_bytes() const { return row_size_bytes(source.matrix->type, source.matrix->cols); }
    // Gives the pages of what is packed back to the system, if they are a file's.
    void release() const {
        if (source.is_mapped) {
            const int64_t row_begin = panel_begin * kPanelRows;
            const int64_t row_end = std::min(panel_end * kPanelRows, source.matrix->rows);
            release_file_pages(source.stored + row_begin * row_bytes(), (row_end - row_begin) * row_bytes());
        }
    }
};

// Where each source's first panel goes, one matrix after another; the arena's size comes last. Gate and up
// take turns: run after run of kPairedPanels panels of each.
std::vector<int64_t> place_matrices(ModelWeights& weights) {
    std::map<const PackedMatrix*, const PackedMatrix*> gate_of_up;
    for (LayerWeights& layer : weights.layers) {
        layer.gate.run = layer.up.run = kPairedPanels;
        layer.gate.run_stride = layer.up.run_stride =
            kPairedPanels * (layer.gate.panel_bytes + layer.up.panel_bytes);
        gate_of_up[&layer.up] = &layer.gate;
    }
    std::vector<int64_t> offsets = {0};
    for (const MatrixSource& source : weights.sources) {
        const PackedMatrix& matrix = *source.matrix;
        const auto found = gate_of_up.find(&matrix);
        if (found == gate_of_up.end()) {
            offsets.push_back(offsets.back() + matrix.num_panels() * matrix.panel_bytes);
        } else { // its gate comes just before it
            const int64_t first = offsets[offsets.size() - 2];
            const int64_t num_runs = (matrix.num_panels() + kPairedPanels - 1) / kPairedPanels;
            offsets.back() = first + kPairedPanels * found->second->panel_bytes;
            offsets.push_back(first + num_runs * matrix.run_stride);
        }
    }
    return offsets;
}

std::vector<PackItem> plan_items(const ModelWeights& weights) {
    std::vector<PackItem> items;
    for (const MatrixSource& source : weights.sources) {
        const int64_t num_panels = source.matrix->num_panels();
        const int64_t panel_stored = kPanelRows * row_size_bytes(source.matrix->type, source.matrix->cols);
        const int64_t count = std::max<int64_t>(1, kStoredBytesPerChunk / panel_stored);
        for (int64_t panel = 0; panel < num_panels; panel += count) {
            items.push_back({source, panel, std::min(panel + count, num_panels)});
        }
    }
    return items;
}

} // namespace

void pack_weights(ThreadPool& pool, ModelWeights& weights) {
    const std::vector<int64_t> offsets = place_matrices(weights);
    weights.arena = Arena(offsets.back());
    for (size_t i = 0; i < weights.sources.size(); i++) {
        weights.sources[i].matrix->data = weights.arena.data() + offsets[i];
    }
    const std::vector<PackItem> items = plan_items(weights);
    pool.parallel_for(static_cast<int64_t>(items.size()), 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) {
            const PackItem& item = items[static_cast<size_t>(i)];
            const PackedMatrix& matrix = *item.source.matrix;
            for (int64_t panel = item.panel_begin; panel < item.panel_end; panel++) {
                // The arena is ours and not shared yet, so writing through the view is fine.
                pack_panel(matrix, item.source.stored, panel, const_cast<uint8_t*>(matrix.panel(panel)));
            }
            item.release();
        }
    });
    // Reading maps pages around those read, also ones that were released before.
    for (const PackItem& item : items) {
        item.release();
    }
    weights.sources.clear();
}

} // namespace ridgeline
