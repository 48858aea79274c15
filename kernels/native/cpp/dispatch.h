// Instruction sets, least first.
#pragma once

extern "C" {
enum { RL_PORTABLE_ISA = 0, RL_AVX2_ISA = 1, RL_AVX512_ISA = 2, RL_AMX_ISA = 3 };

// The greatest set that this process can use. For AMX it asks the system's permission, which
// holds for threads that are made later and must be asked before the first tile instruction.
int rl_cpu_isa(void);
}
