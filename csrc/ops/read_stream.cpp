#include "ops/read_stream.h"

#include <cstring>

namespace ridgeline {

namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr int kLanes = 32;

} // namespace

uint64_t read_stream(const uint8_t* data, int64_t num_bytes, ThreadPool& pool) {
    std::atomic<uint64_t> total{0};
    pool.parallel_for(num_bytes, kChunkBytes, [&](int64_t begin, int64_t end, int) {
        uint64_t lanes[kLanes] = {};
        for (int64_t i = begin; i + static_cast<int64_t>(sizeof lanes) <= end;
             i += static_cast<int64_t>(sizeof lanes)) {
            uint64_t words[kLanes];
            std::memcpy(words, data + i, sizeof words);
            for (int lane = 0; lane < kLanes; lane++) {
                lanes[lane] += words[lane];
            }
        }
        uint64_t sum = 0;
        for (const uint64_t lane : lanes) {
            sum += lane;
        }
        total.fetch_add(sum, std::memory_order_relaxed);
    });
    return total.load();
}

} // namespace ridgeline
