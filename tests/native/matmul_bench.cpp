// Time of the products of a model's layers for many tokens, best of several runs. Stand-alone, built like matmul_test:
//
//   matmul_bench [model: smol|gemma] [tokens] [threads] [path: 0 floats, 1 AMX] [repeats] [type, for all weights] [0: by parts only]
//
// The work is that of a plan: one conversion per input, barriers between steps, weights of all layers distinct.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "matmul.h"
#include "random_blocks.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

struct Matrix {
    int32_t type;
    int64_t k;
    int64_t n_rows;
    int input;  // matrices with the same number share a conversion
};

struct Model {
    int n_layers;
    std::vector<Matrix> layer;
};

Model smol() {
    using namespace ls;
    return {30,
            {{TYPE_Q4_1, 576, 576, 0}, {TYPE_Q4_1, 576, 192, 0}, {TYPE_Q4_1, 576, 192, 0}, {TYPE_Q4_1, 576, 576, 1},
             {TYPE_Q4_1, 576, 1536, 2}, {TYPE_Q4_1, 576, 1536, 2}, {TYPE_Q4_1, 1536, 576, 3}}};
}

Model gemma() {
    using namespace ls;
    return {18,
            {{TYPE_Q5_0, 640, 1024, 0}, {TYPE_Q5_0, 640, 256, 0}, {TYPE_Q8_0, 640, 256, 0}, {TYPE_Q4_K, 1024, 640, 1},
             {TYPE_Q5_0, 640, 2048, 2}, {TYPE_Q5_0, 640, 2048, 2}, {TYPE_Q6_K, 2048, 640, 3}}};
}

constexpr int64_t HUGE_PAGE = int64_t{1} << 21;

// Memory on huge pages where the system has them, as large buffers are.
struct Aligned {
    explicit Aligned(int64_t bytes) : size((bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE) {
        store.reset(static_cast<uint8_t *>(std::aligned_alloc(HUGE_PAGE, static_cast<size_t>(size))));
#if defined(__linux__)
        if (std::getenv("SMALL_PAGES") == nullptr) {
            madvise(store.get(), static_cast<size_t>(size), MADV_HUGEPAGE);
        }
#endif
        std::memset(store.get(), 0, static_cast<size_t>(size));
    }
    uint8_t *data() { return store.get(); }
    int64_t size;
    struct Free {
        void operator()(uint8_t *p) const { std::free(p); }
    };
    std::unique_ptr<uint8_t, Free> store;
};

struct Barrier {
    explicit Barrier(int n) : n_threads(n) {}
    const int n_threads;
    std::atomic<int> arrived{0};
    std::atomic<int> phase{0};

