// Grouped products on every instruction set. Weights are unpacked in registers for a few rows at a
// time; a row's operations are the same whichever rows it is beside.
#include "grouped.h"

#include <algorithm>

#include "bytes.h"

namespace rl {
namespace {

// Rows that meet the same weights in registers: as many as there are registers for. One on any CPU,
// where unrolled code would only take long to compile.
#if RL_AVX512
constexpr int kRows = 8;
#elif RL_AVX2
constexpr int kRows = 4;
#else
constexpr int kRows = 1;
#endif

// ---- scales -----------------------------------------------------------------------------------

RL_INLINE F16 bytes_to_float(const uint8_t* bytes) {  // all below 128
  int8_t own[16];
  std::memcpy(own, bytes, 16);
  return to_float(load_i8(own));
}

RL_INLINE F16 halves_to_float(const uint8_t* bytes) {
  uint16_t own[16];
  std::memcpy(own, bytes, 32);
  return load_fp16(own);
}

// 6-bit scales and least weights of 8 groups in 12 bytes a column, as Q4_K and Q5_K pack them.
void read_super(const uint8_t* at, Params& out) {
  const F16 step = halves_to_float(at), down = sub(zero(), halves_to_float(at + 32));
  const uint8_t* packed = at + 64;
  uint8_t scales[8][16], least[8][16];
  for (int j = 0; j < 4; ++j)
    for (int c = 0; c < 16; ++c) {
      const uint8_t a = packed[16 * j + c], b = packed[16 * (j + 4) + c], top = packed[16 * (j + 8) + c];
      scales[j][c] = a & 63;
      least[j][c] = b & 63;
      scales[j + 4][c] = static_cast<uint8_t>((top & 15) | (a >> 6 << 4));
      least[j + 4][c] = static_cast<uint8_t>((top >> 4) | (b >> 6 << 4));
    }
  for (int j = 0; j < 8; ++j) {
    store(out.scale[j], mul(step, bytes_to_float(scales[j])));
    store(out.least[j], mul(down, bytes_to_float(least[j])));
  }
}

void read_halves(const uint8_t* at, Params& out) {
  const F16 step = halves_to_float(at);
  for (int j = 0; j < 16; ++j) {
    int8_t own[16];
    std::memcpy(own, at + 32 + 16 * j, 16);
    store(out.scale[j], mul(step, to_float(load_i8(own))));
  }
}

void read_plain(const uint8_t* at, const Format& format, int64_t count, Params& out) {
  for (int64_t j = 0; j < count; ++j, at += format.param_bytes) {
    store(out.scale[j], halves_to_float(at));
    if (!format.centre) store(out.least[j], halves_to_float(at + 32));
  }
}

// ---- weights ----------------------------------------------------------------------------------

template <int Bits>
constexpr int64_t kLowBytes = Bits == 8 ? 512 : 256;
template <int Bits>
constexpr int64_t kHighBytes = Bits == 5 ? 64 : Bits == 6 ? 128 : 0;

// Bit R of every byte of `high` as bit 4.
template <int R>
RL_INLINE B64 fifth_bits(B64 high) {
  const B64 mask = set1_bytes(16);
  if constexpr (R < 4) return bit_and(words_left<4 - R>(high), mask);
  if constexpr (R > 4) return bit_and(words_right<R - 4>(high), mask);
  return bit_and(high, mask);
}

// Bits 2 R and 2 R + 1 of every byte as bits 4 and 5.
template <int R>
RL_INLINE B64 sixth_bits(B64 high) {
  const B64 mask = set1_bytes(48);
  if constexpr (R < 2) return bit_and(words_left<4 - 2 * R>(high), mask);
  if constexpr (R > 2) return bit_and(words_right<2 * R - 4>(high), mask);
  return bit_and(high, mask);
}

// Where a group's weights are in both planes.
struct Place {
  const uint8_t* low;
  const uint8_t* high;
};

// Weights 4 R .. 4 R + 3 of a group, of all columns, from the low plane's byte of them.
template <int Bits, int R>
RL_INLINE B64 with_high(B64 low, const uint8_t* high) {
  if constexpr (Bits == 5) return bit_or(low, fifth_bits<R>(load_bytes(high)));
  if constexpr (Bits == 6) return bit_or(low, sixth_bits<R % 4>(load_bytes(high + R / 4 * 64)));
  return low;
}

// use(r, weights) for the eighths 2 P and 2 P + 1 of a group.
template <int Bits, int P, class Use>
RL_INLINE void two_eighths(const Place& at, const Use& use) {
  if constexpr (Bits == 8) {
    use(2 * P, load_bytes(at.low + 128 * P));
    use(2 * P + 1, load_bytes(at.low + 128 * P + 64));
  } else {
    const B64 both = load_bytes(at.low + 64 * P), mask = set1_bytes(15);
    use(2 * P, with_high<Bits, 2 * P>(bit_and(both, mask), at.high));
    use(2 * P + 1, with_high<Bits, 2 * P + 1>(bit_and(words_right<4>(both), mask), at.high));
  }
}

// ---- products ---------------------------------------------------------------------------------

// What R rows are multiplied with, and what they have so far.
template <int R>
struct Running {
  const int8_t* values[R];
  const Group* groups[R];
  F16 total[R];
};

// Sums begin with what a weight's centre takes off: -centre * the sum of the values. Half is -1
// for a whole group.
template <int Centre, int Half, int R>
RL_INLINE void begin(const Running<R>& rows, int64_t group, I16 (&sums)[R]) {
  constexpr int kShift = Centre == 16 ? 1 : Centre == 32 ? 2 : Centre == 128 ? 4 : 0;
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    const Group& of = rows.groups[i][group];
    const I16 eight = set1_int(Half < 0 ? of.whole : of.halves[Half < 0 ? 0 : Half]);
    sums[i] = Centre ? shift_left<kShift>(eight) : set1_int(0);
  }
}

template <int Centre, int R>
RL_INLINE void add_scaled(Running<R>& rows, const I16 (&sums)[R], int64_t group,
                          const float* scale, const float* least) {
  const F16 step = load(scale);
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    const Group& of = rows.groups[i][group];
    rows.total[i] = fma(mul(to_float(sums[i]), step), set1(of.scale), rows.total[i]);
    if (!Centre) rows.total[i] = fma(load(least), set1(of.sum), rows.total[i]);
  }
}

