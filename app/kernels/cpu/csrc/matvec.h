// Products of weights with few rows of activations (decode). Bound by reading the weights, which are decoded once for
// up to 8 tokens.
//
// src[0]: weights [k, n_rows], GROUPED for quantised types (PLAIN works, slowly), PLAIN for F32, F16, BF16.
// src[1]: shape F32 [k, n_tokens]; data is what a QUANTIZE step wrote (act.h), or for F32, F16, BF16 weights the F32 rows
// themselves with nb[1] from one to the next. dst: F32 [n_rows, n_tokens] with nb[1] from one row to the next.
#pragma once

#include "plan.h"

namespace ls {

// Kernel of Kind::MATVEC. UNSUPPORTED when the weights' type has no kernel.
int32_t matvec(const Step &step, int ith, int nth);

// The same for F32, F16 and BF16 weights (matvec_dense.cpp); called by `matvec`.
int32_t matvec_dense(const Step &step, int ith, int nth);

}  // namespace ls
