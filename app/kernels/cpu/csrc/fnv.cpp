// FNV-1a-64, the hash under which weights are offered to a worker: h = (h ^ byte) * prime. As written, each byte waits for
// the product of the one before, four to five cycles. But the xor touches only the low byte of h, and low bytes depend on
// nothing but low bytes. So the low bytes go ahead: bit k of (low * prime) is bit k of low plus something that lower bits
// decide, hence bit after bit a running xor over all places, done for 64 places in a word. From its low byte on, every piece
// of 16 bytes is then hashed beside the others, and what the upper bytes add is linear modulo 2^64. Without vectors finding
// the low bytes costs more than it saves.
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr uint64_t power(uint64_t base, int n) { return n == 0 ? 1 : base * power(base, n - 1); }

constexpr uint64_t PRIME = 0x100000001b3;

#if defined(__AVX2__)

#if defined(__AVX512BW__)
constexpr int GROUPS = 8;
#else
constexpr int GROUPS = 4;
#endif
constexpr int BITS = 8, GROUP = 64, PIECE = 16, BLOCK = GROUPS * GROUP;
constexpr uint64_t PIECE_STARTS = 0x0001000100010001;
constexpr uint64_t PIECE_PRIME = power(PRIME, PIECE), GROUP_PRIME = power(PRIME, GROUP);

// One word for each group of a block.
typedef uint64_t Words __attribute__((vector_size(GROUPS * sizeof(uint64_t))));

#if defined(__AVX512BW__)
inline uint64_t bit_plane(const uint8_t *group, int shift) {
    return _mm512_movepi8_mask(_mm512_slli_epi16(_mm512_loadu_si512(group), shift));
}

inline unsigned top_bits(Words words) { return _mm512_movepi64_mask(reinterpret_cast<__m512i>(words)); }

inline Words all_or_none(unsigned groups) {
    return reinterpret_cast<Words>(_mm512_movm_epi64(static_cast<__mmask8>(groups)));
}
#else
inline uint64_t bit_plane(const uint8_t *group, int shift) {
    uint64_t plane = 0;
    for (int half = 0; half < 2; ++half) {
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(group + 32 * half));
        const int bits = _mm256_movemask_epi8(_mm256_slli_epi16(bytes, shift));
        plane |= static_cast<uint64_t>(static_cast<uint32_t>(bits)) << 32 * half;
    }
    return plane;
}

inline unsigned top_bits(Words words) {
    return static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(reinterpret_cast<__m256i>(words))));
}

inline Words all_or_none(unsigned groups) {
    const __m256i bits = _mm256_set_epi64x(8, 4, 2, 1);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi64x(static_cast<int64_t>(groups)), bits);
    return reinterpret_cast<Words>(_mm256_cmpeq_epi64(set, bits));
}
#endif

// The running xor of a plane up to, but without, each place; `bit` is its value before the block, and then after it.
inline Words running_xor(Words plane, unsigned &bit) {
    for (int n = 1; n < GROUP; n *= 2) plane ^= plane << n;
    unsigned ends = top_bits(plane);
    for (int n = 1; n < GROUPS; n *= 2) ends ^= ends << n;
    const unsigned starts = ends << 1 ^ (0 - bit);
    bit ^= ends >> (GROUPS - 1) & 1;
    return plane << 1 ^ all_or_none(starts & ((1u << GROUPS) - 1));
}

// The low bytes with which the pieces of a block begin, four to a word; `low` is that of the first one, and then of the
// next block. prime = 1 + 2 + 16 + 32 + 128 modulo 256: y = x + 2x, z = y + 16y, then 128x is added.
inline Words piece_starts(const Words planes[BITS], unsigned &low) {
    Words x[BITS], y[BITS], starts{}, carry_y{}, carry_z{};
    unsigned after = 0;
    for (int k = 0; k < BITS; ++k) {
        const Words from_x = k > 0 ? x[k - 1] : Words{}, from_y = k >= 4 ? y[k - 4] : Words{};
        const Words lower = from_x ^ carry_y ^ from_y ^ carry_z ^ (k == BITS - 1 ? x[0] : Words{});
        unsigned bit = low >> k & 1;
        const Words state = running_xor(planes[k] ^ lower, bit);
        after |= bit << k;
        starts |= (state & PIECE_STARTS) << k;
        x[k] = state ^ planes[k];
        y[k] = x[k] ^ from_x ^ carry_y;
        carry_y = (x[k] & from_x) | (carry_y & (x[k] ^ from_x));
        carry_z = (y[k] & from_y) | (carry_z & (y[k] ^ from_y));
    }
    low = after;
    return starts;
}

// What a hash is after `n` more bytes, if it was `state`, and those bytes give `tail` when they begin with the same low byte.
inline uint64_t join(uint64_t state, uint64_t n_primes, uint64_t tail) {
    return (state & ~uint64_t{0xff}) * n_primes + tail;
}

// The hash of a group from the low bytes on with which its pieces begin.
inline uint64_t hash_group(const uint8_t *data, uint64_t starts) {
    uint64_t a = starts & 0xff, b = starts >> 16 & 0xff, c = starts >> 32 & 0xff, d = starts >> 48;
    for (int i = 0; i < PIECE; ++i) {
        a = (a ^ data[i]) * PRIME;
        b = (b ^ data[i + PIECE]) * PRIME;
        c = (c ^ data[i + 2 * PIECE]) * PRIME;
        d = (d ^ data[i + 3 * PIECE]) * PRIME;
        // Keeps compilers from vectors, whose 64-bit products take far longer.
        asm("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
    }
    return join(join(join(a, PIECE_PRIME, b), PIECE_PRIME, c), PIECE_PRIME, d);
}

inline uint64_t hash_block(const uint8_t *data, uint64_t state, unsigned &low) {
    Words planes[BITS];
    for (int k = 0; k < BITS; ++k) {
        uint64_t plane[GROUPS];
        for (int g = 0; g < GROUPS; ++g) plane[g] = bit_plane(data + g * GROUP, BITS - 1 - k);
        memcpy(&planes[k], plane, sizeof plane);
    }
    const Words starts = piece_starts(planes, low);
    for (int g = 0; g < GROUPS; ++g) state = join(state, GROUP_PRIME, hash_group(data + g * GROUP, starts[g]));
    return state;
}

// Hashes whole blocks and says how many bytes they were.
inline int64_t hash_blocks(const uint8_t *data, int64_t n, uint64_t &state) {
    int64_t at = 0;
    unsigned low = state & 0xff;
    for (; n - at >= BLOCK; at += BLOCK) state = hash_block(data + at, state, low);
    return at;
}

#else

inline int64_t hash_blocks(const uint8_t *, int64_t, uint64_t &) { return 0; }

#endif

}  // namespace

extern "C" __attribute__((visibility("default"))) uint64_t ls_fnv1a_64(const uint8_t *data, int64_t n, uint64_t state) {
    for (int64_t i = hash_blocks(data, n, state); i < n; ++i) state = (state ^ data[i]) * PRIME;
    return state;
}
