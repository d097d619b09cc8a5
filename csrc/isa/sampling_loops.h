// The sampler's loops, written so that a compiler turns each inner loop into vectors of whatever width its
// flags allow. Included once by the file of each instruction set; everything is static there, so that none
// compiled for one set can stand in for another at link time.
//
// e^x for x <= 0: x = n ln 2 + r, e^x = 2^n p(r); the same operations in the same order as
// sampling/exponential.py, where they are explained. Contraction into fused operations is off in the build.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/sampling_kernels.h"

namespace ridgeline {

namespace {

constexpr double kLeastExponent = -708.0;
constexpr double kRounder = 6755399441055744.0; // 1.5 * 2^52
constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2High = 6.93147180369123816490e-01;
constexpr double kLn2Low = 1.90821492927058770002e-10;
inline int64_t bits_of(double value) {
    int64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline double double_of(int64_t bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline double exp_nonpositive(double x) {
    const double clamped = x < kLeastExponent ? kLeastExponent : x;
    const double shifted = clamped * kLog2E + kRounder;
    const double n = shifted - kRounder;
    const double r = clamped - n * kLn2High - n * kLn2Low;
    const double r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
    const double p0 = (1.0 + r) + (1.0 / 2 + 1.0 / 6 * r) * r2;
    const double p4 = (1.0 / 24 + 1.0 / 120 * r) + (1.0 / 720 + 1.0 / 5040 * r) * r2;
    const double p8 = (1.0 / 40320 + 1.0 / 362880 * r) + (1.0 / 3628800 + 1.0 / 39916800 * r) * r2;
    const double p12 = 1.0 / 479001600 + 1.0 / 6227020800 * r;
    const double p = (p0 + p4 * r4) + (p8 + p12 * r4) * r8;
    const uint64_t exponent = static_cast<uint64_t>(bits_of(shifted)) << 52;
    const double power = double_of(static_cast<int64_t>(static_cast<uint64_t>(bits_of(p)) + exponent));
    return x < kLeastExponent ? 0.0 : power;
}

template <class Value>
bool block_maxima(const Value* values, int64_t count, Value* maxima) {
    constexpr int kWidth = 32;
    int is_nan[kWidth] = {};
    bool has_nan = false;
    for (int64_t begin = 0; begin < count; begin += kSampleBlock, maxima++) {
        const Value* const block = values + begin;
        if (count - begin < kSampleBlock) {
            *maxima = block[0];
            for (int64_t i = 0; i < count - begin; i++) {
                *maxima = block[i] > *maxima ? block[i] : *maxima;
                has_nan |= block[i] != block[i];
            }
            break;
        }
        Value lanes[kWidth];
        for (int i = 0; i < kWidth; i++) {
            const Value a = block[i], b = block[i + kWidth];
            lanes[i] = a > b ? a : b;
            is_nan[i] |= (a != a) | (b != b);
        }
        for (int width = kWidth / 2; width > 0; width /= 2) {
            for (int i = 0; i < width; i++) {
                lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
            }
        }
        *maxima = lanes[0];
    }
    for (const int lane : is_nan) {
        has_nan |= lane != 0;
    }
    return has_nan;
}

template <class Value>
void weights(const Value* values, int64_t count, double best, double scale, double* out) {
    for (int64_t i = 0; i < count; i++) {
        out[i] = exp_nonpositive((static_cast<double>(values[i]) - best) * scale);
    }
}

template <class Value>
void masses(const Value* values, int64_t count, double best, double scale, int64_t* out,
            int64_t* block_sums) {
    for (int64_t begin = 0; begin < count; begin += kSampleBlock, block_sums++) {
        const int64_t end = std::min(begin + kSampleBlock, count);
        int64_t sum = 0;
        for (int64_t i = begin; i < end; i++) {
            const double weight = exp_nonpositive((static_cast<double>(values[i]) - best) * scale);
            const int64_t mass = bits_of(weight * kMassOfBest + kRounder) - bits_of(kRounder);
            out[i] = mass;
            sum += mass;
        }
        *block_sums = sum;
    }
}

double halving_sum(double* values, int64_t count) {
    if (count == 0) {
        return 0.0;
    }
    int64_t width = 1;
    while (width < count) {
        width *= 2;
    }
    for (; width > 1; width /= 2, count = std::min(count, width)) {
        const int64_t half = width / 2;
        for (int64_t i = half; i < count; i++) {
            values[i - half] += values[i];
        }
    }
    return values[0];
}

int64_t count_above(const float* values, int64_t count, float value) {
    int32_t above = 0;
    for (int64_t i = 0; i < count; i++) {
        above += values[i] > value;
    }
    return above;
}

int64_t count_equal(const float* values, int64_t count, float value) {
    int32_t equal = 0;
    for (int64_t i = 0; i < count; i++) {
        equal += values[i] == value;
    }
    return equal;
}

constexpr SamplingKernels kSamplingLoops = {block_maxima<float>, block_maxima<double>, weights<float>,
                                            weights<double>,     masses<float>,        masses<double>,
                                            halving_sum,         count_above,          count_equal};

} // namespace

} // namespace ridgeline
