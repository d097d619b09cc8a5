// The walk over panels and tokens that the vector instruction sets share. Static, so that no copy compiled
// with the flags of one can stand in for another's.
#pragma once

#include <cstring>

#include "dispatch.h"

namespace ridgeline {

// One panel and its input from one token on; `next` is fetched meanwhile if not null.
struct Tile {
    const PackedMatrix* weight;
    const uint8_t* panel;
    const Activations* x;
    int64_t token;
    const uint8_t* next;
};

// Fetches num_bytes at `next` and returns what comes after; does nothing for null.
static inline const uint8_t* prefetch(const uint8_t* next, int64_t num_bytes) {
    if (next == nullptr) {
        return nullptr;
    }
    for (int64_t i = 0; i < num_bytes; i += kCacheLine) {
        __builtin_prefetch(next + i, 0, 2);
    }
    return next + num_bytes;
}

template <int max_tokens>
using TileSums = float[max_tokens][kPanelRows];

template <int max_tokens>
using RunTile = void (*)(const Tile& tile, TileSums<max_tokens>& acc);

// run_tile[n] computes a tile of n tokens, all 16 rows. All tokens pass over a panel before the next one.
// With more than one tile of tokens the hardware prefetcher loses the stream of weights while a panel is read
// again, so the last tile fetches the next panel.
template <int max_tokens>
static void walk_tiles(const MatmulSlice& slice, const Activations& activations,
                       const RunTile<max_tokens> (&run_tile)[max_tokens + 1]) {
    for (int64_t p = slice.panel_begin; p < slice.panel_end; p++) {
        const int64_t rows_left = slice.weight->rows - p * kPanelRows;
        const auto row_bytes = static_cast<size_t>(rows_left < kPanelRows ? rows_left : kPanelRows) * 4;
        float* const out = slice.out + (p - slice.panel_begin) * kPanelRows;
        int64_t count = 0;
        for (int64_t token = slice.token_begin; token < slice.token_end; token += count) {
            const int64_t left = slice.token_end - token;
            const int64_t lanes_left =
                kTokenTile - token % kTokenTile; // a tile lies in one tile of the input
            count = left < max_tokens ? left : max_tokens;
            count = lanes_left < count ? lanes_left : count;
            const bool fetches_next = token > slice.token_begin && left == count && p + 1 < slice.panel_end;
            const Tile tile = {slice.weight, slice.weight->panel(p), &activations, token,
                               fetches_next ? slice.weight->panel(p + 1) : nullptr};
            alignas(kCacheLine) TileSums<max_tokens> acc = {};
            run_tile[count](tile, acc);
            for (int64_t t = 0; t < count; t++) {
                std::memcpy(out + (token - slice.token_begin + t) * slice.out_stride, acc[t], row_bytes);
            }
        }
    }
}

} // namespace ridgeline
