#include "thread_pool.h"

#include <algorithm>
#include <chrono>

namespace ridgeline {

namespace {

// Long enough for the gap between two jobs of a step and, mostly, between two steps.
constexpr std::chrono::microseconds kSpinTime{250};
constexpr int kSpinsPerClockRead = 64;
// Spinning keeps whoever else has work for this core from it, perhaps the very thread that is waited for:
// after a few microseconds every look is followed by a yield, which costs nothing if nobody else wants the
// core.
constexpr int kSpinsBeforeYield = 256;

uint32_t epoch_of(uint64_t ticket) {
    return static_cast<uint32_t>(ticket >> 32);
}

uint32_t remaining_of(uint64_t ticket) {
    return static_cast<uint32_t>(ticket);
}

void relax_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

} // namespace

ThreadPool::ThreadPool(int num_threads) {
    threads_.reserve(static_cast<size_t>(num_threads - 1));
    try {
        for (int worker = 1; worker < num_threads; worker++) {
            threads_.emplace_back([this, worker] { worker_loop(worker); });
        }
    } catch (...) {
        stop(); // a thread that can still be joined must not be destroyed
        throw;
    }
}

ThreadPool::~ThreadPool() {
    stop();
}

void ThreadPool::stop() {
    if (owner_pid_ != getpid()) {
        // In a forked child the workers do not exist, and only detaching lets go of their handles.
        for (std::thread& thread : threads_) {
            thread.detach();
        }
        (void)sleep_.release(); // destroying a condition would wait for sleepers that are not there
        return;
    }
    is_stopping_.store(true);
    publish(0);
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

void ThreadPool::run(int64_t num_items, int64_t chunk_size, Body body, const void* context) {
    if (threads_.empty() || num_items <= chunk_size) {
        if (num_items > 0) {
            body(context, 0, num_items, 0);
        }
        return;
    }
    const int64_t num_chunks = (num_items + chunk_size - 1) / chunk_size;
    num_done_.store(0, std::memory_order_release);
    num_items_.store(num_items, std::memory_order_release);
    chunk_size_.store(chunk_size, std::memory_order_release);
    body_.store(body, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    publish(static_cast<uint64_t>(num_chunks));
    work(epoch_of(ticket_.load(std::memory_order_relaxed)), 0);
    for (int spins = 0; num_done_.load(std::memory_order_acquire) != num_chunks; spins++) {
        relax_cpu();
        if (spins >= kSpinsBeforeYield) {
            std::this_thread::yield();
        }
    }
}

void ThreadPool::publish(uint64_t num_chunks) {
    const uint64_t next_epoch = epoch_of(ticket_.load(std::memory_order_relaxed)) + uint64_t{1};
    ticket_.store(next_epoch << 32 | num_chunks);
    // Sequentially consistent with wait_for_job: either a worker about to sleep sees the new ticket, or we
    // see it.
    if (num_sleeping_.load() > 0) {
        const std::lock_guard<std::mutex> lock(sleep_->mutex);
        num_sleeping_.store(0);
        sleep_->wake.notify_all();
    }
}

void ThreadPool::work(uint32_t epoch, int worker) {
    const int64_t num_items = num_items_.load(std::memory_order_acquire);
    const int64_t chunk_size = chunk_size_.load(std::memory_order_acquire);
    const Body body = body_.load(std::memory_order_acquire);
    const void* const context = context_.load(std::memory_order_acquire);
    const int64_t num_chunks = (num_items + chunk_size - 1) / chunk_size;
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (epoch_of(ticket) == epoch && remaining_of(ticket) > 0) {
        if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) {
            continue;
        }
        const int64_t begin = (num_chunks - remaining_of(ticket)) * chunk_size;
        body(context, begin, std::min(begin + chunk_size, num_items), worker);
        num_done_.fetch_add(1, std::memory_order_release);
        ticket = ticket_.load(std::memory_order_acquire);
    }
}

uint32_t ThreadPool::wait_for_job(uint32_t seen_epoch) {
    const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
    int64_t spins = 0;
    do {
        for (int i = 0; i < kSpinsPerClockRead; i++, spins++) {
            const uint32_t epoch = epoch_of(ticket_.load(std::memory_order_acquire));
            if (epoch != seen_epoch) {
                return epoch;
            }
            relax_cpu();
        }
        if (spins >= kSpinsBeforeYield) {
            std::this_thread::yield();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    std::unique_lock<std::mutex> lock(sleep_->mutex);
    num_sleeping_.fetch_add(1);
    sleep_->wake.wait(lock, [&] { return epoch_of(ticket_.load()) != seen_epoch; });
    return epoch_of(ticket_.load());
}

void ThreadPool::worker_loop(int worker) {
    uint32_t epoch = 0;
    for (;;) {
        epoch = wait_for_job(epoch);
        if (is_stopping_.load()) {
            return;
        }
        work(epoch, worker);
    }
}

} // namespace ridgeline
