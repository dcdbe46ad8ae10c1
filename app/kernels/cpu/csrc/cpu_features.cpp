// Which level this library is, and whether the machine can run it. CPUID says what the processor has; XCR0 what the
// operating system saves at a context switch. Both are needed.
#include "cpu_features.h"

#include <cstdint>

#include "plan.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ls {

namespace {

struct Features {
    bool avx2 = false;
    bool avx512_vnni = false;
    bool avx512_bf16 = false;
    bool amx = false;
};

#if defined(__x86_64__)

bool has_all(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

uint64_t enabled_state() {
    uint32_t low = 0;
    uint32_t high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t{high} << 32 | low;
}

constexpr uint32_t bit(int n) { return uint32_t{1} << n; }

constexpr uint64_t YMM_STATE = 0x06;
constexpr uint64_t ZMM_STATE = 0xe6;
constexpr uint64_t TILE_STATE = 0x60000;

Features read_features() {
    Features found;
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t c = 0;
    uint32_t d = 0;
    constexpr uint32_t OSXSAVE_FMA_F16C = bit(27) | bit(12) | bit(29);
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !has_all(c, OSXSAVE_FMA_F16C)) {
        return found;
    }
    const uint64_t state = enabled_state();
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) {
        return found;
    }
    constexpr uint32_t AVX512_F_DQ_BW_VL = bit(16) | bit(17) | bit(30) | bit(31);
    constexpr uint32_t AMX_BF16_TILE_INT8 = bit(22) | bit(24) | bit(25);
    found.avx2 = has_all(b, bit(5)) && has_all(state, YMM_STATE);
    found.avx512_vnni = found.avx2 && has_all(b, AVX512_F_DQ_BW_VL) && has_all(c, bit(11)) && has_all(state, ZMM_STATE);
    found.amx = found.avx512_vnni && has_all(d, AMX_BF16_TILE_INT8) && has_all(state, TILE_STATE);
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) {
        found.avx512_bf16 = found.avx512_vnni && has_all(a, bit(5));
    }
    return found;
}

#else

Features read_features() { return {}; }

#endif

const Features &features() {
    static const Features found = read_features();
    return found;
}

}  // namespace

bool has_avx2() { return features().avx2; }
bool has_avx512_vnni() { return features().avx512_vnni; }
bool has_avx512_bf16() { return features().avx512_bf16; }
bool has_amx() { return features().amx; }

}  // namespace ls

extern "C" {

__attribute__((visibility("default"))) const char *ls_level() {
#if defined(__AVX512VNNI__)
    return "avx512";
#elif defined(__AVX2__)
    return "avx2";
#else
    return "portable";
#endif
}

__attribute__((visibility("default"))) int32_t ls_supported() {
#if defined(__AVX512VNNI__)
    return ls::has_avx512_vnni() ? 1 : 0;
#elif defined(__AVX2__)
    return ls::has_avx2() ? 1 : 0;
#else
    return 1;
#endif
}
}