    void wait() {
        const int seen = phase.load();
        if (arrived.fetch_add(1) == n_threads - 1) {
            arrived = 0;
            phase = seen + 1;
            return;
        }
        for (int spins = 0; phase.load() == seen; ++spins) {
            if (spins > 100000) {
                std::this_thread::yield();
            }
        }
    }
};

struct Work {
    std::vector<ls::Step> steps;
    std::vector<Aligned> memory;
    double flops = 0;
    double weights = 0;
};

ls::TensorRef matrix(uint8_t *data, int32_t type, int64_t nb0, int64_t nb1, int64_t ne0, int64_t ne1) {
    return {data, {ne0, ne1, 1, 1}, {nb0, nb1, nb1 * ne1, nb1 * ne1}, type, 0};
}

uint8_t *allocate(Work &work, int64_t bytes) {
    work.memory.emplace_back(bytes);
    return work.memory.back().data();
}

void add_matrix(Work &work, const Matrix &m, int64_t n_tokens, uint8_t *x, uint8_t *converted, uint8_t *out,
                ls_test::Random &random) {
    const ls::TypeInfo &info = *ls::type_info(m.type);
    const int64_t row = ls::row_bytes(info, m.k);
    ls::Step step{};
    uint8_t *weights = allocate(work, row * m.n_rows);
    for (int64_t at = 0; at < row * m.n_rows; at += info.block_bytes) {
        ls_test::random_block(info, random, weights + at);
    }
    step.kind = static_cast<int32_t>(ls::Kind::MATMUL);
    step.params[0] = converted != nullptr ? 1 : 0;
    step.src[0] = matrix(weights, m.type, info.block_bytes, row, m.k, m.n_rows);
    step.src[0].layout = info.groups ? 1 : 0;
    step.src[1] = matrix(converted != nullptr ? converted : x, ls::TYPE_F32, 4, 4 * m.k, m.k, n_tokens);
    step.dst = matrix(out, ls::TYPE_F32, 4, 4 * m.n_rows, m.n_rows, n_tokens);
    work.steps.push_back(step);
    work.flops += 2.0 * static_cast<double>(m.k * m.n_rows * n_tokens);
    work.weights += static_cast<double>(m.k * m.n_rows);
}

bool is_product(const ls::Step &step) { return step.kind == static_cast<int32_t>(ls::Kind::MATMUL); }

Work make_work(const Model &model, int64_t n_tokens, int n_threads, int32_t type) {
    Work work;
    ls_test::Random random(1);
    std::vector<float> floats = ls_test::random_floats(4096 * n_tokens, random);
    uint8_t *x = allocate(work, 4096 * n_tokens * 4);
    std::memcpy(x, floats.data(), floats.size() * 4);
    uint8_t *out = allocate(work, 4096 * n_tokens * 4);
    // As in a plan, memory is used again by the next layer.
    uint8_t *room = allocate(work, 4096 * 3 * 2 * (n_tokens + ls::TILE_TOKENS));
    int64_t scratch_bytes = 0;
    for (int layer = 0; layer < model.n_layers; ++layer) {
        int input = -1;
        uint8_t *converted = nullptr;
        for (Matrix m : model.layer) {
            m.type = type >= 0 ? type : m.type;
            if (m.input != input) {
                ls::Step step{};
                step.kind = static_cast<int32_t>(ls::Kind::CONVERT_BF16);
                step.params[0] = m.type;
                step.src[0] = matrix(x, ls::TYPE_F32, 4, 4 * m.k, m.k, n_tokens);
                const int64_t bytes = ls::convert_scratch(step);
                converted = nullptr;
                if (bytes > 0) {
                    converted = step.scratch = room;
                    work.steps.push_back(step);
                }
                input = m.input;
            }
            add_matrix(work, m, n_tokens, x, converted, out, random);
            scratch_bytes = std::max(scratch_bytes, ls::matmul_scratch(work.steps.back(), n_threads));
        }
    }
    uint8_t *scratch = allocate(work, scratch_bytes);
    for (ls::Step &step : work.steps) {
        step.scratch = is_product(step) ? scratch : room;
    }
    return work;
}

void run_step(const ls::Step &step, int ith, int n_threads) {
    if (is_product(step)) {
        ls::matmul(step, ith, n_threads);
    } else {
        ls::convert_bf16(step, ith, n_threads);
    }
}

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// Best times of `n_threads` threads that run and wait for each other, in seconds.
double run_threads(const Work &work, int n_threads, int repeats) {
    Barrier barrier(n_threads);
    double best = 1e9;
    const auto thread = [&](int ith) {
        for (int repeat = 0; repeat < repeats; ++repeat) {
            barrier.wait();
            const auto start = Clock::now();
            for (const ls::Step &step : work.steps) {
                run_step(step, ith, n_threads);
                barrier.wait();
            }
            if (ith == 0) {
                best = std::min(best, seconds(Clock::now() - start));
            }
        }
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < n_threads; ++i) {
        threads.emplace_back(thread, i);
    }
    thread(0);
    for (std::thread &t : threads) {
        t.join();
    }
    return best;
}

struct Times {
    double convert = 0;
    double product = 0;
    std::map<std::pair<int64_t, int64_t>, std::pair<double, double>> shapes;  // [k, n_rows] to seconds and operations
};

// What the threads would take on a quiet machine: each one's part of each step alone, the best of the repeats, and the
// slowest of the threads. On a busy machine this is the figure that means something.
Times run_parts(const Work &work, int n_threads, int repeats) {
    const auto n = static_cast<size_t>(n_threads);
    std::vector<double> best(work.steps.size() * n, 1e9);
    for (int repeat = 0; repeat < repeats; ++repeat) {
        for (size_t i = 0; i < work.steps.size(); ++i) {
            for (size_t ith = 0; ith < n; ++ith) {
                const auto start = Clock::now();
                run_step(work.steps[i], static_cast<int>(ith), n_threads);
                best[i * n + ith] = std::min(best[i * n + ith], seconds(Clock::now() - start));
            }
        }
    }
    Times total;
    for (size_t i = 0; i < work.steps.size(); ++i) {
        const auto first = best.begin() + static_cast<std::ptrdiff_t>(i * n);
        const double slowest = *std::max_element(first, first + n_threads);
        const ls::TensorRef &w = work.steps[i].src[0];
        if (is_product(work.steps[i])) {
            auto &shape = total.shapes[{w.ne[0], w.ne[1]}];
            shape.first += slowest;
            shape.second += 2.0 * static_cast<double>(w.ne[0] * w.ne[1] * work.steps[i].src[1].ne[1]);
            total.product += slowest;
        } else {
            total.convert += slowest;
        }
    }
    return total;
}

// Seconds to decode all weights once on one thread.
double decode_seconds(const Work &work, int repeats) {
    std::vector<double> best(work.steps.size(), 1e9);
    Aligned panel(1 << 20);
    for (int repeat = 0; repeat < repeats; ++repeat) {
        for (size_t i = 0; i < work.steps.size(); ++i) {
            const ls::TensorRef &w = work.steps[i].src[0];
            if (!is_product(work.steps[i])) {
                best[i] = 0;
                continue;
            }
            const ls::WeightMatrix m{ls::type_info(w.type), w.data, w.ne[0], w.ne[1], w.nb[0], w.nb[1], w.layout == 1};
            const auto start = Clock::now();
            for (int64_t group = 0; group < w.ne[1] / 16; ++group) {
                ls::fill_panel(m, group, ls::best_path().form, panel.data());
            }
            best[i] = std::min(best[i], seconds(Clock::now() - start));
        }
    }
    double total = 0;
    for (const double time : best) {
        total += time;
    }
    return total;
}

int64_t argument(int argc, char **argv, int index, int64_t fallback) {
    return argc > index ? std::atoll(argv[index]) : fallback;
}

}  // namespace

