// Rotary position embedding (RoFormer, section 3.4).
#pragma once

#include <cstdint>

namespace ridgeline {

// Angles of one token: cos and sin of position * inv_freq[i], computed in double.
void rope_angles(int32_t position, const double* inv_freq, int64_t num_pairs, float* cosine, float* sine);

// Which dimensions of a head are rotated together, num_pairs pairs in all: neighbours 2i and 2i + 1, or, in
// the order of GPT-NeoX, i and i + num_pairs. Dimensions past the pairs stay.
struct RopeAngles {
    const float* cosine;
    const float* sine;
    int64_t num_pairs;
    bool is_neox;
};

// Rotates num_heads heads of head_dim values in place.
void rope(const RopeAngles& angles, float* heads, int64_t num_heads, int64_t head_dim);

} // namespace ridgeline