template <int Bits, int Centre, int R>
RL_INLINE void add_group(Running<R>& rows, int64_t group, const Place& at, const float* scale,
                         const float* least) {
  I16 sums[R];
  const auto use = [&](int r, B64 weights) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
      sums[i] = dot<Bits == 8>(sums[i], weights, rows.values[i] + kGroup * group + 4 * r);
  };
  begin<Centre, Bits == 6 ? 0 : -1>(rows, group, sums);
  two_eighths<Bits, 0>(at, use);
  two_eighths<Bits, 1>(at, use);
  if constexpr (Bits == 6) {
    add_scaled<Centre>(rows, sums, group, scale, least);
    scale += 16;
    begin<Centre, 1>(rows, group, sums);
  }
  two_eighths<Bits, 2>(at, use);
  two_eighths<Bits, 3>(at, use);
  add_scaled<Centre>(rows, sums, group, scale, least);
}

// The next unit's part of the planes; what is beyond the last is not there, and not asked for.
template <int Bits>
RL_INLINE void fetch_ahead(const Place& at) {
  for (int64_t line = 0; line < kLowBytes<Bits>; line += 64)
    __builtin_prefetch(at.low + kUnit * kLowBytes<Bits> + line);
  for (int64_t line = 0; line < kHighBytes<Bits>; line += 64)
    __builtin_prefetch(at.high + kUnit * kHighBytes<Bits> + line);
}

template <int R>
RL_INLINE Running<R> begin_rows(const Rows& rows, int64_t row) {
  Running<R> running;
  for (int i = 0; i < R; ++i) {
    running.values[i] = rows.values + (row + i) * rows.stride;
    running.groups[i] = rows.groups + (row + i) * rows.group_stride;
    running.total[i] = zero();
  }
  return running;
}

