// Micro-benchmarks: the engine's own ways of working on data of a chosen size, and nothing around them. Each
// returns the seconds of its fastest repetition, and a figure that only complete work gives.
#pragma once

#include <cstdint>

#include "arena.h"
#include "dispatch.h"
#include "thread_pool.h"

namespace ridgeline {

template <class Value>
struct Measured {
    double seconds;
    Value check;
};

// Fills memory with the numbers of its 8-byte words, with all threads.
void number_words(uint8_t* data, int64_t num_bytes, ThreadPool& pool);

// All threads together read [0, num_bytes) from front to back, again and again; seconds of one pass. `check`
// is the sum of the words of one pass. num_bytes is a multiple of 256.
Measured<uint64_t> stream_memory(const uint8_t* data, int64_t num_bytes, int64_t num_passes,
                                 ThreadPool& pool);

// Each thread reads its own part_bytes (a multiple of 256) num_passes times without a pause; seconds of that
// over num_passes, for the slowest thread. `check` is the sum of the words of all parts in all passes.
Measured<uint64_t> read_parts(const uint8_t* data, int64_t part_bytes, int64_t num_passes, ThreadPool& pool);

// The fastest of num_jobs jobs (fewer after 50 ms) in which all threads meet and go; `check` is how many met
// in all of them.
Measured<int64_t> dispatch_jobs(int64_t num_jobs, ThreadPool& pool);

// Each thread lets `num_rows` queries of zeros attend to `num_tiles` tiles of its own; seconds of one walk
// over them. `check` is the sum of the softmax's weights over all threads and rows: positions, since all
// weigh 1.
Measured<double> attend_tiles(const KernelTable& kernels, int64_t head_dim, int64_t num_rows,
                              int64_t num_tiles, int64_t num_passes, ThreadPool& pool);

} // namespace ridgeline
