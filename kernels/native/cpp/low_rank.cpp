// Thin matrix pairs added to products. Rows of one adapter are taken a few at a time, so that its
// matrices are read once for all of them; each row's sums are sequences of their own.
#include "low_rank.h"

#include <algorithm>

#include "lanes.h"
#include "simd.h"
#include "team.h"

namespace rl {
namespace {

constexpr int kFew = 4;   // rows that are taken at once
// Rows of a, or blocks of 16 columns of b, whose sums registers hold at once.
#if RL_AVX512
constexpr int kWide = 4;
#else
constexpr int kWide = 1;
#endif
constexpr int kWork = 3;  // the scratch place, which operations use as well, at other times

// Values of one row as what they stand for, but for the row's own scale.
const float* widened(const Levels& levels, int64_t row, int64_t width, float* into) {
  if (levels.floats) return levels.floats + row * levels.stride;
  const int8_t* values = levels.values + row * levels.stride;
  const Group* groups = levels.groups ? levels.groups + row * levels.group_stride : nullptr;
  if (groups)
    for (int64_t i = 0; i < width; ++i) into[i] = values[i] * groups[i / 32].scale;
  else
    for (int64_t i = 0; i < width; ++i) into[i] = static_cast<float>(values[i]);
  return into;
}

// inner[k][r .. r + J) = scale * the sums of x[k] with J rows of a.
template <int R, int J>
void reduce(const RlLowRank& pair, float scale, const float* const* x, int64_t r, float* inner) {
  const float* a = pair.a + r * pair.in;
  F16 sums[R][J];
  for (int k = 0; k < R; ++k)
    for (int j = 0; j < J; ++j) sums[k][j] = zero();
  const int64_t whole = pair.in / 16 * 16;
  for (int64_t i = 0; i < whole; i += 16) {
    F16 weight[J];
    for (int j = 0; j < J; ++j) weight[j] = load(a + j * pair.in + i);
    for (int k = 0; k < R; ++k) {
      const F16 value = load(x[k] + i);
      for (int j = 0; j < J; ++j) sums[k][j] = fma(value, weight[j], sums[k][j]);
    }
  }
  for (int k = 0; k < R; ++k)
    for (int j = 0; j < J; ++j) {
      if (whole < pair.in)
        sums[k][j] = fma(load_at(x[k], whole, pair.in), load_at(a + j * pair.in, whole, pair.in),
                         sums[k][j]);
      inner[k * pair.rank + r + j] = sum(sums[k][j]) * scale;
    }
}

// out[k][c .. c + 16 J) += the sums of inner[k] with columns of b.
template <int R, int J>
void expand(const RlLowRank& pair, const float* inner, int64_t c, float* const* out) {
  F16 sums[R][J];
  for (int k = 0; k < R; ++k)
    for (int j = 0; j < J; ++j) sums[k][j] = zero();
  for (int64_t r = 0; r < pair.rank; ++r) {
    const float* b = pair.b + r * pair.out;
    F16 weight[J];
    for (int j = 0; j < J; ++j) weight[j] = load_at(b, c + 16 * j, pair.out);
    for (int k = 0; k < R; ++k) {
      const F16 value = set1(inner[k * pair.rank + r]);
      for (int j = 0; j < J; ++j) sums[k][j] = fma(value, weight[j], sums[k][j]);
    }
  }
  for (int k = 0; k < R; ++k)
    for (int j = 0; j < J; ++j) {
      float* at = out[k] + pair.column;
      const int64_t i = c + 16 * j;
      store_at(at, i, pair.out, add(load_at(at, i, pair.out), sums[k][j]));
    }
}

template <int R>
void add_pair(const RlLowRank& pair, float scale, const float* const* x, float* const* out,
              float* inner) {
  int64_t r = 0, c = 0;
  for (; r + kWide <= pair.rank; r += kWide) reduce<R, kWide>(pair, scale, x, r, inner);
  for (; r < pair.rank; ++r) reduce<R, 1>(pair, scale, x, r, inner);
  for (; c + 16 * kWide <= pair.out; c += 16 * kWide) expand<R, kWide>(pair, inner, c, out);
  for (; c < pair.out; c += 16) expand<R, 1>(pair, inner, c, out);
}

void add_pair(const RlLowRank& pair, float scale, int count, const float* const* x,
              float* const* out, float* inner) {
  switch (count) {
    case 1: return add_pair<1>(pair, scale, x, out, inner);
    case 2: return add_pair<2>(pair, scale, x, out, inner);
    case 3: return add_pair<3>(pair, scale, x, out, inner);
    default: return add_pair<4>(pair, scale, x, out, inner);
  }
}

// A few rows of one variant: its pairs for one product added.
void add_some(const RlVariant& variant, const int32_t* starts, const int32_t* rows, int count,
              const Levels& levels, int64_t first, float* data, int64_t stride) {
  const int64_t width = variant.pairs[starts[0]].in, padded = (width + 15) / 16 * 16;
  int64_t rank = 0;
  for (int32_t i = starts[0]; i < starts[1]; ++i) rank = std::max(rank, variant.pairs[i].rank);
  float* inputs = scratch<float>(kWork, kFew * (padded + rank));
  const float* x[kFew];
  float* out[kFew];
  for (int k = 0; k < count; ++k) {
    x[k] = widened(levels, rows[k] - first, width, inputs + k * padded);
    out[k] = data + (rows[k] - first) * stride;
  }
  for (int32_t i = starts[0]; i < starts[1]; ++i)
    add_pair(variant.pairs[i], variant.scale, count, x, out, inputs + kFew * padded);
}

}  // namespace

void add_low_rank(const RlAdapters& adapters, int64_t layer, Place place, const Levels& levels,
                  int64_t first, int64_t last, float* data, int64_t stride, int threads) {
  for (int64_t v = 0; v < adapters.count; ++v) {
    const RlVariant& variant = adapters.variants[v];
    const int32_t* starts = variant.starts + 4 * layer + place;
    if (starts[0] == starts[1]) continue;
    const int32_t* begin = adapters.rows + (v ? adapters.ends[v - 1] : 0);
    const int32_t* end = adapters.rows + adapters.ends[v];
    const int32_t* rows = std::lower_bound(begin, end, static_cast<int32_t>(first));
    const int64_t count = std::lower_bound(rows, end, static_cast<int32_t>(last)) - rows;
    const int pieces = static_cast<int>((count + kFew - 1) / kFew);
    parallel_for(threads, pieces, [&](int item, int) {
      const int64_t at = item * kFew;
      add_some(variant, starts, rows + at, static_cast<int>(std::min<int64_t>(kFew, count - at)),
               levels, first, data, stride);
    });
  }
}

}  // namespace rl
