// Permission for, and the state of, AMX tiles.
//
// Linux gives the tile registers to a process only after it has asked (arch_prctl(2), ARCH_REQ_XCOMP_PERM); the first tile
// instruction without that kills the process. Every thread loads the configuration before it uses tiles and releases
// them after, which also spares the kernel saving 8 KiB at each context switch.
#pragma once

namespace ls {

// Whether the processor has AMX, the system saves its state, and the process was given it. Asks once.
bool amx_permitted();

// Eight tiles of 16 rows of 64 bytes.
void amx_begin();
void amx_end();

}  // namespace ls
