// Keys and values of one block and one kv head, widened to float: keys transposed, values by rows.
#pragma once

#include <algorithm>

#include "attention_plan.h"
#include "simd.h"

namespace rl {

// One layer's pool as one head reads it.
struct HeadKV {
  HeadKV(const rl_layer_kv& layer, int num_kv_heads, int head, int dim)
      : layer(layer), heads(num_kv_heads), head(head), dim(dim) {}

  int64_t row(int32_t slot) const { return int64_t(slot) * heads + head; }
  const char* at(const void* plane, int32_t slot) const {
    return static_cast<const char*>(plane) + row(slot) * dim * bytes_of(layer.dtype);
  }

  const rl_layer_kv& layer;
  int heads, head, dim;
};

// dim floats of a stored row; `dim` is a multiple of 8.
RL_INLINE void widen_row(int dtype, const void* from, int dim, float* to) {
  int i = 0;
  for (; i + 16 <= dim; i += 16) store(to + i, load_as(dtype, from, i));
  if (i == dim) return;
  char last[64] = {};
  std::memcpy(last, static_cast<const char*>(from) + i * bytes_of(dtype), 8 * bytes_of(dtype));
  store_n(to + i, load_as(dtype, last, 0), 8);
}

RL_INLINE void dequantize_row(const int8_t* from, float scale, int dim, float* to) {
  int i = 0;
  for (; i + 16 <= dim; i += 16) store(to + i, mul(to_float(load_i8(from + i)), set1(scale)));
  for (; i < dim; ++i) to[i] = float(from[i]) * scale;
}

// A row of either kind of slot; zeros where there is none.
inline void read_row(const HeadKV& kv, bool is_key, int32_t slot, float* to) {
  const rl_layer_kv& layer = kv.layer;
  if (slot >= 0) {
    widen_row(layer.dtype, kv.at(is_key ? layer.k : layer.v, slot), kv.dim, to);
  } else if (slot == kNoSlot) {
    std::fill(to, to + kv.dim, 0.0f);
  } else {
    const int64_t row = kv.row(~slot);
    dequantize_row((is_key ? layer.k_int8 : layer.v_int8) + row * kv.dim,
                   (is_key ? layer.k_scale : layer.v_scale)[row], kv.dim, to);
  }
}

// Transposes 16 keys' 16 bytes at `byte` of their rows: 4 floats or 8 halves of each, so rows
// [0, 4) or [0, 8) of `to`, which are kBlock apart. Pairs of halves move as one 32-bit lane.
#if RL_PORTABLE
template <int DTYPE>
RL_INLINE void transpose_16_bytes(const char* const* rows, ptrdiff_t byte, float* to) {
  constexpr int kEach = 16 / bytes_of(DTYPE);
  for (int i = 0; i < kEach; ++i)
    for (int key = 0; key < 16; ++key) {
      const char* from = rows[key] + byte + i * bytes_of(DTYPE);
      uint32_t bits = 0;
      std::memcpy(&bits, from, bytes_of(DTYPE));
      to[i * kBlock + key] = DTYPE == kFloat32    ? float_of(bits)
                             : DTYPE == kBFloat16 ? from_bf16(uint16_t(bits))
                                                  : from_fp16(uint16_t(bits));
    }
}
#else
#if RL_AVX512
using Lanes = __m512i;
constexpr int kKeys = 16;
RL_INLINE Lanes gather_quarters(const char* const* rows, ptrdiff_t byte, int k) {
  const auto at = [&](int key) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[key] + byte));
  };
  Lanes x = _mm512_castsi128_si512(at(k));
  x = _mm512_inserti32x4(x, at(k + 4), 1);
  x = _mm512_inserti32x4(x, at(k + 8), 2);
  return _mm512_inserti32x4(x, at(k + 12), 3);
}
#define RL_OP(name) _mm512_##name
RL_INLINE void put(float* to, Lanes bits) { _mm512_storeu_si512(to, bits); }
RL_INLINE Lanes low_half(Lanes x) { return _mm512_slli_epi32(x, 16); }
RL_INLINE Lanes high_half(Lanes x) { return _mm512_and_si512(x, _mm512_set1_epi32(-65536)); }
RL_INLINE Lanes widen_low(Lanes x) {
  return _mm512_castps_si512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)));
}
RL_INLINE Lanes widen_high(Lanes x) { return widen_low(_mm512_srli_epi32(x, 16)); }
#else
using Lanes = __m256i;
constexpr int kKeys = 8;
RL_INLINE Lanes gather_quarters(const char* const* rows, ptrdiff_t byte, int k) {
  const auto at = [&](int key) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[key] + byte));
  };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(at(k)), at(k + 4), 1);
}
#define RL_OP(name) _mm256_##name
RL_INLINE void put(float* to, Lanes bits) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
}
RL_INLINE Lanes low_half(Lanes x) { return _mm256_slli_epi32(x, 16); }
RL_INLINE Lanes high_half(Lanes x) { return _mm256_and_si256(x, _mm256_set1_epi32(-65536)); }
RL_INLINE Lanes widen_low(Lanes x) {
  const Lanes words = _mm256_blend_epi16(x, _mm256_setzero_si256(), 0xaa);
  const Lanes packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0xd8);
  return _mm256_castps_si256(_mm256_cvtph_ps(_mm256_castsi256_si128(packed)));
}
RL_INLINE Lanes widen_high(Lanes x) { return widen_low(_mm256_srli_epi32(x, 16)); }
#endif

