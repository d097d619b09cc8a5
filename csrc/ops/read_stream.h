// Reads memory as fast as it comes: the ceiling of whatever streams weights.
#pragma once

#include <cstdint>

#include "thread_pool.h"

namespace ridgeline {

// The sum of the words of all whole pieces of 128 bytes, with one thread.
uint64_t sum_words(const uint8_t* data, int64_t num_bytes);

// The same with all threads, in chunks of 1 MB, so that no read can be left out.
uint64_t read_stream(const uint8_t* data, int64_t num_bytes, ThreadPool& pool);

} // namespace ridgeline
