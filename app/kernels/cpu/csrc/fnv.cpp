// FNV-1a-64, the hash under which weights are offered to a worker. Each byte waits for the product of the one before, so
// this is bound by the multiplier's latency: a byte in four to five cycles, whatever the level.
#include <cstdint>

extern "C" __attribute__((visibility("default"))) uint64_t ls_fnv1a_64(const uint8_t *data, int64_t n, uint64_t state) {
    constexpr uint64_t PRIME = 0x100000001b3;
    for (int64_t i = 0; i < n; ++i) {
        state = (state ^ data[i]) * PRIME;
    }
    return state;
}
