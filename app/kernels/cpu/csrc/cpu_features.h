// What the processor and the operating system allow, asked once.
#pragma once

namespace ls {

bool has_avx2();         // AVX2, FMA, F16C, and ymm state enabled
bool has_avx512_vnni();  // AVX512 F, BW, VL, DQ, VNNI beside the above, and zmm state enabled
bool has_avx512_bf16();
bool has_amx();          // AMX-TILE, AMX-BF16, AMX-INT8 and tile state enabled; permission still has to be requested

}  // namespace ls
