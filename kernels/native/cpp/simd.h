// Sixteen float lanes that compute the same bits on every instruction set.
//
// A library is compiled once for each set (see build.py); this file chooses the registers by the
// compiler's own macros. The sets agree because every operation is a single IEEE operation on a
// lane, every fused multiply-add is written as one, and every reduction has one fixed order.
// max and min give their second argument where one is NaN, as the x86 instructions do.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define RL_AVX512 1
#elif defined(__AVX2__)
#define RL_AVX2 1
#else
#define RL_PORTABLE 1
#endif

#define RL_INLINE inline __attribute__((always_inline))

namespace rl {

constexpr int kLanes = 16;

RL_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

RL_INLINE float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Scalars of the storage types, for tails and for the portable set.

RL_INLINE float from_bf16(uint16_t x) { return float_of(uint32_t(x) << 16); }

RL_INLINE uint16_t to_bf16(float x) {  // round to nearest even, NaN stays NaN
  uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

RL_INLINE float from_fp16(uint16_t x) {
  uint32_t sign = uint32_t(x & 0x8000) << 16, rest = x & 0x7fff;
  if (rest >= 0x7c00)  // infinity, or NaN made quiet
    return float_of(sign | 0x7f800000u | ((rest & 0x3ff) << 13) | (rest > 0x7c00 ? 0x400000u : 0));
  if (rest < 0x0400) return float_of(sign | bits_of(float(rest) * 0x1p-24f));
  return float_of(sign | ((rest + 0x1c000u) << 13));
}

RL_INLINE uint16_t to_fp16(float x) {  // round to nearest even
  uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return uint16_t(sign | 0x7e00 | ((rest >> 13) & 0x3ff));
  if (rest >= 0x477ff000u) return uint16_t(sign | 0x7c00);  // 65520 and more round to infinity
  if (rest < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded bits at the end
    float shifted = float_of(rest) + 0.5f;
    return uint16_t(sign | (bits_of(shifted) - 0x3f000000u));
  }
  return uint16_t(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1)) >> 13));
}

#if RL_AVX512

struct F16 { __m512 v; };
struct I16 { __m512i v; };
struct M16 { __mmask16 m; };

RL_INLINE F16 zero() { return {_mm512_setzero_ps()}; }
RL_INLINE F16 set1(float x) { return {_mm512_set1_ps(x)}; }
RL_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
RL_INLINE void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
RL_INLINE F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
RL_INLINE F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
RL_INLINE F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
RL_INLINE F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
RL_INLINE F16 sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
RL_INLINE F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
RL_INLINE F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
RL_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }    // a b + c
RL_INLINE F16 fnma(F16 a, F16 b, F16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a b
RL_INLINE F16 abs(F16 a) { return {_mm512_abs_ps(a.v)}; }
RL_INLINE M16 less(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
RL_INLINE F16 select(M16 m, F16 a, F16 b) { return {_mm512_mask_blend_ps(m.m, b.v, a.v)}; }
RL_INLINE M16 first_n(int n) {
  return {__mmask16(n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1)};
}
RL_INLINE F16 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_n(n).m, p)}; }
RL_INLINE void store_n(float* p, F16 a, int n) { _mm512_mask_storeu_ps(p, first_n(n).m, a.v); }

