// A pool of threads that share out the items of one job; the calling thread is worker 0.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ridgeline {

// Jobs split items (output rows, tokens, heads), never a sum, so results do not depend on the split.
//
// Workers take chunks from a shared counter: a slow or descheduled one takes fewer, and a job that needs no
// more hands does not wait for a sleeper to wake. Between jobs they spin for about 250 us, giving way to
// others, then sleep.
class ThreadPool {
  public:
    using Body = void (*)(const void* context, int64_t begin, int64_t end, int worker);

    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

    // Calls body on [begin, end) pieces of [0, num_items), each chunk_size long but the last; returns when
    // all are done. One caller at a time.
    void run(int64_t num_items, int64_t chunk_size, Body body, const void* context);

    // run() for a callable (begin, end, worker).
    template <class Function>
    void parallel_for(int64_t num_items, int64_t chunk_size, const Function& function) {
        const Body body = [](const void* context, int64_t begin, int64_t end, int worker) {
            (*static_cast<const Function*>(context))(begin, end, worker);
        };
        run(num_items, chunk_size, body, &function);
    }

  private:
    struct Sleep {
        std::mutex mutex;
        std::condition_variable wake;
    };

    void stop();
    void publish(uint64_t num_chunks);
    void work(uint32_t epoch, int worker);
    uint32_t wait_for_job(uint32_t seen_epoch);
    void worker_loop(int worker);

    // What different threads write lies in different cache lines: idle workers spin on the ticket, and every
    // store to its line would have to take it from them.
    //
    // High half: the job's number (epoch). Low half: chunks not yet taken. Taking one is a compare-exchange,
    // so it succeeds only while that very job is unfinished, and then the job's fields below are its own.
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<int64_t> num_done_{0};
    alignas(64) std::atomic<int64_t> num_items_{0};
    std::atomic<int64_t> chunk_size_{1};
    std::atomic<Body> body_{nullptr};
    std::atomic<const void*> context_{nullptr};

    alignas(64) std::atomic<bool> is_stopping_{false};
    std::atomic<int> num_sleeping_{0};
    std::unique_ptr<Sleep> sleep_ = std::make_unique<Sleep>();
    const pid_t owner_pid_ = getpid();
    std::vector<std::thread> threads_;
};

} // namespace ridgeline