// A 32-bit lane of every key: one float, or two halves one after the other.
template <int DTYPE>
RL_INLINE void put_lane(float* to, int lane, Lanes bits) {
  if (DTYPE == kFloat32) return put(to + lane * kBlock, bits);
  float* even = to + 2 * lane * kBlock;
  put(even, DTYPE == kBFloat16 ? low_half(bits) : widen_low(bits));
  put(even + kBlock, DTYPE == kBFloat16 ? high_half(bits) : widen_high(bits));
}

template <int DTYPE>
RL_INLINE void transpose_16_bytes(const char* const* all_rows, ptrdiff_t byte, float* all_to) {
  for (int part = 0; part < 16 / kKeys; ++part) {
    const char* const* rows = all_rows + part * kKeys;
    float* to = all_to + part * kKeys;
    const Lanes a = gather_quarters(rows, byte, 0), b = gather_quarters(rows, byte, 1);
    const Lanes c = gather_quarters(rows, byte, 2), d = gather_quarters(rows, byte, 3);
    const Lanes ab = RL_OP(unpacklo_epi32)(a, b), cd = RL_OP(unpacklo_epi32)(c, d);
    put_lane<DTYPE>(to, 0, RL_OP(unpacklo_epi64)(ab, cd));
    put_lane<DTYPE>(to, 1, RL_OP(unpackhi_epi64)(ab, cd));
    const Lanes ef = RL_OP(unpackhi_epi32)(a, b), gh = RL_OP(unpackhi_epi32)(c, d);
    put_lane<DTYPE>(to, 2, RL_OP(unpacklo_epi64)(ef, gh));
    put_lane<DTYPE>(to, 3, RL_OP(unpackhi_epi64)(ef, gh));
  }
}
#undef RL_OP
#endif

// Groups [first, last) of 16 rows each into to[dim][kBlock], whole lines of `to` at a time.
template <int DTYPE>
void transpose_rows(const char* const* rows, int first, int last, int dim, float* to) {
  const int bytes = dim * bytes_of(DTYPE);
  constexpr int kStep = 16 / bytes_of(DTYPE);
  for (int byte = 0; byte < bytes; byte += 16, to += kStep * kBlock)
    for (int group = first; group < last; ++group)
      transpose_16_bytes<DTYPE>(rows + 16 * group, byte, to + 16 * group);
}

// Keys [first, last) of a block into to[dim][kBlock], in whole groups of 16; a key outside is
// zero. `staging` is [kBlock][dim], `zeros` dim floats of 0.
inline void load_keys(const HeadKV& kv, const int32_t* slots, int first, int last, bool quantized,
                      float* staging, const float* zeros, float* to) {
  const int from = first / 16, until = (last + 15) / 16;
  const char* rows[kBlock];
  for (int key = 16 * from; key < 16 * until; ++key) {
    rows[key] = reinterpret_cast<const char*>(zeros);
    if (key < first || key >= last) continue;
    if (!quantized) {
      rows[key] = kv.at(kv.layer.k, slots[key]);
    } else {
      read_row(kv, true, slots[key], staging + key * kv.dim);
      rows[key] = reinterpret_cast<const char*>(staging + key * kv.dim);
    }
  }
  const int dtype = quantized ? int(kFloat32) : kv.layer.dtype;
  if (dtype == kFloat32) transpose_rows<kFloat32>(rows, from, until, kv.dim, to);
  else if (dtype == kBFloat16) transpose_rows<kBFloat16>(rows, from, until, kv.dim, to);
  else transpose_rows<kFloat16>(rows, from, until, kv.dim, to);
}

template <int DTYPE>
RL_INLINE void widen_rows(const HeadKV& kv, const int32_t* slots, int first, int last, int width,
                          float* to) {
  for (int key = first; key < last; ++key)
    widen_row(DTYPE, kv.at(kv.layer.v, slots[key]), kv.dim, to + key * width);
}

// Values [first, last) of a block into to[kBlock][width]; columns from dim on are not touched.
inline void load_values(const HeadKV& kv, const int32_t* slots, int first, int last,
                        bool quantized, int width, float* to) {
  if (quantized) {
    for (int key = first; key < last; ++key) read_row(kv, false, slots[key], to + key * width);
    return;
  }
  if (kv.layer.dtype == kFloat32) widen_rows<kFloat32>(kv, slots, first, last, width, to);
  else if (kv.layer.dtype == kBFloat16) widen_rows<kBFloat16>(kv, slots, first, last, width, to);
  else widen_rows<kFloat16>(kv, slots, first, last, width, to);
}

}  // namespace rl
