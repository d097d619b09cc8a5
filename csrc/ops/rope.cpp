#include "ops/rope.h"

#include <cmath>

namespace ridgeline {

void rope_angles(int32_t position, const double* inv_freq, int64_t num_pairs, float* cosine, float* sine) {
    for (int64_t i = 0; i < num_pairs; i++) {
        const double angle = position * inv_freq[i];
        cosine[i] = static_cast<float>(std::cos(angle));
        sine[i] = static_cast<float>(std::sin(angle));
    }
}

void rope(const RopeAngles& angles, float* heads, int64_t num_heads, int64_t head_dim) {
    const int64_t step = angles.is_neox ? 1 : 2;
    const int64_t partner = angles.is_neox ? angles.num_pairs : 1;
    for (int64_t head = 0; head < num_heads; head++) {
        float* const x = heads + head * head_dim;
        for (int64_t i = 0; i < angles.num_pairs; i++) {
            float& first = x[i * step];
            float& second = x[i * step + partner];
            const float a = first;
            const float b = second;
            first = a * angles.cosine[i] - b * angles.sine[i];
            second = a * angles.sine[i] + b * angles.cosine[i];
        }
    }
}

} // namespace ridgeline
