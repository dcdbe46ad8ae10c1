// Times the decode products of one token: all matrices of a model, or one matrix of one type. Built like matvec_test
// (with -pthread). For shared machines each matrix counts with the best of its repetitions; every repetition reads the
// whole model. "read" is the same with a loop that only adds up the bytes: what the memory gives at this moment.
//
//   matvec_bench smollm2|gemma3|all [threads] [tokens] [repetitions] [rows of each matrix with `all`]
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "act.h"
#include "matvec.h"
#include "random_blocks.h"
#include "repack.h"

namespace {

struct Matrix {
    int32_t type;
    int64_t k;
    int64_t n_rows;
};

std::vector<Matrix> smollm2() {
    std::vector<Matrix> found;
    for (int layer = 0; layer < 30; ++layer) {
        for (const auto &[k, n_rows] : {std::pair{576, 576}, {576, 192}, {576, 192}, {576, 576}, {576, 1536}, {576, 1536}, {1536, 576}}) {
            found.push_back({ls::TYPE_Q4_1, k, n_rows});
        }
    }
    found.push_back({ls::TYPE_Q8_0, 576, 49152});
    return found;
}

std::vector<Matrix> gemma3() {
    std::vector<Matrix> found;
    for (int layer = 0; layer < 18; ++layer) {
        for (const auto &[k, n_rows] : {std::pair{640, 1024}, {640, 256}, {1024, 640}, {640, 2048}, {640, 2048}}) {
            found.push_back({k % 256 == 0 ? ls::TYPE_Q4_K : ls::TYPE_Q5_0, k, n_rows});
        }
        found.push_back({ls::TYPE_Q8_0, 640, 256});
        found.push_back({ls::TYPE_Q6_K, 2048, 640});
    }
    found.push_back({ls::TYPE_Q8_0, 640, 262144});
    return found;
}

class Barrier {
  public:
    explicit Barrier(int n) : n_(n) {}

    void wait() {
        const int turn = turn_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.store(turn + 1, std::memory_order_release);
            return;
        }
        while (turn_.load(std::memory_order_acquire) == turn) {
        }
    }

  private:
    const int n_;
    std::atomic<int> arrived_{0};
    std::atomic<int> turn_{0};
};

// One buffer for all weights, in large pages where the system gives them, as a device's buffer is.
class Arena {
  public:
    Arena() : data_(static_cast<uint8_t *>(std::aligned_alloc(LARGE_PAGE, BYTES))) {
#if defined(MADV_HUGEPAGE)
        madvise(data_, BYTES, MADV_HUGEPAGE);
#endif
    }
    ~Arena() { std::free(data_); }

    uint8_t *take(size_t size) {
        uint8_t *found = data_ + used_;
        used_ += (size + 127) / 128 * 128;
        if (used_ > BYTES) {
            std::abort();
        }
        return found;
    }

  private:
    static constexpr size_t LARGE_PAGE = size_t{1} << 21;
    static constexpr size_t BYTES = size_t{1} << 29;
    uint8_t *data_;
    size_t used_ = 0;
};

struct Bench {
    Arena weights;
    std::vector<ls::Step> steps;
    std::vector<ls_test::Bytes> memory;
    int64_t bytes = 0;
    int threads = 1;
    int repetitions = 1;
    std::vector<double> best;  // seconds of each step
};

using Kernel = int32_t (*)(const ls::Step &step, int ith, int nth);

