// The arithmetic of one block for a few rows, and of merging: what fixes a row's bits.
//
// Every sum has one order. A score runs over head_dim in sequence, one lane a key; the sum of
// weights adds the four vectors of 16 keys, then their lanes (simd.h); a value runs over the keys
// of the block in sequence, one lane a column. A masked key takes part in none of them.
#pragma once

#include "attention.h"
#include "simd.h"

namespace rl {

constexpr int kBlockKeys = 64;
// Rows that registers hold at once, and vectors of each.
#if RL_AVX512
constexpr int kTile = 6, kWide = 4;
#elif RL_AVX2
constexpr int kTile = 6, kWide = 1;
#else
constexpr int kTile = 2, kWide = 1;
#endif

// Keys that a row sees, within its block.
struct Seen {
  int first, last;
  bool any() const { return first < last; }
};

// acc[r][v] += a[r][k] b(k, v) for k in sequence.
template <int ROWS, int WIDE, class B>
RL_INLINE void multiply(const float* a, int stride, int first, int last, const B& b,
                        F16 (&acc)[ROWS][WIDE]) {
  for (int k = first; k < last; ++k) {
    F16 x[WIDE];
    for (int v = 0; v < WIDE; ++v) x[v] = b(k, v);
    for (int r = 0; r < ROWS; ++r) {
      const F16 y = set1(a[r * stride + k]);
      for (int v = 0; v < WIDE; ++v) acc[r][v] = fma(y, x[v], acc[r][v]);
    }
  }
}

// The block's keys, widened already and transposed, [dim][64].
struct WideKeys {
  const float* base;
  RL_INLINE F16 operator()(int d, int v) const { return load(base + d * kBlockKeys + 16 * v); }
  WideKeys from(int key) const { return {base + key}; }
};

// scores[r][16 v + lane] for the first WIDE vectors of keys.
template <int ROWS, int WIDE, class Keys>
void score_keys(const float* q, int dim, const Keys& keys, float* scores) {
  F16 acc[ROWS][WIDE];
  for (auto& row : acc)
    for (F16& x : row) x = zero();
  multiply<ROWS, WIDE>(q, dim, 0, dim, keys, acc);
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < WIDE; ++v) store(scores + r * kBlockKeys + 16 * v, acc[r][v]);
}

// Vectors [first, last) of keys.
template <int ROWS, class Keys>
void score_block(const float* q, int dim, const Keys& keys, int first, int last, float* scores) {
  while (first < last) {
    const int left = last - first;
    if (kWide == 4 && left >= 4) {
      score_keys<ROWS, kWide>(q, dim, keys.from(16 * first), scores + 16 * first);
      first += kWide;
    } else if (kWide == 4 && left >= 2) {
      score_keys<ROWS, kWide == 4 ? 2 : 1>(q, dim, keys.from(16 * first), scores + 16 * first);
      first += kWide == 4 ? 2 : 1;
    } else {
      score_keys<ROWS, 1>(q, dim, keys.from(16 * first), scores + 16 * first);
      first += 1;
    }
  }
}

// Scores of one row to weights in place; gives the block's max and sum of weights.
RL_INLINE void weigh(float* scores, Seen seen, const rl_attention_options& options, float* max_out,
                     float* sum_out) {
  const float scale = options.scale, cap = options.soft_cap;
  const int from = seen.first / 16, to = (seen.last + 15) / 16;
  const F16 lowest = set1(-std::numeric_limits<float>::infinity());
  F16 s[4], most = lowest;
  for (int v = 0; v < 4; ++v) {
    if (v < from || v >= to) continue;
    s[v] = mul(load(scores + 16 * v), set1(scale));
    if (cap != 0.0f) s[v] = mul(tanh(div(s[v], set1(cap))), set1(cap));
    if (seen.last < 16 * v + 16) s[v] = select(first_n(seen.last - 16 * v), s[v], lowest);
    if (seen.first > 16 * v) s[v] = select(first_n(seen.first - 16 * v), lowest, s[v]);
    most = max(most, s[v]);
  }
  *max_out = max_lane(most);
  F16 total = zero();
  for (int v = 0; v < 4; ++v) {
    if (v < from || v >= to) continue;
    const F16 p = exp(sub(s[v], set1(*max_out)));
    store(scores + 16 * v, p);
    total = add(total, p);
  }
  *sum_out = sum(total);
}

