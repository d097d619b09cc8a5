// What the sampler knows of one request: its settings, and the tokens its penalties count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ridgeline {

struct SamplingRow {
    double temperature = 1.0; // 0: the best token
    int64_t top_k = 0;        // <= 0: all
    double top_p = 1.0;
    double min_p = 0.0;
    uint64_t seed = 0;
    uint64_t choice_index = 0;
    int64_t num_logprobs = -2; // of the best tokens beside the chosen one; -1: all; -2: no logprobs at all
    int64_t min_tokens = 0;    // until then none of `held_back` comes
    double repetition_penalty = 1.0;
    double presence_penalty = 0.0;
    double frequency_penalty = 0.0;

    std::vector<int32_t> held_back;
    std::vector<std::pair<int32_t, double>> logit_bias;
    // Grown by what is new in a step, so that a step does not cost what the text is long.
    std::vector<int32_t> seen;                       // prompt and output, each once
    std::unordered_map<int32_t, int64_t> num_output; // of each token
    int64_t num_counted = 0;                         // output tokens counted
    int64_t id_limit = 0;                            // no id above is below 0 or reaches this

    void hold_back(const std::vector<int32_t>& token_ids) { held_back = token_ids; }

    void add_logit_bias(int32_t token_id, double bias) {
        logit_bias.emplace_back(token_id, bias);
        note(token_id);
    }

    void count_prompt(const std::vector<int32_t>& token_ids) {
        for (const int32_t token_id : token_ids) {
            see(token_id);
        }
    }

    void count_output(const std::vector<int32_t>& token_ids) {
        for (const int32_t token_id : token_ids) {
            see(token_id);
            num_output[token_id]++;
        }
        num_counted += static_cast<int64_t>(token_ids.size());
    }

  private:
    void note(int32_t token_id) {
        id_limit = token_id < 0 ? INT64_MAX : std::max(id_limit, int64_t{token_id} + 1);
    }

    void see(int32_t token_id) {
        note(token_id);
        const auto index = static_cast<size_t>(std::max(token_id, 0));
        if (index >= is_seen_.size()) {
            is_seen_.resize(index + 1);
        }
        if (!is_seen_[index]) {
            is_seen_[index] = true;
            seen.push_back(token_id);
        }
    }

    std::vector<bool> is_seen_;
};

} // namespace ridgeline
