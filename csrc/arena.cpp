#include "arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace ridgeline {

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

} // namespace

Arena::Arena(int64_t num_bytes)
    : mapping_bytes_((num_bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage), num_bytes_(num_bytes) {
    void* const mapping = mmap(nullptr, static_cast<size_t>(mapping_bytes_), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        throw std::bad_alloc();
    }
    mapping_ = static_cast<uint8_t*>(mapping);
    data_ = mapping_ + (kHugePage - reinterpret_cast<intptr_t>(mapping_) % kHugePage) % kHugePage;
    // Before the first write, or the pages are small ones.
#ifdef MADV_HUGEPAGE
    madvise(data_, static_cast<size_t>(mapping_ + mapping_bytes_ - data_), MADV_HUGEPAGE);
#endif
}

Arena::~Arena() {
    if (mapping_ != nullptr) {
        munmap(mapping_, static_cast<size_t>(mapping_bytes_));
    }
}

Arena::Arena(Arena&& other) noexcept {
    *this = std::move(other);
}

Arena& Arena::operator=(Arena&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapping_bytes_, other.mapping_bytes_);
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
}

void release_file_pages(const uint8_t* data, int64_t num_bytes) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page * page;
    const uintptr_t end = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(num_bytes);
    madvise(reinterpret_cast<void*>(begin), (end - begin + page - 1) / page * page, MADV_DONTNEED);
}

} // namespace ridgeline
