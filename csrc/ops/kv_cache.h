// The paged KV cache: where a layer's keys and values of a position lie, and the writes to it.
//
//   [num_blocks][num_layers][num_kv_heads] x { K [head_dim][block_size], V [block_size][head_dim] }   fp16
//
// K is transposed within a block so that the scores of neighbouring positions are neighbouring lanes.
#pragma once

#include "dispatch.h"

namespace ridgeline {

struct KVCache {
    uint16_t* data;
    int64_t num_blocks;
    int64_t num_layers;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t block_size;

    // Values of K (or of V) of one layer and head in a block.
    int64_t head_size() const { return head_dim * block_size; }
    int64_t block_values() const { return num_layers * num_kv_heads * 2 * head_size(); }
    uint16_t* keys(int64_t block, int64_t layer, int64_t kv_head) const {
        return data + ((block * num_layers + layer) * num_kv_heads + kv_head) * 2 * head_size();
    }
    uint16_t* values(int64_t block, int64_t layer, int64_t kv_head) const {
        return keys(block, layer, kv_head) + head_size();
    }
};

// Where a token's keys and values go.
struct KVSlot {
    int64_t block;
    int64_t layer;
    int64_t offset;
};

// Copies whole blocks, pairs (source, destination) in order.
void copy_blocks(const KVCache& cache, const int32_t* block_copies, int64_t num_copies);

// Stores one token's keys and values [num_kv_heads][head_dim], rounded to fp16; halves has room for head_dim.
void write_kv(const KernelTable& kernels, const KVCache& cache, const KVSlot& slot, const float* keys,
              const float* values, uint16_t* halves);

} // namespace ridgeline
