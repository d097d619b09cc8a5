// The ragged batch of one step: S sequences with T tokens in all, flattened.
#pragma once

#include <cstdint>
#include <string>

#include "ops/kv_cache.h"

namespace ridgeline {

struct Batch {
    int64_t num_tokens;             // T
    int64_t num_seqs;               // S
    int64_t max_blocks;             // B, columns of block_tables
    int64_t num_copies;             // C
    int64_t num_logits;             // R
    const int32_t* token_ids;       // [T]
    const int32_t* positions;       // [T]
    const int32_t* query_start_loc; // [S + 1], first token of each sequence
    const int32_t* seq_lens;        // [S], context length after the step
    const int32_t* block_tables;    // [S][B]
    const int32_t* block_copies;    // [C][2], source and destination
    const int32_t* logits_rows;     // [R], tokens whose logits are wanted
};

// Says what is wrong with the batch, naming the array, the index and the value; empty if nothing is. A
// checked batch makes no op read or write outside the cache.
std::string check_batch(const Batch& batch, const KVCache& cache, int64_t vocab_size);

// The part of check_batch that attention relies on: sequences, positions and block tables.
std::string check_sequences(const Batch& batch, const KVCache& cache);

} // namespace ridgeline