RL_INLINE I16 set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
RL_INLINE I16 load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
RL_INLINE void store_int(int32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }
RL_INLINE I16 add(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
RL_INLINE I16 sub(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
RL_INLINE I16 mul(I16 a, I16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
template <int N> RL_INLINE I16 shift_left(I16 a) { return {_mm512_slli_epi32(a.v, N)}; }
RL_INLINE I16 as_int(F16 a) { return {_mm512_castps_si512(a.v)}; }
RL_INLINE F16 as_float(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
RL_INLINE F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
RL_INLINE I16 round_to_int(F16 a) { return {_mm512_cvtps_epi32(a.v)}; }  // to nearest even
RL_INLINE I16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
RL_INLINE void store_i8(int8_t* p, I16 a) {  // lanes within -128..127
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

RL_INLINE F16 load_bf16(const uint16_t* p) {
  __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
RL_INLINE F16 load_fp16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
RL_INLINE void store_bf16(uint16_t* p, F16 a) {
  __m512i bits = _mm512_castps_si512(a.v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
}
RL_INLINE void store_fp16(uint16_t* p, F16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Both reductions go lane i with i + 8, then + 4, + 2, + 1.
RL_INLINE float sum(F16 a) {
  __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
RL_INLINE float max_lane(F16 a) {
  __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

#elif RL_AVX2

struct F16 { __m256 a, b; };
struct I16 { __m256i a, b; };
struct M16 { __m256 a, b; };

#define RL_BOTH(op) {op(x.a, y.a), op(x.b, y.b)}
RL_INLINE F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
RL_INLINE F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
RL_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
RL_INLINE void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
RL_INLINE F16 add(F16 x, F16 y) { return RL_BOTH(_mm256_add_ps); }
RL_INLINE F16 sub(F16 x, F16 y) { return RL_BOTH(_mm256_sub_ps); }
RL_INLINE F16 mul(F16 x, F16 y) { return RL_BOTH(_mm256_mul_ps); }
RL_INLINE F16 div(F16 x, F16 y) { return RL_BOTH(_mm256_div_ps); }
RL_INLINE F16 sqrt(F16 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
RL_INLINE F16 max(F16 x, F16 y) { return RL_BOTH(_mm256_max_ps); }
RL_INLINE F16 min(F16 x, F16 y) { return RL_BOTH(_mm256_min_ps); }
RL_INLINE F16 fma(F16 x, F16 y, F16 z) {  // x y + z
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
RL_INLINE F16 fnma(F16 x, F16 y, F16 z) {  // z - x y
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
RL_INLINE F16 abs(F16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
RL_INLINE M16 less(F16 x, F16 y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
RL_INLINE F16 select(M16 m, F16 x, F16 y) {
  return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
RL_INLINE M16 first_n(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i a = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
  const __m256i b = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane);
  return {_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)};
}
RL_INLINE F16 load_n(const float* p, int n) {
  if (n >= 16) return load(p);
  M16 m = first_n(n);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.a)),
          _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b))};
}
RL_INLINE void store_n(float* p, F16 x, int n) {
  if (n >= 16) return store(p, x);
  M16 m = first_n(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), x.a);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), x.b);
}

RL_INLINE I16 set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
RL_INLINE I16 load_int(const int32_t* p) {
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
RL_INLINE void store_int(int32_t* p, I16 x) {
  __m256i* q = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(q, x.a);
  _mm256_storeu_si256(q + 1, x.b);
}
RL_INLINE I16 add(I16 x, I16 y) { return RL_BOTH(_mm256_add_epi32); }
RL_INLINE I16 sub(I16 x, I16 y) { return RL_BOTH(_mm256_sub_epi32); }
RL_INLINE I16 mul(I16 x, I16 y) { return RL_BOTH(_mm256_mullo_epi32); }
template <int N> RL_INLINE I16 shift_left(I16 x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
RL_INLINE I16 as_int(F16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
RL_INLINE F16 as_float(I16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
RL_INLINE F16 to_float(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
RL_INLINE I16 round_to_int(F16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
RL_INLINE I16 load_i8(const int8_t* p) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
RL_INLINE void store_i8(int8_t* p, I16 x) {  // lanes within -128..127
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

RL_INLINE __m128i load_half(const uint16_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
RL_INLINE F16 load_bf16(const uint16_t* p) {
  __m256i a = _mm256_cvtepu16_epi32(load_half(p)), b = _mm256_cvtepu16_epi32(load_half(p + 8));
  return as_float({_mm256_slli_epi32(a, 16), _mm256_slli_epi32(b, 16)});
}
#if defined(__F16C__)
RL_INLINE F16 load_fp16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_half(p)), _mm256_cvtph_ps(load_half(p + 8))};
}
RL_INLINE void store_fp16(uint16_t* p, F16 x) {
  __m128i* q = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#else
#error "the AVX2 set is compiled with -mf16c"
#endif
RL_INLINE __m256i rounded_bf16(__m256 x) {  // 32-bit lanes that hold 16-bit values
  __m256i bits = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
}
RL_INLINE void store_bf16(uint16_t* p, F16 x) {
  __m256i words = _mm256_packus_epi32(rounded_bf16(x.a), rounded_bf16(x.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xd8));
}

RL_INLINE float sum(F16 x) {
  __m256 b = _mm256_add_ps(x.a, x.b);
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
RL_INLINE float max_lane(F16 x) {
  __m256 b = _mm256_max_ps(x.a, x.b);
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
#undef RL_BOTH

#endif

#if RL_PORTABLE
}  // namespace rl
#include "simd_any.h"
namespace rl {
#endif

// A storage type by the code that C callers give.
enum Dtype : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };
constexpr int bytes_of(int dtype) { return dtype == kFloat32 ? 4 : 2; }

RL_INLINE F16 load_as(int dtype, const void* p, ptrdiff_t index) {
  if (dtype == kBFloat16) return load_bf16(static_cast<const uint16_t*>(p) + index);
  if (dtype == kFloat16) return load_fp16(static_cast<const uint16_t*>(p) + index);
  return load(static_cast<const float*>(p) + index);
}
RL_INLINE void store_as(int dtype, void* p, ptrdiff_t index, F16 a) {
  if (dtype == kBFloat16) return store_bf16(static_cast<uint16_t*>(p) + index, a);
  if (dtype == kFloat16) return store_fp16(static_cast<uint16_t*>(p) + index, a);
  store(static_cast<float*>(p) + index, a);
}

// e^x within 1 ulp, 0 below -87.3 and 2^127.5 from 88.37 on; NaN stays NaN.
RL_INLINE F16 exp(F16 x) {
  const F16 low = set1(-87.33654f), magic = set1(0x1.8p23f);
  const M16 tiny = less(x, low);
  const F16 y = max(low, min(set1(88.3762f), x));
  const F16 shifted = fma(y, set1(0x1.715476p0f), magic);  // its last bits are round(y / ln 2)
  const F16 n = sub(shifted, magic);
  F16 r = fnma(n, set1(0x1.62e4p-1f), y);
  r = fnma(n, set1(1.4286068e-06f), r);
  F16 p = set1(0x1.6a234ep-10f);
  p = fma(p, r, set1(0x1.123a6cp-7f));
  p = fma(p, r, set1(0x1.5558f4p-5f));
  p = fma(p, r, set1(0x1.555490p-3f));
  p = fma(p, r, set1(0x1.fffffcp-2f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  const I16 power = shift_left<23>(sub(as_int(shifted), set1_int(0x4b400000 - 127)));
  return select(tiny, zero(), mul(p, as_float(power)));
}

// tanh x within 2 ulp: a polynomial up to 0.625, by exp above; NaN stays NaN.
RL_INLINE F16 tanh(F16 x) {
  const F16 size = abs(x), square = mul(x, x);
  F16 p = set1(-0.005717037f);
  p = fma(p, square, set1(0.020650579f));
  p = fma(p, square, set1(-0.053743497f));
  p = fma(p, square, set1(0.13331491f));
  p = fma(p, square, set1(-0.33333284f));
  const F16 near = fma(mul(p, square), x, x);
  const F16 e = exp(add(size, size));
  const F16 far = sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
  const F16 signed_far = select(less(x, zero()), sub(zero(), far), far);
  return select(less(size, set1(0.625f)), near, signed_far);
}

}  // namespace rl
