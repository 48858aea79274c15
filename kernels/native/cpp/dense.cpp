// Products with weights in float32, bfloat16 or float16. A sum is over pieces of kDepth of the inner
// dimension, each in sequence, one lane a column, and over the pieces in sequence: always the same,
// whichever rows are beside it and however the work is cut.
#include <algorithm>
#include <cstring>

#include "products.h"
#include "simd.h"
#include "team.h"

namespace rl {
namespace {

constexpr int64_t kDepth = 256;  // changes last bits; longer sums are less exact
constexpr int kFew = 4;          // rows up to which weights are widened as they are used
constexpr int kWidened = 2;      // the scratch place of widened panels
// Rows and blocks whose sums registers hold at once; few rows take more blocks.
#if RL_AVX512
constexpr int kMostRows = 8, kMostBlocks = 3, kFewBlocks = 4;
#elif RL_AVX2
constexpr int kMostRows = 6, kMostBlocks = 1, kFewBlocks = 2;
#else
constexpr int kMostRows = 4, kMostBlocks = 1, kFewBlocks = 1;
#endif

// Some blocks of a weight, their values [depth][16] one block `apart` bytes behind the other.
struct Panel {
  const char* values;
  int64_t apart;
  int64_t depth;
};

// out[r][16 b + lane] = or += the sum over a panel, k in sequence.
template <int DTYPE, int R, int B>
void add_panel(const Panel& panel, const float* rows, int64_t stride, const Floats& out,
               bool fresh) {
  F16 sums[R][B];
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) sums[r][b] = zero();
  for (int64_t k = 0; k < panel.depth; ++k) {
    F16 weight[B];
    for (int b = 0; b < B; ++b) {
      const char* at = panel.values + b * panel.apart;
      if (R <= kFew) __builtin_prefetch(at + (16 * k + 512) * bytes_of(DTYPE));
      weight[b] = load_as(DTYPE, at, 16 * k);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F16 x = set1(rows[r * stride + k]);
      for (int b = 0; b < B; ++b) sums[r][b] = fma(x, weight[b], sums[r][b]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) {
      float* at = out.data + r * out.stride + 16 * b;
      store(at, fresh ? sums[r][b] : add(load(at), sums[r][b]));
    }
}

using AddPanel = void (*)(const Panel&, const float*, int64_t, const Floats&, bool);

template <int DTYPE, int B, int R>
AddPanel for_rows(int rows) {
  if constexpr (R > 1)
    if (rows < R) return for_rows<DTYPE, B, R - 1>(rows);
  return add_panel<DTYPE, R, B>;
}

// The function for some rows and blocks of a panel.
template <int DTYPE, int R>
AddPanel for_panel(int rows, int blocks) {
  if constexpr (kFewBlocks >= 4)
    if (blocks == 4) return for_rows<DTYPE, 4, kFew>(rows);
  if constexpr (kMostBlocks >= 3)
    if (blocks == 3) return for_rows<DTYPE, 3, R>(rows);
  if constexpr (kFewBlocks >= 2)
    if (blocks == 2) return for_rows<DTYPE, 2, kMostBlocks >= 2 ? R : kFew>(rows);
  return for_rows<DTYPE, 1, R>(rows);
}

AddPanel for_panel(int dtype, int rows, int blocks) {
  if (dtype == kBFloat16) return for_panel<kBFloat16, kFew>(rows, blocks);
  if (dtype == kFloat16) return for_panel<kFloat16, kFew>(rows, blocks);
  return for_panel<kFloat32, kMostRows>(rows, blocks);
}

// The panel in float32, for rows enough to use it several times.
Panel widened(const Panel& panel, int dtype, int blocks) {
  float* wide = scratch<float>(kWidened, kDepth * 16 * kFewBlocks);
  for (int b = 0; b < blocks; ++b)
    for (int64_t k = 0; k < panel.depth; ++k)
      store(wide + (b * panel.depth + k) * 16,
            load_as(dtype, panel.values + b * panel.apart, 16 * k));
  return {reinterpret_cast<const char*>(wide), panel.depth * 64, panel.depth};
}

void add_rows(const Panel& panel, int dtype, int blocks, const Rows& rows, int64_t from_k,
              const Floats& out) {
  const bool few = rows.count <= kFew;
  const Panel used = few || dtype == kFloat32 ? panel : widened(panel, dtype, blocks);
  const int used_dtype = few ? dtype : int(kFloat32);
  const int most = few ? kFew : kMostRows;
  for (int64_t row = 0; row < rows.count; row += most) {
    const int count = static_cast<int>(std::min<int64_t>(most, rows.count - row));
    const Floats own{out.data + row * out.stride, out.stride};
    for_panel(used_dtype, count, blocks)(used, rows.floats + row * rows.stride + from_k,
                                         rows.stride, own, from_k == 0);
  }
}

// Blocks of whole columns, next to each other.
void multiply_whole(const Weight& weight, const Rows& rows, const Floats& out, int64_t block,
                    int blocks) {
  const int64_t bytes = bytes_of(weight.dtype), apart = weight.in * 16 * bytes;
  const char* values = reinterpret_cast<const char*>(weight.tiles) + block * apart;
  for (int64_t k = 0; k < weight.in; k += kDepth) {
    const Panel panel{values + k * 16 * bytes, apart, std::min(kDepth, weight.in - k)};
    add_rows(panel, weight.dtype, blocks, rows, k, out);
  }
}

// The last block of a weight whose columns do not fill it.
void multiply_partial(const Weight& weight, const Rows& rows, const Floats& out, int64_t block) {
  const int columns = static_cast<int>(weight.out - 16 * block);
  constexpr int64_t kRows = 64;
  float whole[16 * kRows];
  for (int64_t row = 0; row < rows.count; row += kRows) {
    Rows some = rows;
    some.floats += row * rows.stride;
    some.count = std::min(kRows, rows.count - row);
    multiply_whole(weight, some, {whole, 16}, block, 1);
    for (int64_t i = 0; i < some.count; ++i)
      std::memcpy(out.data + (row + i) * out.stride, whole + 16 * i, columns * sizeof(float));
  }
}

}  // namespace

void multiply_dense_blocks(const Weight& weight, const Rows& rows, const Floats& out,
                           int64_t first, int64_t last) {
  const int64_t whole = std::min(last, weight.out / 16);
  const int most = rows.count <= kFew ? kFewBlocks : kMostBlocks;
  for (int64_t block = first; block < whole; block += most)
    multiply_whole(weight, rows, {out.data + 16 * block, out.stride}, block,
                   static_cast<int>(std::min<int64_t>(most, whole - block)));
  if (whole < last)
    multiply_partial(weight, rows, {out.data + 16 * whole, out.stride}, whole);
}

}  // namespace rl
