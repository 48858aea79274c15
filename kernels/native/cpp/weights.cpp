// Weights packed once, and a whole product for callers outside of a decoder.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "guard.h"
#include "products.h"
#include "simd.h"
#include "team.h"
#include "weights.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace rl {
namespace {

constexpr std::size_t kHuge = 1 << 21;

void pack_block(const Weight& weight, const int8_t* values, int64_t block) {
  uint8_t* tile = weight.tiles + block * weight.steps * 1024;
  const int64_t whole = weight.in / 4, columns = weight.out - 16 * block;
  for (int64_t four = 0; four < weight.steps * 16; ++four, tile += 64)
    for (int64_t column = 0; column < 16; ++column) {
      uint32_t four_values = 0;
      const int8_t* from = values + (16 * block + column) * weight.in + 4 * four;
      if (column < columns && four < whole)
        std::memcpy(&four_values, from, 4);
      else if (column < columns && four == whole)
        std::memcpy(&four_values, from, weight.in % 4);
      four_values ^= 0x80808080u;
      std::memcpy(tile + 4 * column, &four_values, 4);
    }
}

void unpack_column(const Weight& weight, int64_t column, int8_t* values) {
  const uint8_t* tile = weight.tiles + column / 16 * weight.steps * 1024 + column % 16 * 4;
  for (int64_t i = 0; i < weight.in; ++i)
    values[i] = static_cast<int8_t>(tile[i / 4 * 64 + i % 4] ^ 0x80);
}

// Values of some columns of a dense weight by their rows [columns, in], to [in, 16] or back.
template <class T>
void pack_dense(const T* rows, int64_t columns, int64_t in, T* block) {
  for (int64_t k = 0; k < in; ++k)
    for (int64_t column = 0; column < 16; ++column)
      block[16 * k + column] = column < columns ? rows[column * in + k] : T(0);
}

template <class T>
void read_dense(const Weight& weight, int64_t column, T* row) {
  const T* values = reinterpret_cast<const T*>(weight.tiles) + column / 16 * weight.in * 16;
  for (int64_t k = 0; k < weight.in; ++k) row[k] = values[16 * k + column % 16];
}

template <class T>
void pack_all(const Weight& weight, const T* values) {
  for (int64_t block = 0; block < weight.blocks; ++block)
    pack_dense(values + 16 * block * weight.in, std::min<int64_t>(16, weight.out - 16 * block),
               weight.in, reinterpret_cast<T*>(weight.tiles) + 16 * block * weight.in);
}

}  // namespace

uint8_t* allocate(std::size_t bytes) {
  void* memory = nullptr;
  const std::size_t align = bytes >= 2 * kHuge ? kHuge : 4096;
  if (posix_memalign(&memory, align, bytes)) throw std::bad_alloc();
#if defined(__linux__)
  if (align == kHuge) madvise(memory, bytes / kHuge * kHuge, MADV_HUGEPAGE);
#endif
  return static_cast<uint8_t*>(memory);
}

int64_t columns_of_all(const Weight& weight) {
  int64_t columns = 0;
  for (const Weight* part = &weight; part; part = part->behind) columns += part->out;
  return columns;
}

void multiply(const Weight& weight, const Rows& rows, const Floats& out, int threads) {
  constexpr int kMost = 8;  // weights behind one another
  int64_t piece[kMost], column[kMost], columns = 0;
  int begin[kMost + 1] = {}, count = 0;
  const Weight* parts[kMost];
  for (const Weight* part = &weight; part && count < kMost; part = part->behind, ++count) {
    parts[count] = part;
    piece[count] = blocks_a_piece(*part, rows.count, threads);
    column[count] = columns;
    columns += part->out;
    begin[count + 1] =
        begin[count] + static_cast<int>((part->blocks + piece[count] - 1) / piece[count]);
  }
  parallel_for(threads, begin[count], [&](int item, int) {
    int at = 0;
    while (item >= begin[at + 1]) ++at;
    const Weight& part = *parts[at];
    const int64_t first = (item - begin[at]) * piece[at], last = first + piece[at];
    multiply_blocks(part, rows, {out.data + column[at], out.stride}, first,
                    last < part.blocks ? last : part.blocks);
  });
}

