// Weights of GGUF blocks, laid out anew for products: the same bits, sixteen rows side by side.
#include <cstdlib>
#include <cstring>

#include "grouped.h"
#include "guard.h"
#include "ops.h"
#include "team.h"
#include "weights.h"

namespace rl {
namespace {

struct Stored {
  const uint8_t* data;   // [out, in / block, block_bytes]
  const int64_t* order;  // of rows; null: as they are stored
  int64_t row_bytes;
};

const uint8_t* block_of(const Stored& stored, const Format& format, int64_t row, int64_t block) {
  const int64_t from = stored.order ? stored.order[row] : row;
  return stored.data + from * stored.row_bytes + block * format.block_bytes;
}

uint32_t word_of(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, 4);
  return word;
}

// ---- the 32 weights of one group of a stored block, unsigned -----------------------------------

void nibbles(const uint8_t* packed, uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = packed[i] & 15;
    out[i + 16] = packed[i] >> 4;
  }
}

void add_fifth(uint32_t bits, uint8_t* out) {
  for (int i = 0; i < 32; ++i) out[i] = static_cast<uint8_t>(out[i] | (bits >> i & 1) << 4);
}

void half_bytes(const uint8_t* packed, int shift, uint8_t* out) {
  for (int i = 0; i < 32; ++i) out[i] = packed[i] >> shift & 15;
}

void add_bits(const uint8_t* packed, int shift, int mask, uint8_t* out) {
  for (int i = 0; i < 32; ++i)
    out[i] = static_cast<uint8_t>(out[i] | (packed[i] >> shift & mask) << 4);
}

void read_group(int kind, const uint8_t* block, int group, uint8_t* out) {
  switch (kind) {
    case kQ4_0: return nibbles(block + 2, out);
    case kQ4_1: return nibbles(block + 4, out);
    case kQ5_0: nibbles(block + 6, out); return add_fifth(word_of(block + 2), out);
    case kQ5_1: nibbles(block + 8, out); return add_fifth(word_of(block + 4), out);
    case kQ8_0:
      for (int i = 0; i < 32; ++i) out[i] = block[2 + i] ^ 0x80;
      return;
    case kQ4_K: return half_bytes(block + 16 + 32 * (group / 2), group % 2 * 4, out);
    case kQ5_K:
      half_bytes(block + 48 + 32 * (group / 2), group % 2 * 4, out);
      return add_bits(block + 16, group, 1, out);
    default:  // Q6_K
      half_bytes(block + 64 * (group / 4) + 32 * (group % 2), group % 4 / 2 * 4, out);
      return add_bits(block + 128 + 32 * (group / 4), group % 4 * 2, 3, out);
  }
}

// ---- planes -----------------------------------------------------------------------------------

// `tile` holds the eighths of a group: of 16 columns the weights 4 r .. 4 r + 3.
void pack_low(const Format& format, const uint8_t (*tile)[64], uint8_t* low) {
  if (format.bits == 8) {
    std::memcpy(low, tile, 512);
    return;
  }
  for (int p = 0; p < 4; ++p)
    for (int i = 0; i < 64; ++i)
      low[64 * p + i] =
          static_cast<uint8_t>((tile[2 * p][i] & 15) | (tile[2 * p + 1][i] & 15) << 4);
}

void pack_high(const Format& format, const uint8_t (*tile)[64], uint8_t* high) {
  if (format.bits == 5)
    for (int r = 0; r < 8; ++r)
      for (int i = 0; i < 64; ++i) high[i] = static_cast<uint8_t>(high[i] | tile[r][i] >> 4 << r);
  if (format.bits == 6)
    for (int r = 0; r < 8; ++r)
      for (int i = 0; i < 64; ++i) {
        uint8_t& byte = high[r / 4 * 64 + i];
        byte = static_cast<uint8_t>(byte | tile[r][i] >> 4 << 2 * (r % 4));
      }
}

// The scales of one column's stored block, among those of 16.
void pack_params(int kind, const uint8_t* block, int column, uint8_t* params) {
  const bool ends = kind == kQ6_K;
  std::memcpy(params + 2 * column, block + (ends ? 208 : 0), 2);
  if (kind == kQ4_1 || kind == kQ5_1 || kind == kQ4_K || kind == kQ5_K)
    std::memcpy(params + 32 + 2 * column, block + 2, 2);
  if (kind == kQ4_K || kind == kQ5_K)
    for (int i = 0; i < 12; ++i) params[64 + 16 * i + column] = block[4 + i];
  if (kind == kQ6_K)
    for (int i = 0; i < 16; ++i) params[32 + 16 * i + column] = block[192 + i];
}

void pack_block(const Weight& weight, const Stored& stored, const Format& format, int64_t index) {
  const int64_t columns = weight.out - 16 * index < 16 ? weight.out - 16 * index : 16;
  const int64_t blocks = weight.in / format.block, in_block = format.block / kGroup;
  const int64_t groups = weight.in / kGroup;
  uint8_t* low = weight.tiles + index * groups * format.low_bytes;
  uint8_t* high = const_cast<uint8_t*>(weight.high) + index * groups * format.high_bytes;
  uint8_t* params = const_cast<uint8_t*>(weight.params) + index * blocks * format.param_bytes;
  for (int64_t block = 0; block < blocks; ++block, params += format.param_bytes) {
    std::memset(params, 0, format.param_bytes);
    for (int64_t column = 0; column < columns; ++column)
      pack_params(weight.kind, block_of(stored, format, 16 * index + column, block),
                  static_cast<int>(column), params);
    for (int64_t group = 0; group < in_block; ++group) {
      uint8_t tile[8][64] = {}, own[32];
      for (int64_t column = 0; column < columns; ++column) {
        const uint8_t* from = block_of(stored, format, 16 * index + column, block);
        read_group(weight.kind, from, static_cast<int>(group), own);
        for (int r = 0; r < 8; ++r) std::memcpy(tile[r] + 4 * column, own + 4 * r, 4);
      }
      std::memset(high, 0, format.high_bytes);
      pack_low(format, tile, low);
      pack_high(format, tile, high);
      low += format.low_bytes;
      high += format.high_bytes;
    }
  }
}

