// What adapters add to products: for some rows, b a x of a thin matrix pair, in float32.
#pragma once

#include <cstdint>

#include "ops.h"

extern "C" {

// One pair: out[column + c] += scale * sum_r b[r][c] (sum_i a[r][i] x[i]).
struct RlLowRank {
  const float* a;  // [rank, in]
  const float* b;  // [rank, out]
  int64_t rank;
  int64_t in;
  int64_t out;
  int64_t column;  // of the product, where its output begins
};

// One way of using an adapter. Pairs of layer i and product p (qkv, o, gate_up, down) are those
// from starts[4 i + p] to starts[4 i + p + 1].
struct RlVariant {
  const RlLowRank* pairs;
  const int32_t* starts;  // [4 num_layers + 1]
  float scale;
  float unused;
};

// The rows of a step that each variant adds to: rows[ends[v - 1]] to rows[ends[v]], ascending.
struct RlAdapters {
  const RlVariant* variants;
  const int32_t* rows;
  const int32_t* ends;  // [count]
  int64_t count;
};
}

namespace rl {

enum Place : int { kQkv = 0, kO = 1, kGateUp = 2, kDown = 3 };

// Adds to rows [first, last) of a step, whose inputs are levels and whose products are data, both
// from row `first` on; rows are shared by a team. A row's sums have one order, whoever is beside it.
void add_low_rank(const RlAdapters& adapters, int64_t layer, Place place, const Levels& levels,
                  int64_t first, int64_t last, float* data, int64_t stride, int threads);

}  // namespace rl
