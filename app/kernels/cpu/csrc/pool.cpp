// The thread pool. A worker that finds nothing to do looks again for two milliseconds, which covers the time between two
// tokens of a decoding loop, and lets others have the processor meanwhile; then it sleeps on a condition variable.
#include "pool.h"

#include <chrono>
#include <new>

namespace {

constexpr int IDLE_SPINS = 500;
constexpr std::chrono::milliseconds IDLE_TIME{2};
constexpr int BARRIER_SPINS = 2000;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

}  // namespace

ls_pool::ls_pool(int n_threads) : n_threads_(n_threads < 1 ? 1 : n_threads) {
    for (int i = 1; i < n_threads_; ++i) {
        threads_.emplace_back(&ls_pool::work, this, i);
    }
}

ls_pool::~ls_pool() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread &thread : threads_) {
        thread.join();
    }
}

void ls_pool::run(Task task, void *context) {
    if (n_threads_ == 1) {
        task(context, 0);
        return;
    }
    task_ = task;
    context_ = context;
    // Sequentially consistent with a sleeper's registration: either we see it, or it sees the new generation.
    generation_.fetch_add(1);
    if (sleepers_.load() > 0) {
        const std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
    }
    task(context, 0);
    barrier();
}

void ls_pool::barrier() {
    if (n_threads_ == 1) {
        return;
    }
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == n_threads_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
        if (spins < BARRIER_SPINS) {
            pause();
        } else {
            std::this_thread::yield();  // somebody else has the processor that the last thread needs
        }
    }
}

bool ls_pool::wait_for_work(uint32_t seen) {
    for (int spins = 0; spins < IDLE_SPINS; ++spins) {
        if (generation_.load(std::memory_order_acquire) != seen) {
            return !stop_;
        }
        pause();
    }
    const auto end = std::chrono::steady_clock::now() + IDLE_TIME;
    while (std::chrono::steady_clock::now() < end) {
        if (generation_.load(std::memory_order_acquire) != seen) {
            return !stop_;
        }
        std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return generation_.load() != seen; });
    sleepers_.fetch_sub(1);
    return !stop_;
}

void ls_pool::work(int ith) {
    for (uint32_t seen = 0; wait_for_work(seen);) {
        seen += 1;
        task_(context_, ith);
        barrier();
    }
}

extern "C" {

__attribute__((visibility("default"))) ls_pool *ls_pool_new(int32_t n_threads) {
    try {
        return new ls_pool(n_threads);
    } catch (...) {
        return nullptr;  // no memory, or no more threads
    }
}

__attribute__((visibility("default"))) void ls_pool_free(ls_pool *pool) { delete pool; }
}
