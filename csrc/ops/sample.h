// The sampler: a row of logits -> a token, with log-probabilities. Each row is worked alone.
#pragma once

#include <string>
#include <vector>

#include "growing_buffer.h"
#include "ops/sampling_kernels.h"
#include "ops/sampling_row.h"

namespace ridgeline {

// A token that is still in the race.
struct Candidate {
    int32_t token_id;
    double value;
    int64_t mass;
};

// Room for one row.
struct SampleScratch {
    GrowingBuffer<double> adjusted;
    GrowingBuffer<double> weights;
    GrowingBuffer<int64_t> masses;
    GrowingBuffer<int64_t> block_sums;
    GrowingBuffer<float> maxima_f32;
    GrowingBuffer<double> maxima_f64;
    std::vector<double> values;
    std::vector<Candidate> candidates;
    std::vector<Candidate> ranked;
    std::vector<int64_t> bin_masses;
};

// One row of logits, and whose it is; `output_position` tokens of its output are there already.
struct SampleCall {
    const float* logits;
    int64_t vocab_size;
    const SamplingRow* row;
    int64_t output_position;
    const uint32_t* allowed; // bit i % 32 of word i / 32: token i may come; null: all may
};

// Entry 0 is the token itself, then the best ones in order.
struct RowLogprobs {
    std::vector<int32_t> token_ids;
    std::vector<double> logprobs;
    std::vector<int64_t> ranks;
};

// Whether more than a look at each logit is needed, so that several rows are worth a second thread.
bool is_costly(const SampleCall& call);

// The chosen token, or -1 with a message in `error`.
int32_t sample_row(const SamplingKernels& kernels, const SampleCall& call, SampleScratch& scratch,
                   RowLogprobs* logprobs, std::string& error);

// Logprobs of a known token and the `num_logprobs` best (-1: all); false with a message in `error`.
bool token_logprobs(const SamplingKernels& kernels, const SampleCall& call, int32_t token_id,
                    int64_t num_logprobs, SampleScratch& scratch, RowLogprobs& out, std::string& error);

} // namespace ridgeline
