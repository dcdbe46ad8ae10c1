#include "amx.h"

#include <cstdint>
#include <cstring>

#include "cpu_features.h"

#if defined(__AMX_TILE__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define LS_HAS_AMX
#endif

namespace ls {

#if defined(LS_HAS_AMX)

namespace {

constexpr long ARCH_GET_XCOMP_PERM = 0x1022;
constexpr long ARCH_REQ_XCOMP_PERM = 0x1023;
constexpr unsigned long XFEATURE_XTILEDATA = 18;

bool ask() {
    if (!has_amx() || syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0) {
        return false;
    }
    unsigned long permitted = 0;
    return syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &permitted) == 0 && (permitted >> XFEATURE_XTILEDATA & 1) != 0;
}

// The 64 bytes that LDTILECFG reads, palette 1.
struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64, "as the processor reads it");

}  // namespace

bool amx_permitted() {
    static const bool permitted = ask();
    return permitted;
}

void amx_begin() {
    const TileConfig config;
    // The intrinsic does not tell the compiler that it reads the structure.
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

void amx_end() { _tile_release(); }

#else

bool amx_permitted() { return false; }
void amx_begin() {}
void amx_end() {}

#endif

}  // namespace ls
