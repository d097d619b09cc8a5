#include "ops/sample.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "ops/selection.h"

namespace ridgeline {

namespace {

// Beyond these a penalty has long had its full effect; inside them no float logit can overflow double.
constexpr double kMinPenalty = 1e-200, kMaxPenalty = 1e200;

// ---- what differs between rows of float and rows of double ---------------------------------------------

bool find_maxima(const SamplingKernels& kernels, RowView<float>& row, SampleScratch& scratch) {
    float* const maxima = scratch.maxima_f32.reserve(row.num_blocks());
    row.maxima = maxima;
    return kernels.block_maxima_f32(row.values, row.vocab_size, maxima);
}

bool find_maxima(const SamplingKernels& kernels, RowView<double>& row, SampleScratch& scratch) {
    double* const maxima = scratch.maxima_f64.reserve(row.num_blocks());
    row.maxima = maxima;
    return kernels.block_maxima_f64(row.values, row.vocab_size, maxima);
}

auto masses_kernel(const SamplingKernels& kernels, const float*) {
    return kernels.masses_f32;
}

auto masses_kernel(const SamplingKernels& kernels, const double*) {
    return kernels.masses_f64;
}

template <class Value>
Value best_of(const RowView<Value>& row) {
    return *std::max_element(row.maxima, row.maxima + row.num_blocks());
}

// ---- logits processors, in the order of sampling/sampler.py --------------------------------------------

bool holds_back(const SampleCall& call) {
    return call.output_position < call.row->min_tokens;
}

bool is_adjusted(const SampleCall& call) {
    const SamplingRow& row = *call.row;
    const bool counts =
        !row.num_output.empty() && (row.frequency_penalty != 0.0 || row.presence_penalty != 0.0);
    return call.allowed != nullptr || holds_back(call) || !row.logit_bias.empty() ||
           row.repetition_penalty != 1.0 || counts;
}

void allow_tokens(double* logits, int64_t vocab_size, const uint32_t* allowed) {
    for (int64_t begin = 0; begin < vocab_size; begin += 32) {
        const uint32_t bits = allowed[begin / 32];
        if (bits == UINT32_MAX) {
            continue;
        }
        const int64_t end = std::min(begin + 32, vocab_size);
        for (int64_t i = begin; i < end; i++) {
            logits[i] = (bits >> (i - begin) & 1) != 0 ? logits[i] : -HUGE_VAL;
        }
    }
}

// A mask that would leave nothing to choose is not applied.
void mask_tokens(double* logits, int64_t vocab_size, const std::vector<int32_t>& token_ids) {
    std::vector<std::pair<int32_t, double>> before;
    for (const int32_t token_id : token_ids) {
        if (token_id < vocab_size) {
            before.emplace_back(token_id, logits[token_id]);
            logits[token_id] = -HUGE_VAL;
        }
    }
    const auto is_possible = [](double logit) { return logit > -HUGE_VAL; };
    if (std::none_of(logits, logits + vocab_size, is_possible)) {
        std::for_each(before.rbegin(), before.rend(),
                      [&](const auto& entry) { logits[entry.first] = entry.second; });
    }
}

void penalize(double* logits, const SamplingRow& row) {
    if (row.repetition_penalty != 1.0) {
        const double penalty = std::min(std::max(row.repetition_penalty, kMinPenalty), kMaxPenalty);
        for (const int32_t token_id : row.seen) {
            double& logit = logits[token_id];
            logit = logit > 0.0 ? logit / penalty : logit * penalty;
        }
    }
    if (row.frequency_penalty != 0.0 || row.presence_penalty != 0.0) {
        for (const auto& [token_id, count] : row.num_output) {
            logits[token_id] -= row.frequency_penalty * static_cast<double>(count) + row.presence_penalty;
        }
    }
}

// The logits after the processors that this row needs, or null with a message.
const double* adjust(const SampleCall& call, SampleScratch& scratch, std::string& error) {
    double* const logits = scratch.adjusted.reserve(call.vocab_size);
    std::copy(call.logits, call.logits + call.vocab_size, logits);
    if (call.allowed != nullptr) {
        allow_tokens(logits, call.vocab_size, call.allowed);
        if (std::all_of(logits, logits + call.vocab_size, [](double x) { return x == -HUGE_VAL; })) {
            error = "no token is allowed";
            return nullptr;
        }
    }
    if (holds_back(call)) {
        mask_tokens(logits, call.vocab_size, call.row->held_back);
    }
    for (const auto& [token_id, bias] : call.row->logit_bias) {
        logits[token_id] += bias;
    }
    penalize(logits, *call.row);
    return logits;
}

// ---- the choice ----------------------------------------------------------------------------------------

// The value that a draw hits; block sums lead to the block.
int32_t pick(const int64_t* masses, const int64_t* block_sums, int64_t target) {
    int64_t block = 0;
    while (target >= block_sums[block]) {
        target -= block_sums[block++];
    }
    int64_t i = block * kSampleBlock;
    while (target >= masses[i]) {
        target -= masses[i++];
    }
    return static_cast<int32_t>(i);
}

int64_t draw(const SampleCall& call, int64_t total) {
    return draw_below(total, call.row->seed, call.row->choice_index,
                      static_cast<uint64_t>(call.output_position));
}

int32_t pick_candidate(const SampleCall& call, const std::vector<Candidate>& candidates) {
    int64_t total = 0;
    for (const Candidate& candidate : candidates) {
        total += candidate.mass;
    }
    int64_t target = draw(call, total);
    size_t i = 0;
    while (target >= candidates[i].mass) {
        target -= candidates[i++].mass;
    }
    return candidates[i].token_id;
}

// Tokens that a nucleus of `needed` mass may have, by id. First those of much mass are tried, and last all
// but those too light to matter: together they have no more than the nucleus may lack. Masses grow with
// values up to one unit of rounding, so what lies above a threshold is the beginning of the ranking, and the
// nucleus ends in it, if what lies above by more than one unit is enough. Mass 0 is never drawn.
template <class Value>
void collect_nucleus(const RowView<Value>& row, const int64_t* masses, const int64_t* block_sums,
                     int64_t total, int64_t needed, SampleScratch& scratch) {
    const int64_t least = std::max((total - needed) / row.vocab_size, int64_t{1});
    for (const int shift : {12, 16, 63}) {
        const int64_t threshold = std::max(total >> shift, least);
        int64_t mass_above = 0;
        scratch.candidates.clear();
        for (int64_t block = 0; block < row.num_blocks(); block++) {
            if (block_sums[block] < threshold) {
                continue;
            }
            const int64_t end = std::min((block + 1) * kSampleBlock, row.vocab_size);
            for (int64_t i = block * kSampleBlock; i < end; i++) {
                if (masses[i] >= threshold) {
                    const auto value = static_cast<double>(row.values[i]);
                    scratch.candidates.push_back({static_cast<int32_t>(i), value, masses[i]});
                    mass_above += masses[i] > threshold ? masses[i] : 0;
                }
            }
        }
        if (mass_above >= needed || threshold == least) {
            return;
        }
    }
}

// Every token has a mass.
template <class Value>
int32_t choose_of_all(const SamplingKernels& kernels, const SampleCall& call, const RowView<Value>& row,
                      double best, SampleScratch& scratch) {
    const double scale = 1.0 / std::max(call.row->temperature, DBL_MIN);
    int64_t* const masses = scratch.masses.reserve(row.vocab_size);
    int64_t* const block_sums = scratch.block_sums.reserve(row.num_blocks());
    masses_kernel(kernels, row.values)(row.values, row.vocab_size, best, scale, masses, block_sums);
    int64_t total = 0;
    for (int64_t block = 0; block < row.num_blocks(); block++) {
        total += block_sums[block];
    }
    if (call.row->top_p >= 1.0) {
        return pick(masses, block_sums, draw(call, total));
    }
    const int64_t needed = nucleus_mass(call.row->top_p, total);
    collect_nucleus(row, masses, block_sums, total, needed, scratch);
    keep_nucleus(needed, scratch);
    return pick_candidate(call, scratch.candidates);
}

// Only what passes top_k and min_p gets a mass.
template <class Value>
int32_t choose_of_few(const SamplingKernels& kernels, const SampleCall& call, const RowView<Value>& row,
                      double best, SampleScratch& scratch) {
    const SamplingRow& settings = *call.row;
    const double temperature = std::max(settings.temperature, DBL_MIN);
    std::vector<Candidate>& candidates = scratch.candidates;
    if (settings.top_k > 0 && settings.top_k < row.vocab_size) {
        collect_largest(row, settings.top_k, scratch);
    } else {
        // A value this far below the best has a weight below min_p whatever is rounded.
        const double reach =
            settings.min_p > 0.0 ? (std::log(settings.min_p) - 1e-9) * temperature : -HUGE_VAL;
        collect_at_least(row, best + reach - 1e-12 * (std::fabs(best) + std::fabs(reach)), candidates);
    }
    const auto count = static_cast<int64_t>(candidates.size());
    scratch.values.clear();
    for (const Candidate& candidate : candidates) {
        scratch.values.push_back(candidate.value);
    }
    double* const weights = scratch.weights.reserve(count);
    kernels.weights_f64(scratch.values.data(), count, best, 1.0 / temperature, weights);
    size_t num_kept = 0;
    int64_t total = 0;
    for (size_t i = 0; i < candidates.size(); i++) {
        const auto mass = static_cast<int64_t>(std::nearbyint(weights[i] * kMassOfBest));
        if (weights[i] >= settings.min_p && mass > 0) {
            candidates[num_kept++] = {candidates[i].token_id, candidates[i].value, mass};
            total += mass;
        }
    }
    candidates.resize(num_kept);
    if (settings.top_p < 1.0) {
        keep_nucleus(nucleus_mass(settings.top_p, total), scratch);
    }
    return pick_candidate(call, candidates);
}

template <class Value>
int32_t choose(const SamplingKernels& kernels, const SampleCall& call, const RowView<Value>& row,
               SampleScratch& scratch) {
    const Value best = best_of(row);
    const SamplingRow& settings = *call.row;
    if (settings.temperature == 0.0) {
        return first_of(row, best);
    }
    const bool is_limited = (settings.top_k > 0 && settings.top_k < row.vocab_size) || settings.min_p > 0.0;
    return is_limited ? choose_of_few(kernels, call, row, static_cast<double>(best), scratch)
                      : choose_of_all(kernels, call, row, static_cast<double>(best), scratch);
}

bool find_finite_best(const SamplingKernels& kernels, RowView<float>& row, SampleScratch& scratch,
                      std::string& error) {
    const bool has_nan = find_maxima(kernels, row, scratch);
    const float best = best_of(row);
    if (has_nan || !std::isfinite(best)) {
        const char* const shown = has_nan ? "nan" : best > 0 ? "inf" : "-inf";
        error = std::string("the model gave logits without a finite maximum (") + shown + ")";
        return false;
    }
    return true;
}

// Of a row whose maxima are known.
void find_logprobs(const SamplingKernels& kernels, const RowView<float>& row, int32_t token_id,
                   int64_t num_logprobs, SampleScratch& scratch, RowLogprobs& out) {
    const auto best = static_cast<double>(best_of(row));
    double* const weights = scratch.weights.reserve(row.vocab_size);
    kernels.weights_f32(row.values, row.vocab_size, best, 1.0, weights);
    const double log_total = best + std::log(kernels.halving_sum(weights, row.vocab_size));
    const float own = row.values[token_id];
    out.token_ids.assign(1, token_id);
    out.logprobs.assign(1, static_cast<double>(own) - log_total);
    out.ranks.assign(1, 1 + kernels.count_above(row.values, row.vocab_size, own) +
                            kernels.count_equal(row.values, token_id, own));
    const int64_t count = num_logprobs == -1 ? row.vocab_size : std::min(num_logprobs, row.vocab_size);
    if (count == 0) {
        return;
    }
    collect_largest(row, count, scratch);
    rank(scratch.candidates);
    int64_t position = 0;
    for (const Candidate& candidate : scratch.candidates) {
        out.token_ids.push_back(candidate.token_id);
        out.logprobs.push_back(candidate.value - log_total);
        out.ranks.push_back(++position);
    }
}

} // namespace

bool is_costly(const SampleCall& call) {
    const SamplingRow& row = *call.row;
    return row.temperature != 0.0 || row.num_logprobs >= -1 || is_adjusted(call);
}

int32_t sample_row(const SamplingKernels& kernels, const SampleCall& call, SampleScratch& scratch,
                   RowLogprobs* logprobs, std::string& error) {
    RowView<float> row = {call.logits, nullptr, call.vocab_size};
    if (!find_finite_best(kernels, row, scratch, error)) {
        return -1;
    }
    int32_t token_id = -1;
    if (is_adjusted(call)) {
        RowView<double> adjusted = {adjust(call, scratch, error), nullptr, call.vocab_size};
        if (adjusted.values == nullptr) {
            return -1;
        }
        find_maxima(kernels, adjusted, scratch);
        token_id = choose(kernels, call, adjusted, scratch);
    } else {
        token_id = choose(kernels, call, row, scratch);
    }
    if (logprobs != nullptr) {
        find_logprobs(kernels, row, token_id, call.row->num_logprobs, scratch, *logprobs);
    }
    return token_id;
}

bool token_logprobs(const SamplingKernels& kernels, const SampleCall& call, int32_t token_id,
                    int64_t num_logprobs, SampleScratch& scratch, RowLogprobs& out, std::string& error) {
    RowView<float> row = {call.logits, nullptr, call.vocab_size};
    if (!find_finite_best(kernels, row, scratch, error)) {
        return false;
    }
    find_logprobs(kernels, row, token_id, num_logprobs, scratch, out);
    return true;
}

} // namespace ridgeline
