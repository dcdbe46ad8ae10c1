// Treating floats below the least normal one as zero, for a while on one thread.
//
// Softmax makes many of them: weights of keys that hardly matter. Each costs the processor more than a hundred cycles.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace ls {

class FlushToZero {
public:
#if defined(__SSE__)
    FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | FLUSH_RESULTS | FLUSH_OPERANDS); }
    ~FlushToZero() { _mm_setcsr(before_); }
#else
    FlushToZero() {}
    ~FlushToZero() {}
#endif
    FlushToZero(const FlushToZero &) = delete;
    FlushToZero &operator=(const FlushToZero &) = delete;

#if defined(__SSE__)
private:
    static constexpr unsigned FLUSH_RESULTS = 0x8000;
    static constexpr unsigned FLUSH_OPERANDS = 0x0040;
    const unsigned before_;
#endif
};

}  // namespace ls
