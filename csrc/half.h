// Half precision in plain C++. Its functions are static, so that no copy compiled with the flags of one
// instruction set can stand in for another's; files with intrinsics convert with those instead.
#pragma once

#include <cstdint>
#include <cstring>

namespace ridgeline {

static inline float float_from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 31;
    const uint32_t mantissa = half & 1023;
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    if (exponent == 31) {
        const uint32_t quiet = mantissa != 0 ? 0x400000 : 0;
        return float_from_bits(sign | 0x7f800000 | quiet | mantissa << 13);
    }
    return float_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Rounds to nearest even.
static inline uint16_t half_from_float(float value) {
    const uint32_t bits = bits_of(value);
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    }
    if (magnitude >= 0x477ff000) { // 65520 and above round to infinity
        return static_cast<uint16_t>(sign | 0x7c00);
    }
    if (magnitude < 0x38800000) { // below the smallest normal half: adding 0.5 leaves multiples of 2^-24
        const uint32_t rounded = bits_of(float_from_bits(magnitude) + 0.5f) - bits_of(0.5f);
        return static_cast<uint16_t>(sign | rounded);
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112 << 10)));
}

} // namespace ridgeline
