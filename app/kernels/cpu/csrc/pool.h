// Threads that wait for work without using a processor, and meet at barriers while they work.
//
// The calling thread is thread 0. One caller at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "plan.h"

struct ls_pool {
public:
    using Task = void (*)(void *context, int ith);

    explicit ls_pool(int n_threads);
    ~ls_pool();
    ls_pool(const ls_pool &) = delete;
    ls_pool &operator=(const ls_pool &) = delete;

    int size() const { return n_threads_; }

    // Runs `task` on every thread and returns when all have ended it.
    void run(Task task, void *context);

    // Waits inside a task until all threads have come here. What each wrote before is seen by all after.
    void barrier();

private:
    void work(int ith);
    bool wait_for_work(uint32_t seen);

    const int n_threads_;
    Task task_ = nullptr;
    void *context_ = nullptr;
    bool stop_ = false;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> threads_;
    alignas(64) std::atomic<uint32_t> generation_{0};
    alignas(64) std::atomic<int32_t> sleepers_{0};
    alignas(64) std::atomic<int32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
};
