// Which product this machine uses, decided once; a limit lets tests reach the slower ones.
#include <algorithm>
#include <atomic>

#include "matmul.h"

namespace ls {

namespace {

int32_t fastest() { return amx_path() != nullptr ? PATH_AMX : bf16_path() != nullptr ? PATH_BF16 : PATH_FLOAT; }

std::atomic<int32_t> &limit() {
    static std::atomic<int32_t> value{fastest()};
    return value;
}

}  // namespace

const MatmulPath &best_path(int32_t weight_type) {
    const int32_t allowed = limit().load(std::memory_order_relaxed);
    if (allowed >= PATH_AMX) {
        return *amx_path();
    }
    // Three bf16 products on vectors take longer than one in floats.
    return allowed >= PATH_BF16 && n_terms(weight_type) == 1 ? *bf16_path() : FLOAT_PATH;
}

}  // namespace ls

extern "C" __attribute__((visibility("default"))) int32_t ls_matmul_limit(int32_t path) {
    using namespace ls;
    int32_t allowed = std::clamp<int32_t>(path, PATH_FLOAT, fastest());
    if (allowed == PATH_BF16 && bf16_path() == nullptr) {
        allowed = PATH_FLOAT;
    }
    limit().store(allowed);
    return allowed;
}