void add(Bench &bench, const Matrix &matrix, int64_t n_tokens, ls_test::Random &random) {
    const ls::TypeInfo &info = *ls::type_info(matrix.type);
    const int64_t row = ls::row_bytes(info, matrix.k);
    ls_test::Bytes few = ls_test::random_weights(info, matrix.k, 16, random);
    const auto size = static_cast<size_t>(row * matrix.n_rows);
    uint8_t *weights = bench.weights.take(size);
    for (size_t at = 0; at < size; at += few.size()) {
        std::memcpy(weights + at, few.data(), std::min(few.size(), size - at));
    }
    const bool grouped = ls_repack(nullptr, matrix.type, weights, matrix.k, matrix.n_rows, 1) == ls::OK;
    std::vector<float> x = ls_test::random_floats(matrix.k * n_tokens, random);
    ls_test::Bytes acts(static_cast<size_t>(std::max(ls_quantize_bytes(matrix.k, n_tokens), 4 * matrix.k * n_tokens)));
    ls_test::Bytes out(static_cast<size_t>(4 * matrix.n_rows * n_tokens));
    ls::Step step{};
    step.src[1] = {reinterpret_cast<uint8_t *>(x.data()), {matrix.k, n_tokens, 1, 1}, {4, 4 * matrix.k, 0, 0}, 0, 0};
    step.src[0] = step.src[1];
    step.scratch = acts.data();
    if (grouped) {
        ls::quantize(step, 0, 1);
    } else {
        std::memcpy(acts.data(), x.data(), 4 * x.size());
    }
    step.src[1].data = acts.data();
    step.src[0] = {weights, {matrix.k, matrix.n_rows, 1, 1}, {info.block_bytes, row, 0, 0}, matrix.type, grouped};
    step.dst = {out.data(), {matrix.n_rows, n_tokens, 1, 1}, {4, 4 * matrix.n_rows, 0, 0}, 0, 0};
    bench.bytes += row * matrix.n_rows;
    bench.steps.push_back(step);
    bench.memory.push_back(std::move(acts));
    bench.memory.push_back(std::move(out));
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Reads the weights and does nothing with them.
int32_t read(const ls::Step &step, int ith, int nth) {
    typedef uint64_t Line __attribute__((vector_size(64)));
    const int64_t n_lines = step.src[0].nb[1] * step.src[0].ne[1] / 64;
    Line sums[4] = {};
    for (int64_t i = n_lines * ith / nth; i + 4 <= n_lines * (ith + 1) / nth; i += 4) {
        for (int64_t j = 0; j < 4; ++j) {
            Line line;
            std::memcpy(&line, step.src[0].data + 64 * (i + j), sizeof line);
            __builtin_prefetch(step.src[0].data + 64 * (i + j) + 3072);
            sums[j] += line;
        }
    }
    const Line sum = sums[0] + sums[1] + sums[2] + sums[3];
    std::memcpy(step.dst.data, &sum, 4);
    return ls::OK;
}

void work(Bench &bench, Kernel kernel, Barrier &barrier, int ith) {
    for (int repetition = 0; repetition < bench.repetitions; ++repetition) {
        for (size_t i = 0; i < bench.steps.size(); ++i) {
            barrier.wait();
            const double start = now();
            kernel(bench.steps[i], ith, bench.threads);
            barrier.wait();
            if (ith == 0) {
                bench.best[i] = std::min(bench.best[i], now() - start);
            }
        }
    }
}

double seconds(Bench &bench, Kernel kernel) {
    bench.best.assign(bench.steps.size(), 1e9);
    Barrier barrier(bench.threads);
    std::vector<std::thread> workers;
    for (int ith = 1; ith < bench.threads; ++ith) {
        workers.emplace_back([&, ith] { work(bench, kernel, barrier, ith); });
    }
    work(bench, kernel, barrier, 0);
    for (std::thread &worker : workers) {
        worker.join();
    }
    return std::accumulate(bench.best.begin(), bench.best.end(), 0.0);
}

void run(const char *name, const std::vector<Matrix> &matrices, int threads, int64_t n_tokens, int repetitions) {
    Bench bench;
    bench.threads = threads;
    bench.repetitions = repetitions;
    ls_test::Random random(1);
    for (const Matrix &matrix : matrices) {
        add(bench, matrix, n_tokens, random);
    }
    const double best = seconds(bench, ls::matvec);
    const double reading = seconds(bench, read);
    const auto bytes = static_cast<double>(bench.bytes);
    std::printf("%-10s %-8s threads %d tokens %lld: %.3f ms, %.1f MiB, %.1f GB/s; read %.3f ms, %.1f GB/s\n", name, ls_level(),
                threads, static_cast<long long>(n_tokens), best * 1e3, bytes / (1 << 20), bytes / best / 1e9, reading * 1e3,
                bytes / reading / 1e9);
}

int number(int argc, char **argv, int index, int otherwise) { return argc > index ? std::atoi(argv[index]) : otherwise; }

}  // namespace

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "smollm2";
    const int threads = number(argc, argv, 2, 1);
    const int n_tokens = number(argc, argv, 3, 1);
    const int repetitions = number(argc, argv, 4, 50);
    const int n_rows = number(argc, argv, 5, 32768);
    if (std::strcmp(what, "smollm2") == 0) {
        run(what, smollm2(), threads, n_tokens, repetitions);
    } else if (std::strcmp(what, "gemma3") == 0) {
        run(what, gemma3(), threads, n_tokens, repetitions);
    } else {
        for (const ls_test::ScaleFields &fields : ls_test::SCALE_FIELDS) {
            char name[16];
            std::snprintf(name, sizeof name, "type %d", fields.type);
            run(name, {{fields.type, 1024, n_rows}}, threads, n_tokens, repetitions);
        }
    }
    return 0;
}