// out[r][16 v + lane] += weighted values of keys [first, last); from zero where it is `fresh`.
template <int ROWS, int WIDE, class B>
RL_INLINE void add_values(const float* weights, int first, int last, const B& values, bool fresh,
                          float* out, int width) {
  F16 acc[ROWS][WIDE];
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < WIDE; ++v) acc[r][v] = fresh ? zero() : load(out + r * width + 16 * v);
  multiply<ROWS, WIDE>(weights, kBlockKeys, first, last, values, acc);
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < WIDE; ++v) store(out + r * width + 16 * v, acc[r][v]);
}

// The keys that all rows see; where there are none, an empty range.
template <int ROWS>
RL_INLINE Seen seen_by_all(const Seen* seen) {
  Seen all = seen[0];
  for (int r = 1; r < ROWS; ++r) {
    if (seen[r].first > all.first) all.first = seen[r].first;
    if (seen[r].last < all.last) all.last = seen[r].last;
  }
  if (all.last < all.first) all.last = all.first;
  return all;
}

// out[r][16 v + lane]: weighted values of the keys that each row sees, WIDE vectors of columns.
template <int ROWS, int WIDE, class B>
RL_INLINE void weigh_columns(const float* weights, const Seen* seen, const B& values, float* out,
                             int width) {
  const Seen all = seen_by_all<ROWS>(seen);
  bool fresh = true;
  for (int r = 0; r < ROWS; ++r) fresh &= seen[r].first == all.first || !seen[r].any();
  for (int r = 0; !fresh && r < ROWS; ++r) {
    const int last = seen[r].last < all.first ? seen[r].last : all.first;
    add_values<1, WIDE>(weights + r * kBlockKeys, seen[r].first, last, values, true,
                        out + r * width, width);
  }
  add_values<ROWS, WIDE>(weights, all.first, all.last, values, fresh, out, width);
  for (int r = 0; r < ROWS; ++r) {
    const int first = seen[r].first > all.last ? seen[r].first : all.last;
    if (first < seen[r].last)
      add_values<1, WIDE>(weights + r * kBlockKeys, first, seen[r].last, values, false,
                          out + r * width, width);
  }
}

// The block's values, widened already, [64][width].
struct WideValues {
  const float* base;
  int width;
  RL_INLINE F16 operator()(int key, int v) const { return load(base + key * width + 16 * v); }
  WideValues from(int column) const { return {base + column, width}; }
};

// Values in the pool: rows of head_dim (a multiple of 16) found by slot.
template <int DTYPE>
struct PoolValues {
  const char* base;
  const int32_t* slots;
  int64_t row_bytes;
  RL_INLINE F16 operator()(int key, int v) const {
    return load_as(DTYPE, base + slots[key] * row_bytes, 16 * v);
  }
  PoolValues from(int column) const { return {base + column * bytes_of(DTYPE), slots, row_bytes}; }
};

template <int ROWS, class B>
void weigh_values(const float* weights, const Seen* seen, const B& values, float* out, int width) {
  int column = 0;
  for (; column + 16 * kWide <= width; column += 16 * kWide)
    weigh_columns<ROWS, kWide>(weights, seen, values.from(column), out + column, width);
  for (; column < width; column += 16)
    weigh_columns<ROWS, 1>(weights, seen, values.from(column), out + column, width);
}

// Running result of rows: max, sum of weights, weighted values [width] each.
struct State {
  float* max;
  float* sum;
  float* values;
};

// state = state merged with a later block, for up to 16 rows; rows that see nothing stay.
RL_INLINE void merge_rows(int rows, const Seen* seen, const float* block_max,
                          const float* block_sum, const float* block_values, int width,
                          int stride, State state) {
  const F16 m = load_n(state.max, rows), b = load_n(block_max, rows), top = max(m, b);
  const F16 keep = exp(sub(m, top)), take = exp(sub(b, top));
  float keeps[16], takes[16], tops[16], sums[16];
  store(keeps, keep);
  store(takes, take);
  store(tops, top);
  store(sums, fma(load_n(state.sum, rows), keep, mul(load_n(block_sum, rows), take)));
  for (int r = 0; r < rows; ++r) {
    if (!seen[r].any()) continue;
    state.max[r] = tops[r];
    state.sum[r] = sums[r];
    const F16 x = set1(keeps[r]), y = set1(takes[r]);
    float* own = state.values + r * width;
    for (int c = 0; c < width; c += 16)
      store(own + c, fma(load(own + c), x, mul(load(block_values + r * stride + c), y)));
  }
}

}  // namespace rl
