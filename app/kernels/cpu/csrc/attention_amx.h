// Attention of many query rows on AMX tiles; attention.h says what it computes.
#pragma once

#include "attention.h"

namespace ls {

// Whether the machine has AMX, the system permits it and enough tokens fill its tiles.
bool has_amx_attention(const Attention &a);

int32_t attention_amx(const Attention &a, const Step &step, int ith, int nth);
int64_t attention_amx_scratch(const Attention &a, int n_threads);

}  // namespace ls
