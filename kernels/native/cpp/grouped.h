// Products with weights of few bits, as GGUF files store them: every 32 weights of a row have a
// scale of their own, and so has every 32 values of what they are multiplied with. Sums within a
// group are exact integers; groups are added in order.
#pragma once

#include <cstdint>

#include "products.h"

namespace rl {

constexpr int64_t kGroup = 32;  // weights, or values, of one scale
constexpr int64_t kUnit = 8;    // groups whose scales GGUF's 256-blocks pack together

// How the bits of a weight of a kind are cut into planes. A weight is scale * (q - centre), q
// unsigned, or scale * q + least where the file has a least weight.
//
// What GGUF's block of a kind is. Planes, for 16 columns by a group: `low_bytes` with four bits a
// weight (eight for Q8_0), `high_bytes` with the bits above, and for a unit `param_bytes`.
struct Format {
  int bits;
  int centre;           // 0: it has a least weight
  int halves;           // scales of a group
  int64_t block;        // weights of a stored block
  int64_t block_bytes;
  int64_t low_bytes;
  int64_t high_bytes;
  int64_t param_bytes;  // of a stored block of 16 columns
};

// The format of a kind; bits is 0 where there is none.
Format format_of(int kind);

// Scales and least weights, if there are any, of up to eight groups, or of sixteen half groups.
struct alignas(64) Params {
  float scale[2 * kUnit][16];
  float least[2 * kUnit][16];
};

// Those of groups [8 unit, 8 unit + count) of a block of 16 columns.
void read_params(const Weight& weight, int64_t block, int64_t unit, int64_t count, Params& out);

// As multiply_blocks, for a weight whose kind is not kByRow. The rows have groups.
void multiply_grouped(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
                      int64_t last);

}  // namespace rl
