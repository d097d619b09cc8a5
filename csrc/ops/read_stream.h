// Reads memory as fast as it comes: the ceiling of whatever streams weights.
#pragma once

#include <cstdint>

#include "thread_pool.h"

namespace ridgeline {

// The sum of all whole 8-byte words, so that no read can be left out.
uint64_t read_stream(const uint8_t* data, int64_t num_bytes, ThreadPool& pool);

} // namespace ridgeline
