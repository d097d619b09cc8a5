// A model's dimensions and weights, found by their names among a file's tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dispatch.h"

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

// A tensor as stored: row-major shape, num_bytes bytes at data, which the caller keeps alive.
struct StoredTensor {
    int32_t type_id;
    std::vector<int64_t> shape;
    const uint8_t* data;
    int64_t num_bytes;
};

using StoredTensors = std::map<std::string, StoredTensor>;

// Matrices stay where they are stored; vectors are small and become float.
struct LayerWeights {
    std::vector<float> attn_norm, ffn_norm;
    std::vector<float> q_norm, k_norm;         // empty unless has_qk_norm
    std::vector<float> q_bias, k_bias, v_bias; // empty unless has_qkv_bias
    WeightMatrix q, k, v, output, gate, up, down;
};

struct ModelWeights {
    WeightMatrix token_embd;
    WeightMatrix lm_head;
    std::vector<float> output_norm;
    std::vector<LayerWeights> layers;
};

// Says what is wrong with dimensions that the kernels can't work with; empty if nothing is.
std::string check_dims(const ModelDims& dims);

// Fills `weights` from tensors under their GGUF names; on failure says which one is missing or wrong.
std::string find_weights(const ModelDims& dims, const StoredTensors& tensors, ModelWeights& weights);

} // namespace ridgeline
