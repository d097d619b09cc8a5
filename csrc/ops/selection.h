// Choosing tokens of one row without sorting it: the largest values, the nucleus, one draw.
//
// Ranking: the larger value first, of equal ones the lower id; a total order, so no result depends on how a
// selection works. The NumPy twin is sampling/selection.py.
#pragma once

#include <vector>

#include "ops/sample.h"

namespace ridgeline {

// Values of a row and the maxima of its blocks of 64.
template <class Value>
struct RowView {
    const Value* values;
    const Value* maxima;
    int64_t vocab_size;

    int64_t num_blocks() const { return (vocab_size + kSampleBlock - 1) / kSampleBlock; }
};

// Tokens of at least `least`, by id; looks only into blocks that have one.
template <class Value>
void collect_at_least(const RowView<Value>& row, double least, std::vector<Candidate>& out);

// The `count` first of the ranking (1 <= count), by id.
template <class Value>
void collect_largest(const RowView<Value>& row, int64_t count, SampleScratch& scratch);

// First token id that has `best`, which must be there.
template <class Value>
int32_t first_of(const RowView<Value>& row, Value best);

// Sorts by rank.
void rank(std::vector<Candidate>& candidates);

// Mass that a nucleus of top_p < 1 must have.
int64_t nucleus_mass(double top_p, int64_t total);

// Leaves in scratch.candidates (by id) the shortest beginning of their ranking that holds `needed` mass.
void keep_nucleus(int64_t needed, SampleScratch& scratch);

// A whole number in [0, total) for a draw keyed by these alone (Philox4x64-10; sampling/rng.py).
int64_t draw_below(int64_t total, uint64_t seed, uint64_t choice_index, uint64_t output_position);

} // namespace ridgeline