// R rows times a block of 16 columns.
template <int Bits, int Centre, int R>
void multiply_rows(const Weight& weight, int64_t block, const Rows& rows, int64_t row,
                   const Floats& out) {
  constexpr int kHalves = Bits == 6 ? 2 : 1;
  const int64_t groups = weight.in / kGroup;
  Place at{weight.tiles + block * groups * kLowBytes<Bits>,
           weight.high + block * groups * kHighBytes<Bits>};
  Running<R> running = begin_rows<R>(rows, row);
  Params params;
  for (int64_t first = 0; first < groups; first += kUnit) {
    const int64_t count = std::min(kUnit, groups - first);
    read_params(weight, block, first / kUnit, count, params);
    for (int64_t i = 0; i < count; ++i) {
      fetch_ahead<Bits>(at);
      add_group<Bits, Centre>(running, first + i, at, params.scale[kHalves * i],
                              params.least[kHalves * i]);
      at.low += kLowBytes<Bits>;
      at.high += kHighBytes<Bits>;
    }
  }
  const int columns = static_cast<int>(std::min<int64_t>(16, weight.out - 16 * block));
  for (int i = 0; i < R; ++i)
    store_n(out.data + (row + i) * out.stride + 16 * block, running.total[i], columns);
}

// Rows from `row` on, R at a time and what is left by fewer.
template <int Bits, int Centre, int R>
void multiply_block(const Weight& weight, int64_t block, const Rows& rows, int64_t row,
                    const Floats& out) {
  for (; row + R <= rows.count; row += R) multiply_rows<Bits, Centre, R>(weight, block, rows, row, out);
  if constexpr (R > 1) multiply_block<Bits, Centre, R / 2>(weight, block, rows, row, out);
}

template <int Bits, int Centre>
void multiply_as(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
                 int64_t last) {
  for (int64_t block = first; block < last; ++block)
    multiply_block<Bits, Centre, kRows>(weight, block, rows, 0, out);
}

}  // namespace

Format format_of(int kind) {
  switch (kind) {
    case kQ4_0: return {4, 8, 1, 32, 18, 256, 0, 32};
    case kQ4_1: return {4, 0, 1, 32, 20, 256, 0, 64};
    case kQ5_0: return {5, 16, 1, 32, 22, 256, 64, 32};
    case kQ5_1: return {5, 0, 1, 32, 24, 256, 64, 64};
    case kQ8_0: return {8, 128, 1, 32, 34, 512, 0, 32};
    case kQ4_K: return {4, 0, 1, 256, 144, 256, 0, 256};
    case kQ5_K: return {5, 0, 1, 256, 176, 256, 64, 256};
    case kQ6_K: return {6, 32, 2, 256, 210, 256, 128, 288};
    default: return {};
  }
}

void read_params(const Weight& weight, int64_t block, int64_t unit, int64_t count, Params& out) {
  const Format format = format_of(weight.kind);
  const int64_t a_block = weight.in / format.block * format.param_bytes;
  const uint8_t* at = weight.params + block * a_block + unit * (256 / format.block) * format.param_bytes;
  if (format.block == kGroup) return read_plain(at, format, count, out);
  if (weight.kind == kQ6_K) return read_halves(at, out);
  read_super(at, out);
}

void multiply_grouped(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
                      int64_t last) {
  const Format format = format_of(weight.kind);
  const bool has_least = format.centre == 0;
  switch (format.bits) {
    case 4: return (has_least ? multiply_as<4, 0> : multiply_as<4, 8>)(weight, rows, out, first, last);
    case 5: return (has_least ? multiply_as<5, 0> : multiply_as<5, 16>)(weight, rows, out, first, last);
    case 6: return multiply_as<6, 32>(weight, rows, out, first, last);
    default: return multiply_as<8, 128>(weight, rows, out, first, last);
  }
}

}  // namespace rl