// The 32 weights of one column's group as `read_group` has them, from the planes.
void unpack_group(const Format& format, const uint8_t* low, const uint8_t* high, int64_t column,
                  uint8_t* out) {
  for (int i = 0; i < 32; ++i) {
    const int64_t r = i / 4, at = 4 * column + i % 4;
    if (format.bits == 8) {
      out[i] = low[64 * r + at];
      continue;
    }
    int bits = low[r / 2 * 64 + at] >> r % 2 * 4 & 15;
    if (format.bits == 5) bits |= (high[at] >> r & 1) << 4;
    if (format.bits == 6) bits |= (high[r / 4 * 64 + at] >> r % 4 * 2 & 3) << 4;
    out[i] = static_cast<uint8_t>(bits);
  }
}

void read_row(const Weight& weight, int64_t row, float* out) {
  const Format format = format_of(weight.kind);
  const int64_t groups = weight.in / kGroup, block = row / 16, column = row % 16;
  Params params;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t in_unit = group % kUnit, at = block * groups + group;
    if (!in_unit)
      read_params(weight, block, group / kUnit, groups - group < kUnit ? groups - group : kUnit,
                  params);
    uint8_t own[32];
    unpack_group(format, weight.tiles + at * format.low_bytes, weight.high + at * format.high_bytes,
                 column, own);
    for (int i = 0; i < 32; ++i) {
      const int64_t part = in_unit * format.halves + i / 16 * (format.halves - 1);
      const float value = params.scale[part][column] * static_cast<float>(own[i] - format.centre);
      out[group * kGroup + i] = format.centre ? value : value + params.least[part][column];
    }
  }
}

Weight* new_grouped(int kind, const uint8_t* blocks, const int64_t* order, int64_t out,
                    int64_t in) {
  const Format format = format_of(kind);
  if (!format.bits || in % format.block) return nullptr;
  Weight weight{kind, 0, out, in, (in + 63) / 64, (out + 15) / 16, nullptr, nullptr, 0};
  const int64_t groups = weight.blocks * (in / kGroup);
  const int64_t params = weight.blocks * (in / format.block) * format.param_bytes;
  weight.bytes = groups * (format.low_bytes + format.high_bytes) + params;
  weight.tiles = allocate(weight.bytes);
  weight.high = weight.tiles + groups * format.low_bytes;
  weight.params = weight.high + groups * format.high_bytes;
  const Stored stored{blocks, order, in / format.block * format.block_bytes};
  for (int64_t index = 0; index < weight.blocks; ++index)
    pack_block(weight, stored, format, index);
  return on_heap(weight);
}

void product(const Weight& weight, const float* x, int64_t rows, float* out, int threads) {
  const int64_t in = weight.in, stride = weight.steps * 64 + 64, groups = in / kGroup;
  const int64_t values = (rows + 16) * stride, factors = (rows + 15) / 16 * 64;
  uint8_t* memory = scratch<uint8_t>(2, values + 2 * factors + rows * groups * sizeof(Group));
  const Levels levels{reinterpret_cast<int8_t*>(memory), stride,
                      reinterpret_cast<float*>(memory + values),
                      reinterpret_cast<int32_t*>(memory + values + factors), nullptr,
                      reinterpret_cast<Group*>(memory + values + 2 * factors), groups};
  quantize_rows(x, in, rows, levels);
  const int64_t columns = columns_of_all(weight);
  multiply(weight, {levels.values, stride, levels.sums, rows, nullptr, levels.groups, groups},
           {out, columns}, threads);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < columns; ++i) out[row * columns + i] *= levels.scale[row];
}

}  // namespace
}  // namespace rl

extern "C" {

// Lays out GGUF blocks [out, in / block, block_bytes] of a kind; order[i] is the stored row of
// column i, null: i. Null without memory, and where the kind or `in` is none that is known.
rl::Weight* rl_grouped_new(int kind, const uint8_t* blocks, const int64_t* order, int64_t out,
                           int64_t in) {
  return rl::made([&] { return rl::new_grouped(kind, blocks, order, out, in); });
}

// Rows of a weight in float32, by their numbers [count], to out [count, in].
void rl_grouped_rows(const rl::Weight* weight, const int64_t* numbers, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) rl::read_row(*weight, numbers[i], out + i * weight->in);
}

// Lets a product of `weight` have the columns of `behind` behind its own. Both stay the caller's.
void rl_weight_append(rl::Weight* weight, const rl::Weight* behind) { weight->behind = behind; }

// out [rows, columns] = x [rows, in], rounded to 8 bits by groups, times the weight and those
// behind it. A Status (guard.h).
int rl_grouped_product(const rl::Weight* weight, const float* x, int64_t rows, float* out,
                       int threads) {
  return rl::guarded([&] { rl::product(*weight, x, rows, out, threads); });
}
}
