// Which product this machine uses, decided once; a limit lets tests reach the slower ones.
#include <algorithm>
#include <atomic>

#include "matmul.h"

namespace ls {

namespace {

int32_t fastest() { return amx_path() != nullptr ? PATH_AMX : PATH_FLOAT; }

std::atomic<int32_t> &limit() {
    static std::atomic<int32_t> value{fastest()};
    return value;
}

}  // namespace

const MatmulPath &best_path() { return limit().load(std::memory_order_relaxed) == PATH_AMX ? *amx_path() : FLOAT_PATH; }

}  // namespace ls

extern "C" __attribute__((visibility("default"))) int32_t ls_matmul_limit(int32_t path) {
    const int32_t allowed = std::clamp<int32_t>(path, ls::PATH_FLOAT, ls::fastest());
    ls::limit().store(allowed);
    return allowed;
}