int main(int argc, char **argv) {
    const std::string name = argc > 1 ? argv[1] : "smol";
    const int64_t n_tokens = argument(argc, argv, 2, 512);
    const auto n_threads = static_cast<int>(argument(argc, argv, 3, 2));
    const int32_t path = ls_matmul_limit(static_cast<int32_t>(argument(argc, argv, 4, 1)));
    const auto repeats = static_cast<int>(argument(argc, argv, 5, 20));
    const Work work = make_work(name == "gemma" ? gemma() : smol(), n_tokens, n_threads,
                                static_cast<int32_t>(argument(argc, argv, 6, -1)));
    const Times parts = run_parts(work, n_threads, repeats);
    const double decoding = decode_seconds(work, repeats);
    const double together = argument(argc, argv, 7, 1) != 0 ? run_threads(work, n_threads, repeats) : 0;
    const double sum = parts.convert + parts.product;
    std::printf("%s %s path %d, %lld tokens, %d threads: %.1f ms (%.0f GFLOP/s) by parts, of which converting %.1f; ", name.c_str(),
                ls_level(), path, static_cast<long long>(n_tokens), n_threads, sum * 1e3, work.flops / sum / 1e9,
                parts.convert * 1e3);
    for (const auto &[shape, cost] : parts.shapes) {
        std::printf("%dx%d %.1f ms %.0f; ", static_cast<int>(shape.first), static_cast<int>(shape.second), cost.first * 1e3,
                    cost.second / cost.first / 1e9);
    }
    std::printf("decoding %.1f ms of one thread; measured together %.1f ms\n", decoding * 1e3, together * 1e3);
    return 0;
}
