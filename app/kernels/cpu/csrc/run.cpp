// Runs a list of steps: the table of kernels by kind, and the loop that each thread goes through.
#include <chrono>
#include <cstddef>
#include <initializer_list>

#include "act.h"
#include "experts.h"
#include "matmul.h"
#include "matvec.h"
#include "ops.h"
#include "pool.h"

namespace ls {

namespace {

int32_t nop(const Step &, int, int) { return OK; }

// In the order of Kind.
constexpr Kernel KERNELS[] = {
    nop,      quantize, matvec,   matmul,    binary, scale, rms_norm, rope,     set_rows,
    get_rows, attention, glu,     unary,     copy,   soft_max, rope_table, attention_combine, convert_bf16,
    mul_mat_id, add_id,   argsort, sum_rows, clamp, norm,
};
static_assert(sizeof KERNELS / sizeof *KERNELS == static_cast<size_t>(Kind::N_KINDS), "one kernel per kind");

struct Run {
    ls_pool *pool;
    const Step *steps;
    int64_t n;
    int64_t *times_ns;
    std::atomic<int64_t> failed;  // the first step that failed, or n
    std::atomic<int32_t> status{OK};
};

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void note_failure(Run &run, int64_t step, int32_t status) {
    int64_t known = run.failed.load();
    while (step < known && !run.failed.compare_exchange_weak(known, step)) {
    }
    run.status.store(status);
}

void run_step(Run &run, int64_t i, int ith) {
    const Step &step = run.steps[i];
    const bool solo = (step.flags & SOLO) != 0;
    if (solo && ith != 0) {
        return;
    }
    const bool known = step.kind >= 0 && step.kind < static_cast<int32_t>(Kind::N_KINDS);
    const int32_t status = known ? KERNELS[step.kind](step, ith, solo ? 1 : run.pool->size()) : UNSUPPORTED;
    if (status != OK) {
        note_failure(run, i, status);
    }
}

void run_all(void *context, int ith) {
    Run &run = *static_cast<Run *>(context);
    const bool timed = run.times_ns != nullptr;
    int64_t start = timed ? now_ns() : 0;
    for (int64_t i = 0; i < run.n; ++i) {
        run_step(run, i, ith);
        if ((run.steps[i].flags & FREE_END) == 0 || timed) {
            run.pool->barrier();
            // Another thread may be ahead and have failed already: only what lies behind counts, or threads would part.
            if (run.failed.load(std::memory_order_relaxed) <= i) {
                return;
            }
        }
        if (timed && ith == 0) {
            const int64_t end = now_ns();
            run.times_ns[i] += end - start;
            start = end;
        }
    }
}

}  // namespace

}  // namespace ls

extern "C" {

__attribute__((visibility("default"))) int32_t ls_run(ls_pool *pool, const ls::Step *steps, int64_t n, int64_t *failed,
                                                      int64_t *times_ns) {
    ls::Run run{pool, steps, n, times_ns, {n}};
    pool->run(ls::run_all, &run);
    *failed = run.failed.load();
    return run.status.load();
}

__attribute__((visibility("default"))) int64_t ls_scratch_bytes(const ls::Step *step, int32_t n_threads) {
    switch (static_cast<ls::Kind>(step->kind)) {
        case ls::Kind::MATMUL:
            return ls::matmul_scratch(*step, n_threads);
        case ls::Kind::CONVERT_BF16:
            return ls::convert_scratch(*step);
        case ls::Kind::ROPE_TABLE:
            return ls::rope_table_scratch(*step);
        case ls::Kind::ATTENTION:
            return ls::attention_scratch(*step, n_threads);
        case ls::Kind::MUL_MAT_ID:
            return ls::mul_mat_id_scratch(*step, n_threads);
        case ls::Kind::ARGSORT:
            return ls::argsort_scratch(*step, n_threads);
        default:
            return 0;
    }
}

__attribute__((visibility("default"))) int32_t ls_layout(int64_t *out, int32_t n) {
    using ls::Step;
    using ls::TensorRef;
    const std::initializer_list<size_t> numbers = {
        sizeof(TensorRef),         offsetof(TensorRef, data), offsetof(TensorRef, ne),        offsetof(TensorRef, nb),
        offsetof(TensorRef, type), offsetof(TensorRef, layout), sizeof(Step),                 offsetof(Step, kind),
        offsetof(Step, node),      offsetof(Step, params),    offsetof(Step, dst),            offsetof(Step, src),
        offsetof(Step, scratch),   offsetof(Step, scratch_bytes), offsetof(Step, flags),
    };
    int32_t i = 0;
    for (const size_t number : numbers) {
        if (i < n) {
            out[i] = static_cast<int64_t>(number);
        }
        ++i;
    }
    return i;
}
}
