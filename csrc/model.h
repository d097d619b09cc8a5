// A model's dimensions and weights, found by their names among a file's tensors and packed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "arena.h"
#include "dispatch.h"
#include "thread_pool.h"

namespace ridgeline {

struct ModelDims {
    int64_t num_layers = 0;
    int64_t hidden_size = 0;
    int64_t num_heads = 0;
    int64_t num_kv_heads = 0;
    int64_t head_dim = 0;
    int64_t ffn_size = 0;
    int64_t vocab_size = 0;
    float rms_norm_eps = 0.0f;
    bool rope_is_neox = false;
    std::vector<double> rope_inv_freq; // one per rotated pair; float32 values
    bool has_qkv_bias = false;
    bool has_qk_norm = false;
    bool is_tied = false;

    int64_t q_size() const { return num_heads * head_dim; }
    int64_t kv_size() const { return num_kv_heads * head_dim; }
    int64_t num_rope_pairs() const { return static_cast<int64_t>(rope_inv_freq.size()); }
};

// A tensor as stored: row-major shape, num_bytes bytes at data, which the caller keeps alive, and whether
// they are part of a mapped file.
struct StoredTensor {
    int32_t type_id;
    std::vector<int64_t> shape;
    const uint8_t* data;
    int64_t num_bytes;
    bool is_mapped;
};

using StoredTensors = std::map<std::string, StoredTensor>;

// Matrices are packed into one arena; vectors are small and become float.
struct LayerWeights {
    std::vector<float> attn_norm, ffn_norm;
    std::vector<float> q_norm, k_norm;         // empty unless has_qk_norm
    std::vector<float> q_bias, k_bias, v_bias; // empty unless has_qkv_bias
    PackedMatrix q, k, v, output, gate, up, down;
};

// A matrix in the arena and the stored bytes that it is packed from.
struct MatrixSource {
    PackedMatrix* matrix;
    const uint8_t* stored;
    bool is_mapped;
};

struct ModelWeights {
    PackedMatrix token_embd; // the head, too, of a tied model
    PackedMatrix lm_head;    // of an untied one
    std::vector<float> output_norm;
    std::vector<LayerWeights> layers;
    std::vector<MatrixSource> sources; // in the order of a step; only until packed
    Arena arena;

    const PackedMatrix& head(const ModelDims& dims) const { return dims.is_tied ? token_embd : lm_head; }
};

// Says what is wrong with dimensions that the kernels can't work with; empty if nothing is.
std::string check_dims(const ModelDims& dims);

// Finds tensors under their GGUF names and plans their packing; on failure says which one is missing or
// wrong.
std::string find_weights(const ModelDims& dims, const StoredTensors& tensors, ModelWeights& weights);

// Packs all matrices into the arena with all threads, and gives pages of mapped files back to the system as
// soon as they are packed. Afterwards the tensors are not needed any more.
void pack_weights(ThreadPool& pool, ModelWeights& weights);

} // namespace ridgeline
