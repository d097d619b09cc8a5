#include "ops/read_stream.h"

#include <atomic>

namespace ridgeline {

namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
// Every instruction set has registers of two words, and eight of them to spare.
using Words = uint64_t __attribute__((vector_size(16), aligned(1), may_alias));
constexpr int kLanes = 8;

} // namespace

uint64_t sum_words(const uint8_t* data, int64_t num_bytes) {
    Words lanes[kLanes] = {};
    constexpr auto kStep = static_cast<int64_t>(sizeof lanes);
    for (int64_t i = 0; i + kStep <= num_bytes; i += kStep) {
        const Words* const words = reinterpret_cast<const Words*>(data + i);
        for (int lane = 0; lane < kLanes; lane++) {
            lanes[lane] += words[lane];
        }
    }
    uint64_t sum = 0;
    for (const Words& lane : lanes) {
        sum += lane[0] + lane[1];
    }
    return sum;
}

uint64_t read_stream(const uint8_t* data, int64_t num_bytes, ThreadPool& pool) {
    std::atomic<uint64_t> total{0};
    pool.parallel_for(num_bytes, kChunkBytes, [&](int64_t begin, int64_t end, int) {
        total.fetch_add(sum_words(data + begin, end - begin), std::memory_order_relaxed);
    });
    return total.load();
}

} // namespace ridgeline
