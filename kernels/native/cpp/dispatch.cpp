// Which instruction sets this processor and its system let a program use. Compiled plainly.
#include "dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned sub) {
  Registers r;
  if (leaf <= __get_cpuid_max(0, nullptr)) __cpuid_count(leaf, sub, r.a, r.b, r.c, r.d);
  return r;
}

constexpr bool has(unsigned word, int bit) { return (word >> bit) & 1; }

unsigned long long saved_state() {  // register files that the system saves: XGETBV of 0
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (unsigned long long)high << 32 | low;
}

bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

int find_isa() {
  const Registers one = cpuid(1, 0), seven = cpuid(7, 0);
  if (!has(one.c, 27)) return RL_PORTABLE_ISA;  // OSXSAVE
  const unsigned long long state = saved_state();
  const bool avx2 = (state & 0x6) == 0x6 && has(one.c, 12) && has(one.c, 29) && has(seven.b, 5);
  if (!avx2) return RL_PORTABLE_ISA;  // FMA, F16C, AVX2
  const bool avx512 = (state & 0xe6) == 0xe6 && has(seven.b, 16) && has(seven.b, 17) &&
                      has(seven.b, 30) && has(seven.b, 31) && has(seven.c, 11);
  if (!avx512) return RL_AVX2_ISA;  // F, DQ, BW, VL, VNNI
  const bool amx = (state & 0x60000) == 0x60000 && has(seven.d, 24) && has(seven.d, 25);
  return amx && may_use_tiles() ? RL_AMX_ISA : RL_AVX512_ISA;
}

#else

int find_isa() { return RL_PORTABLE_ISA; }

#endif

}  // namespace

int rl_cpu_isa(void) {
  static const int isa = find_isa();
  return isa;
}
