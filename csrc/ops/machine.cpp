#include "ops/machine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "ops/read_stream.h"

namespace ridgeline {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWordBytes = 8;
constexpr int64_t kFillChunk = int64_t{1} << 20;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

} // namespace

void number_words(uint8_t* data, int64_t num_bytes, ThreadPool& pool) {
    pool.parallel_for(num_bytes, kFillChunk, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i + kWordBytes <= end; i += kWordBytes) {
            const auto word = static_cast<uint64_t>(i / kWordBytes);
            std::memcpy(data + i, &word, sizeof word);
        }
    });
}

Measured<uint64_t> stream_memory(const uint8_t* data, int64_t num_bytes, int64_t num_passes,
                                 ThreadPool& pool) {
    Measured<uint64_t> result = {std::numeric_limits<double>::infinity(), 0};
    for (int64_t pass = 0; pass < num_passes; pass++) {
        const Clock::time_point start = Clock::now();
        result.check = read_stream(data, num_bytes, pool);
        result.seconds = std::min(result.seconds, seconds_since(start));
    }
    return result;
}

Measured<uint64_t> read_parts(const uint8_t* data, int64_t part_bytes, int64_t num_passes, ThreadPool& pool) {
    std::atomic<uint64_t> total{0};
    const Clock::time_point start = Clock::now();
    pool.parallel_for(pool.num_threads(), 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t part = begin; part < end; part++) {
            uint64_t sum = 0;
            for (int64_t pass = 0; pass < num_passes; pass++) {
                sum += sum_words(data + part * part_bytes, part_bytes);
                // The next pass must read again.
                std::atomic_signal_fence(std::memory_order_seq_cst);
            }
            total.fetch_add(sum, std::memory_order_relaxed);
        }
    });
    return {seconds_since(start) / static_cast<double>(num_passes), total.load()};
}

Measured<int64_t> dispatch_jobs(int64_t num_jobs, ThreadPool& pool) {
    constexpr double kLongestSeconds = 0.05; // where threads outnumber CPUs, a meeting takes a time slice
    const int64_t num_threads = pool.num_threads();
    Measured<int64_t> result = {std::numeric_limits<double>::infinity(), 0};
    const Clock::time_point first = Clock::now();
    for (int64_t job = 0; job < num_jobs && (job == 0 || seconds_since(first) < kLongestSeconds); job++) {
        std::atomic<int64_t> num_met{0};
        const Clock::time_point start = Clock::now();
        pool.parallel_for(num_threads, 1, [&](int64_t, int64_t, int) {
            num_met.fetch_add(1, std::memory_order_acq_rel);
            while (num_met.load(std::memory_order_acquire) < num_threads) {
                std::this_thread::yield();
            }
        });
        result.seconds = std::min(result.seconds, seconds_since(start));
        result.check += num_met.load();
    }
    return result;
}

Measured<double> attend_tiles(const KernelTable& kernels, int64_t head_dim, int64_t num_rows,
                              int64_t num_tiles, int64_t num_passes, ThreadPool& pool) {
    const int64_t num_threads = pool.num_threads();
    const int64_t tile_values = kPositionTile * head_dim;
    const std::vector<uint16_t> kv(static_cast<size_t>(num_threads * num_tiles * 2 * tile_values), 0);
    const std::vector<float> query(static_cast<size_t>(num_rows * head_dim), 0.0f);
    const int64_t state_floats = num_rows * (head_dim + 2);
    std::vector<float> states(static_cast<size_t>(num_threads * state_floats));
    std::vector<double> sums(static_cast<size_t>(num_threads));
    const Clock::time_point start = Clock::now();
    pool.parallel_for(num_threads, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t part = begin; part < end; part++) {
            float* const out = states.data() + part * state_floats;
            float* const max = out + num_rows * head_dim;
            const SoftmaxState state = {num_rows, head_dim, out, max, max + num_rows};
            for (int64_t pass = 0; pass < num_passes; pass++) {
                std::fill(out, max, 0.0f);
                std::fill(state.max, state.max + num_rows, -INFINITY);
                std::fill(state.sum, state.sum + num_rows, 0.0f);
                for (int64_t t = 0; t < num_tiles; t++) {
                    const uint16_t* const k = kv.data() + (part * num_tiles + t) * 2 * tile_values;
                    const uint16_t* const v = k + tile_values;
                    const KVTile tile = {{k, k + kHalfTile},
                                         {v, v + kHalfTile * head_dim},
                                         kPositionTile,
                                         kPositionTile,
                                         k,
                                         v};
                    kernels.attend(tile, query.data(), state);
                }
            }
            for (int64_t row = 0; row < num_rows; row++) {
                sums[static_cast<size_t>(part)] += static_cast<double>(state.sum[row]);
            }
        }
    });
    double sum = 0;
    for (const double part : sums) {
        sum += part;
    }
    return {seconds_since(start) / static_cast<double>(num_passes), sum};
}

} // namespace ridgeline
