// Scratch memory that only ever grows, so that a steady stream of steps allocates nothing.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace ridgeline {

// Uninitialised room for plain values, aligned to a cache line; growing drops the contents.
template <class Value>
class GrowingBuffer {
  public:
    GrowingBuffer() = default;
    ~GrowingBuffer() { std::free(data_); }
    GrowingBuffer(const GrowingBuffer&) = delete;
    GrowingBuffer& operator=(const GrowingBuffer&) = delete;

    // Room for at least `count` values; throws std::bad_alloc.
    Value* reserve(int64_t count) {
        if (count > capacity_) {
            std::free(data_);
            capacity_ = 0;
            const size_t num_bytes = (static_cast<size_t>(count) * sizeof(Value) + 63) / 64 * 64;
            data_ = static_cast<Value*>(std::aligned_alloc(64, num_bytes));
            if (data_ == nullptr) {
                throw std::bad_alloc();
            }
            capacity_ = count;
        }
        return data_;
    }

    Value* data() const { return data_; }

  private:
    Value* data_ = nullptr;
    int64_t capacity_ = 0;
};

} // namespace ridgeline
