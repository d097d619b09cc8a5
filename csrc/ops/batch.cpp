#include "ops/batch.h"

namespace ridgeline {

namespace {

std::string at(const char* name, int64_t index, int64_t value, const std::string& remedy) {
    return std::string(name) + "[" + std::to_string(index) + "] = " + std::to_string(value) + ": " + remedy;
}

// Every value in [0, end).
std::string check_range(const char* name, const int32_t* values, int64_t count, int64_t end) {
    for (int64_t i = 0; i < count; i++) {
        if (values[i] < 0 || values[i] >= end) {
            return at(name, i, values[i], "must be in [0, " + std::to_string(end) + ")");
        }
    }
    return {};
}

std::string check_starts(const Batch& batch) {
    const int32_t* const starts = batch.query_start_loc;
    if (starts[0] != 0) {
        return at("query_start_loc", 0, starts[0], "must be 0");
    }
    for (int64_t s = 0; s < batch.num_seqs; s++) {
        if (starts[s + 1] <= starts[s]) {
            return at("query_start_loc", s + 1, starts[s + 1], "every sequence has at least one token");
        }
    }
    if (starts[batch.num_seqs] != batch.num_tokens) {
        return at("query_start_loc", batch.num_seqs, starts[batch.num_seqs],
                  "must be the number of tokens, " + std::to_string(batch.num_tokens));
    }
    return {};
}

std::string check_sequence(const Batch& batch, const KVCache& cache, int64_t seq) {
    const int64_t begin = batch.query_start_loc[seq];
    const int64_t end = batch.query_start_loc[seq + 1];
    const int64_t seq_len = batch.seq_lens[seq];
    if (seq_len < end - begin) {
        return at("seq_lens", seq, seq_len, "shorter than the sequence's own tokens");
    }
    const int64_t num_blocks = (seq_len + cache.block_size - 1) / cache.block_size;
    if (num_blocks > batch.max_blocks) {
        return at("seq_lens", seq, seq_len,
                  "needs " + std::to_string(num_blocks) + " blocks, the table has " +
                      std::to_string(batch.max_blocks));
    }
    for (int64_t i = begin; i < end; i++) {
        const int64_t expected = seq_len - (end - i);
        if (batch.positions[i] != expected) {
            return at("positions", i, batch.positions[i],
                      "the tokens of a sequence are the last of its context, so this one is at " +
                          std::to_string(expected));
        }
    }
    return check_range("block_tables", batch.block_tables + seq * batch.max_blocks, num_blocks,
                       cache.num_blocks);
}

} // namespace

std::string check_sequences(const Batch& batch, const KVCache& cache) {
    std::string error = check_starts(batch);
    for (int64_t seq = 0; error.empty() && seq < batch.num_seqs; seq++) {
        error = check_sequence(batch, cache, seq);
    }
    return error;
}

std::string check_batch(const Batch& batch, const KVCache& cache, int64_t vocab_size) {
    std::string error = check_range("token_ids", batch.token_ids, batch.num_tokens, vocab_size);
    if (error.empty()) {
        error = check_sequences(batch, cache);
    }
    if (error.empty()) {
        error = check_range("block_copies", batch.block_copies, 2 * batch.num_copies, cache.num_blocks);
    }
    if (error.empty()) {
        error = check_range("logits_rows", batch.logits_rows, batch.num_logits, batch.num_tokens);
    }
    return error;
}

} // namespace ridgeline
