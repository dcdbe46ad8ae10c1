// Products and sums with the matrix or the row that an index names for each slot of each token: mixture of experts.
//
// MUL_MAT_ID: src[0] experts [k, n, n_experts] of a type with groups, GROUPED or PLAIN (slowly), without gaps; src[1]
// shape F32 [k, b1, n_tokens], data what a QUANTIZE step wrote of it; src[2] I32 [n_used, n_tokens]; dst F32
// [n, n_used, n_tokens], nb[0] = 4. Slot s of a token reads row s % b1. Scratch: ls_scratch_bytes of the step.
//
// ADD_ID: src[0] F32 [n, n_used, n_tokens], src[1] F32 [n, n_biases], src[2] as above.
//
// BAD_INDEX, before anything is written by MUL_MAT_ID, when an index is out of range.
#pragma once

#include "plan.h"

namespace ls {

int32_t mul_mat_id(const Step &step, int ith, int nth);
int64_t mul_mat_id_scratch(const Step &step, int n_threads);

int32_t add_id(const Step &step, int ith, int nth);

}  // namespace ls