namespace {

Weight* new_weight(const int8_t* levels, const float* scale, int64_t out, int64_t in) {
  Weight weight{kByRow, 0, out, in, (in + 63) / 64, (out + 15) / 16, nullptr, nullptr, 0};
  const std::size_t tiles = weight.blocks * weight.steps * 1024;
  const std::size_t scales = weight.blocks * 16 * sizeof(float);
  weight.bytes = tiles + scales;
  weight.tiles = allocate(weight.bytes);
  weight.scale = reinterpret_cast<float*>(weight.tiles + tiles);
  std::memset(weight.scale, 0, scales);
  std::memcpy(weight.scale, scale, out * sizeof(float));
  for (int64_t block = 0; block < weight.blocks; ++block) pack_block(weight, levels, block);
  return on_heap(weight);
}

Weight* new_dense(const void* values, int dtype, int64_t out, int64_t in) {
  Weight weight{kDense, dtype, out, in, 0, (out + 15) / 16, nullptr, nullptr, 0};
  weight.bytes = weight.blocks * 16 * in * bytes_of(dtype);
  weight.tiles = allocate(weight.bytes);
  if (dtype == kFloat32) pack_all(weight, static_cast<const uint32_t*>(values));
  else pack_all(weight, static_cast<const uint16_t*>(values));
  return on_heap(weight);
}

void product(const Weight& weight, const int8_t* levels, int64_t rows, float* out, int threads) {
  const int64_t stride = weight.steps * 64, in = weight.in;
  int8_t* padded = scratch<int8_t>(2, (rows + 16) * stride);
  int32_t* sums = scratch<int32_t>(3, rows);
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(padded + row * stride, levels + row * in, in);
    std::memset(padded + row * stride + in, 0, stride - in);
  }
  sum_rows(padded, stride, in, rows, sums);
  multiply(weight, {padded, stride, sums, rows}, {out, weight.out}, threads);
}

void read_rows(const Weight& weight, const int64_t* numbers, int64_t count, void* rows,
               int threads) {
  parallel_for(threads, static_cast<int>((count + 15) / 16), [&](int item, int) {
    for (int64_t i = 16 * item; i < std::min<int64_t>(count, 16 * item + 16); ++i) {
      if (weight.dtype == kFloat32)
        read_dense(weight, numbers[i], static_cast<uint32_t*>(rows) + i * weight.in);
      else
        read_dense(weight, numbers[i], static_cast<uint16_t*>(rows) + i * weight.in);
    }
  });
}

}  // namespace

Weight* on_heap(const Weight& weight) {
  Weight* found = new (std::nothrow) Weight(weight);
  if (found) return found;
  std::free(weight.tiles);
  throw std::bad_alloc();
}

}  // namespace rl

extern "C" {

// Packs levels [out, in] in [-127, 127] with a factor a row [out]; null without memory.
rl::Weight* rl_weight_new(const int8_t* levels, const float* scale, int64_t out, int64_t in) {
  return rl::made([&] { return rl::new_weight(levels, scale, out, in); });
}

void rl_weight_free(rl::Weight* weight) {
  if (!weight) return;
  std::free(weight->tiles);
  delete weight;
}

int64_t rl_weight_bytes(const rl::Weight* weight) {
  return static_cast<int64_t>(weight->bytes + sizeof(*weight));
}

// A number that differs if a bit of a weight does, or of those behind it; as good as certainly.
uint64_t rl_weight_checksum(const rl::Weight* weight) {
  uint64_t state[4] = {1, 2, 3, 4};
  for (; weight; weight = weight->behind)
    for (std::size_t i = 0; i + 32 <= weight->bytes; i += 32)
      for (int lane = 0; lane < 4; ++lane) {
        uint64_t word;
        std::memcpy(&word, weight->tiles + i + 8 * lane, 8);
        state[lane] = (state[lane] ^ word) * 0x9e3779b97f4a7c15u;
        state[lane] ^= state[lane] >> 29;
      }
  uint64_t all = 0;
  for (uint64_t lane : state) all = (all ^ lane) * 0xbf58476d1ce4e5b9u;
  return all;
}

// The levels [out, in] that were packed.
void rl_weight_read(const rl::Weight* weight, int8_t* levels) {
  for (int64_t column = 0; column < weight->out; ++column)
    rl::unpack_column(*weight, column, levels + column * weight->in);
}

// out [rows, weight.out] = levels [rows, weight.in] times the weight. A Status (guard.h).
int rl_product(const rl::Weight* weight, const int8_t* levels, int64_t rows, float* out,
               int threads) {
  return rl::guarded([&] { rl::product(*weight, levels, rows, out, threads); });
}

// Packs values [out, in] of a Dtype; null without memory.
rl::Weight* rl_dense_new(const void* values, int dtype, int64_t out, int64_t in) {
  return rl::made([&] { return rl::new_dense(values, dtype, out, in); });
}

// Rows [num_rows, in] of a dense weight's own values, by their numbers. A Status.
int rl_dense_rows(const rl::Weight* weight, const int64_t* numbers, int64_t num_rows, void* rows,
                  int threads) {
  return rl::guarded([&] { rl::read_rows(*weight, numbers, num_rows, rows, threads); });
}

// out [rows, weight.out] = x [rows, weight.in] times a dense weight. A Status.
int rl_dense_product(const rl::Weight* weight, const float* x, int64_t rows, float* out,
                     int threads) {
  return rl::guarded([&] {
    rl::multiply(*weight, {nullptr, weight->in, nullptr, rows, x}, {out, weight->out}, threads);
  });
}
}
