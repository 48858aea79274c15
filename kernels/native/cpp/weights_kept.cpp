// Weights over memory that the caller keeps, such as a mapped file: nothing is packed or copied.
#include "grouped.h"
#include "guard.h"
#include "weights.h"

namespace rl {
namespace {

Weight over(const Format& format, int kind, int64_t out, int64_t in, uint8_t* memory) {
  Weight weight{kind, 0, out, in, (in + 63) / 64, (out + 15) / 16, memory, nullptr, 0};
  const int64_t groups = weight.blocks * (in / kGroup);
  const int64_t params = weight.blocks * (in / format.block) * format.param_bytes;
  weight.bytes = groups * (format.low_bytes + format.high_bytes) + params;
  weight.high = memory + groups * format.low_bytes;
  weight.params = weight.high + groups * format.high_bytes;
  return weight;
}

}  // namespace
}  // namespace rl

extern "C" {

// A grouped weight [out, in] over `bytes` of memory as rl_weight_memory gave them, which are only
// read and must outlive it. Null where they are not as many as such a weight takes, or without
// memory.
rl::Weight* rl_grouped_over(int kind, uint8_t* memory, int64_t bytes, int64_t out, int64_t in) {
  return rl::made([&]() -> rl::Weight* {
    const rl::Format format = rl::format_of(kind);
    if (!format.bits || in % format.block) return nullptr;
    const rl::Weight weight = rl::over(format, kind, out, in, memory);
    return static_cast<int64_t>(weight.bytes) == bytes ? new rl::Weight(weight) : nullptr;
  });
}

// The bytes that a weight consists of, and in *bytes how many.
const uint8_t* rl_weight_memory(const rl::Weight* weight, int64_t* bytes) {
  *bytes = static_cast<int64_t>(weight->bytes);
  return weight->tiles;
}

// Frees a weight over the caller's memory, and not the memory.
void rl_weight_forget(rl::Weight* weight) { delete weight; }
}
