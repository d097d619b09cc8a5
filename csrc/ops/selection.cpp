#include "ops/selection.h"

#include <algorithm>
#include <cmath>

namespace ridgeline {

namespace {

constexpr int64_t kFewCandidates = 64; // so few are sorted
constexpr int kNumBins = 1024;

bool is_before(const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.token_id < b.token_id);
}

bool is_not_after(const Candidate& a, const Candidate& last) {
    return !is_before(last, a);
}

void keep_until(const Candidate& last, std::vector<Candidate>& candidates) {
    const auto is_left_out = [&](const Candidate& candidate) { return !is_not_after(candidate, last); };
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), is_left_out), candidates.end());
}

} // namespace

template <class Value>
void collect_at_least(const RowView<Value>& row, double least, std::vector<Candidate>& out) {
    out.clear();
    for (int64_t block = 0; block < row.num_blocks(); block++) {
        if (static_cast<double>(row.maxima[block]) < least) {
            continue;
        }
        const int64_t end = std::min((block + 1) * kSampleBlock, row.vocab_size);
        for (int64_t i = block * kSampleBlock; i < end; i++) {
            const auto value = static_cast<double>(row.values[i]);
            if (value >= least) {
                out.push_back({static_cast<int32_t>(i), value, 0});
            }
        }
    }
}

// At least `count` values reach the count-th largest of the blocks' maxima, and seldom many more do.
template <class Value>
void collect_largest(const RowView<Value>& row, int64_t count, SampleScratch& scratch) {
    double least = -HUGE_VAL;
    const int64_t num_blocks = row.num_blocks();
    if (count <= num_blocks) {
        scratch.values.assign(row.maxima, row.maxima + num_blocks);
        const auto nth = scratch.values.begin() + (count - 1);
        std::nth_element(scratch.values.begin(), nth, scratch.values.end(), std::greater<double>());
        least = *nth;
    }
    collect_at_least(row, least, scratch.candidates);
    if (static_cast<int64_t>(scratch.candidates.size()) > count) {
        scratch.ranked = scratch.candidates;
        const auto nth = scratch.ranked.begin() + (count - 1);
        std::nth_element(scratch.ranked.begin(), nth, scratch.ranked.end(), is_before);
        keep_until(*nth, scratch.candidates);
    }
}

template <class Value>
int32_t first_of(const RowView<Value>& row, Value best) {
    int64_t i = kSampleBlock * (std::find(row.maxima, row.maxima + row.num_blocks(), best) - row.maxima);
    while (row.values[i] != best) {
        i++;
    }
    return static_cast<int32_t>(i);
}

void rank(std::vector<Candidate>& candidates) {
    std::sort(candidates.begin(), candidates.end(), is_before);
}

int64_t nucleus_mass(double top_p, int64_t total) {
    const auto needed = static_cast<int64_t>(std::ceil(top_p * static_cast<double>(total)));
    return std::min(std::max(needed, int64_t{1}), total);
}

namespace {

// Values are finite: what has a mass is. Finds the bin of values in which the nucleus ends: leaves the bin's
// candidates in scratch.ranked and returns what they must add to the better bins' mass.
int64_t narrow_to_bin(int64_t needed, SampleScratch& scratch) {
    double best = -HUGE_VAL, worst = HUGE_VAL;
    for (const Candidate& candidate : scratch.candidates) {
        best = std::max(best, candidate.value);
        worst = std::min(worst, candidate.value);
    }
    const double bins_per_unit = 1.0 / std::max((best - worst) / (kNumBins - 1), 1e-300);
    const auto bin_of = [&](const Candidate& candidate) {
        return static_cast<size_t>(std::min((best - candidate.value) * bins_per_unit, kNumBins - 1.0));
    };
    std::vector<int64_t>& bin_masses = scratch.bin_masses;
    bin_masses.assign(kNumBins, 0);
    for (const Candidate& candidate : scratch.candidates) {
        bin_masses[bin_of(candidate)] += candidate.mass;
    }
    size_t last_bin = 0;
    while (needed > bin_masses[last_bin]) {
        needed -= bin_masses[last_bin++];
    }
    scratch.ranked.clear();
    for (const Candidate& candidate : scratch.candidates) {
        if (bin_of(candidate) == last_bin) {
            scratch.ranked.push_back(candidate);
        }
    }
    return needed;
}

} // namespace

// In the bin it halves the undecided part of the ranking: either the better half holds what is still needed,
// and the nucleus ends in it, or all of it belongs to the nucleus.
void keep_nucleus(int64_t needed, SampleScratch& scratch) {
    needed = narrow_to_bin(needed, scratch);
    Candidate* begin = scratch.ranked.data();
    Candidate* end = begin + scratch.ranked.size();
    while (end - begin > kFewCandidates) {
        Candidate* const middle = begin + (end - begin) / 2;
        std::nth_element(begin, middle, end, is_before);
        int64_t mass = 0;
        for (const Candidate* candidate = begin; candidate < middle; candidate++) {
            mass += candidate->mass;
        }
        if (mass >= needed) {
            end = middle;
        } else {
            needed -= mass;
            begin = middle;
        }
    }
    std::sort(begin, end, is_before);
    while (needed > begin->mass) {
        needed -= begin->mass;
        begin++;
    }
    keep_until(*begin, scratch.candidates);
}

int64_t draw_below(int64_t total, uint64_t seed, uint64_t choice_index, uint64_t output_position) {
    __extension__ using Wide = unsigned __int128;
    uint64_t c0 = output_position, c1 = 0, c2 = 0, c3 = 0, k0 = seed, k1 = choice_index;
    for (int round = 0; round < 10; round++) {
        const Wide product_0 = Wide{0xD2E7470EE14C6C93} * c0;
        const Wide product_1 = Wide{0xCA5A826395121157} * c2;
        c0 = static_cast<uint64_t>(product_1 >> 64) ^ c1 ^ k0;
        c1 = static_cast<uint64_t>(product_1);
        c2 = static_cast<uint64_t>(product_0 >> 64) ^ c3 ^ k1;
        c3 = static_cast<uint64_t>(product_0);
        k0 += 0x9E3779B97F4A7C15;
        k1 += 0xBB67AE8584CAA73B;
    }
    return static_cast<int64_t>((Wide{c0 >> 11} * static_cast<uint64_t>(total)) >> 53);
}

template void collect_at_least(const RowView<float>&, double, std::vector<Candidate>&);
template void collect_at_least(const RowView<double>&, double, std::vector<Candidate>&);
template void collect_largest(const RowView<float>&, int64_t, SampleScratch&);
template void collect_largest(const RowView<double>&, int64_t, SampleScratch&);
template int32_t first_of(const RowView<float>&, float);
template int32_t first_of(const RowView<double>&, double);

} // namespace ridgeline
