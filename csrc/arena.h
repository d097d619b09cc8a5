// One large piece of memory for the packed weights, on huge pages where the system has them.
#pragma once

#include <cstdint>

namespace ridgeline {

// Zeroed memory, aligned to 2 MB; a page costs memory when it is first written.
class Arena {
  public:
    Arena() = default;
    explicit Arena(int64_t num_bytes); // throws std::bad_alloc
    ~Arena();
    Arena(Arena&& other) noexcept;
    Arena& operator=(Arena&& other) noexcept;

    uint8_t* data() const { return data_; }
    int64_t size() const { return num_bytes_; }

  private:
    uint8_t* mapping_ = nullptr;
    int64_t mapping_bytes_ = 0;
    uint8_t* data_ = nullptr;
    int64_t num_bytes_ = 0;
};

// Tells the system that pages of a mapped file are not needed now; reading them again brings them back. Whole
// pages that the range touches. Must not be called on memory that is no mapped file.
void release_file_pages(const uint8_t* data, int64_t num_bytes);

} // namespace ridgeline
