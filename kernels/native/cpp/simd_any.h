// Sixteen lanes on any CPU, by the compiler's own vectors of four: it makes them of what the least
// CPU of a kind has, such as SSE2 or NEON. Included by simd.h, which has the scalars.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace rl {

typedef float V4 __attribute__((vector_size(16)));
typedef int32_t W4 __attribute__((vector_size(16)));
typedef uint32_t U4 __attribute__((vector_size(16)));
typedef uint16_t H4 __attribute__((vector_size(8)));
typedef int8_t B4 __attribute__((vector_size(4)));

struct F16 { V4 v[4]; };
struct I16 { W4 v[4]; };
struct M16 { W4 v[4]; };  // all bits of a lane, or none

#define RL_EACH(type, expression)                    \
  type r;                                            \
  for (int i = 0; i < 4; ++i) r.v[i] = (expression); \
  return r

template <class T>
RL_INLINE T load_vector(const void* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
RL_INLINE V4 all4(float x) { return V4{x, x, x, x}; }
RL_INLINE W4 all4_int(int32_t x) { return W4{x, x, x, x}; }
RL_INLINE W4 choose(W4 mask, W4 a, W4 b) { return (mask & a) | (~mask & b); }
RL_INLINE V4 choose(W4 mask, V4 a, V4 b) { return V4(choose(mask, W4(a), W4(b))); }
RL_INLINE V4 greater(V4 a, V4 b) { return choose(W4(a > b), a, b); }

RL_INLINE F16 set1(float x) { RL_EACH(F16, all4(x)); }
RL_INLINE F16 zero() { return set1(0.0f); }
RL_INLINE F16 load(const float* p) { RL_EACH(F16, load_vector<V4>(p + 4 * i)); }
RL_INLINE void store(float* p, F16 a) { std::memcpy(p, a.v, sizeof a.v); }
RL_INLINE F16 add(F16 a, F16 b) { RL_EACH(F16, a.v[i] + b.v[i]); }
RL_INLINE F16 sub(F16 a, F16 b) { RL_EACH(F16, a.v[i] - b.v[i]); }
RL_INLINE F16 mul(F16 a, F16 b) { RL_EACH(F16, a.v[i] * b.v[i]); }
RL_INLINE F16 div(F16 a, F16 b) { RL_EACH(F16, a.v[i] / b.v[i]); }
RL_INLINE F16 max(F16 a, F16 b) { RL_EACH(F16, greater(a.v[i], b.v[i])); }
RL_INLINE F16 min(F16 a, F16 b) { RL_EACH(F16, choose(W4(a.v[i] < b.v[i]), a.v[i], b.v[i])); }
RL_INLINE F16 abs(F16 a) { RL_EACH(F16, V4(W4(a.v[i]) & 0x7fffffff)); }
RL_INLINE M16 less(F16 a, F16 b) { RL_EACH(M16, W4(a.v[i] < b.v[i])); }
RL_INLINE F16 select(M16 m, F16 a, F16 b) { RL_EACH(F16, choose(m.v[i], a.v[i], b.v[i])); }
RL_INLINE M16 first_n(int n) { RL_EACH(M16, W4(W4{0, 1, 2, 3} < n - 4 * i)); }
RL_INLINE F16 sqrt(F16 a) {
  for (V4& x : a.v) x = V4{std::sqrt(x[0]), std::sqrt(x[1]), std::sqrt(x[2]), std::sqrt(x[3])};
  return a;
}
RL_INLINE F16 load_n(const float* p, int n) {
  float own[16] = {};
  for (int i = 0; i < 16 && i < n; ++i) own[i] = p[i];
  return load(own);
}
RL_INLINE void store_n(float* p, F16 a, int n) {
  float own[16];
  store(own, a);
  for (int i = 0; i < 16 && i < n; ++i) p[i] = own[i];
}

// ---- fused multiply-adds ------------------------------------------------------------------------

#if defined(__SSE2__) && !defined(__FMA__)
// By rounding the sum to odd in float64: its last bit is set where something was lost.
inline float fma_lane(float a, float b, float c) {
  const double product = double(a) * double(b), sum = product + double(c), part = sum - product;
  const double lost = (product - (sum - part)) + (double(c) - part);
  uint64_t bits;
  std::memcpy(&bits, &sum, 8);
  const bool is_exact = !(lost > 0.0 || lost < 0.0);  // NaN where a sum is not finite
  if (is_exact || (bits & 1)) return float(sum);
  bits += (lost > 0.0) == (sum > 0.0) ? 1 : -1;
  double odd;
  std::memcpy(&odd, &bits, 8);
  return float(odd);
}

__attribute__((noinline, cold)) inline F16 fma_slowly(F16 a, F16 b, F16 c) {
  for (int i = 0; i < 16; ++i)
    c.v[i / 4][i % 4] = fma_lane(a.v[i / 4][i % 4], b.v[i / 4][i % 4], c.v[i / 4][i % 4]);
  return c;
}

// Without an instruction for it: in float64, where products of floats are exact. A sum rounded there
// and then to float is the sum rounded once unless it lies half-way between two floats, or is too
// small for a normal one. The words of a lane tell, the low one by its last 29 bits, the high one
// by its exponent, twice the word in [2, 0x7020'0000).
RL_INLINE F16 fma(F16 a, F16 b, F16 c) {
  const __m128i rest = _mm_set1_epi32(0x1fffffff), half_way = _mm_set1_epi32(0x10000000);
  const __m128i shift = _mm_set1_epi32(0x7ffffffe), below = _mm_set1_epi32(int32_t(0xf01ffffe));
  F16 r;
  __m128i doubtful = _mm_setzero_si128();
  for (int i = 0; i < 4; ++i) {
    const auto sums = [](__m128 x, __m128 y, __m128 z) __attribute__((always_inline)) {
      return _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(x), _mm_cvtps_pd(y)), _mm_cvtps_pd(z));
    };
    const auto upper = [](V4 x) __attribute__((always_inline)) { return _mm_movehl_ps(x, x); };
    const __m128d first = sums(a.v[i], b.v[i], c.v[i]);
    const __m128d second = sums(upper(a.v[i]), upper(b.v[i]), upper(c.v[i]));
    r.v[i] = _mm_movelh_ps(_mm_cvtpd_ps(first), _mm_cvtpd_ps(second));
    const __m128 one = _mm_castpd_ps(first), two = _mm_castpd_ps(second);
    const __m128i low = _mm_castps_si128(_mm_shuffle_ps(one, two, 0x88));
    const __m128i high = _mm_castps_si128(_mm_shuffle_ps(one, two, 0xdd));
    const __m128i tiny = _mm_cmplt_epi32(_mm_add_epi32(_mm_add_epi32(high, high), shift), below);
    const __m128i between = _mm_cmpeq_epi32(_mm_and_si128(low, rest), half_way);
    doubtful = _mm_or_si128(doubtful, _mm_or_si128(tiny, between));
  }
  if (__builtin_expect(_mm_movemask_epi8(doubtful) != 0, 0)) return fma_slowly(a, b, c);
  return r;
}
#else  // the compiler makes one instruction of four lanes where the CPU has it, as NEON does
RL_INLINE F16 fma(F16 a, F16 b, F16 c) {
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) c.v[i][j] = std::fma(a.v[i][j], b.v[i][j], c.v[i][j]);
  return c;
}
#endif
RL_INLINE F16 fnma(F16 a, F16 b, F16 c) {  // c - a b
  for (V4& x : a.v) x = -x;
  return fma(a, b, c);
}

// ---- integers -----------------------------------------------------------------------------------

RL_INLINE I16 set1_int(int32_t x) { RL_EACH(I16, all4_int(x)); }
RL_INLINE I16 load_int(const int32_t* p) { RL_EACH(I16, load_vector<W4>(p + 4 * i)); }
RL_INLINE void store_int(int32_t* p, I16 a) { std::memcpy(p, a.v, sizeof a.v); }
RL_INLINE I16 add(I16 a, I16 b) { RL_EACH(I16, W4(U4(a.v[i]) + U4(b.v[i]))); }
RL_INLINE I16 sub(I16 a, I16 b) { RL_EACH(I16, W4(U4(a.v[i]) - U4(b.v[i]))); }
RL_INLINE I16 mul(I16 a, I16 b) { RL_EACH(I16, W4(U4(a.v[i]) * U4(b.v[i]))); }
template <int N> RL_INLINE I16 shift_left(I16 a) { RL_EACH(I16, W4(U4(a.v[i]) << N)); }
RL_INLINE I16 as_int(F16 a) { RL_EACH(I16, W4(a.v[i])); }
RL_INLINE F16 as_float(I16 a) { RL_EACH(F16, V4(a.v[i])); }
RL_INLINE F16 to_float(I16 a) { RL_EACH(F16, __builtin_convertvector(a.v[i], V4)); }

// To the nearest, even where there are two; out of range and NaN as x86 converts them.
RL_INLINE W4 round_vector(V4 x) {
  const W4 sign = W4(x) & std::numeric_limits<int32_t>::min();
  const V4 shift = V4(sign | W4(all4(0x1p23f)));  // floats from there on are whole
  const V4 whole = choose(W4(V4(W4(x) ^ sign) < all4(0x1p23f)), (x + shift) - shift, x);
  const W4 fits = W4(x >= all4(-0x1p31f)) & W4(x < all4(0x1p31f));
  const W4 found = __builtin_convertvector(choose(fits, whole, all4(0.0f)), W4);
  return choose(fits, found, all4_int(std::numeric_limits<int32_t>::min()));
}
RL_INLINE I16 round_to_int(F16 a) { RL_EACH(I16, round_vector(a.v[i])); }
RL_INLINE I16 load_i8(const int8_t* p) {
  RL_EACH(I16, __builtin_convertvector(load_vector<B4>(p + 4 * i), W4));
}
RL_INLINE void store_i8(int8_t* p, I16 a) {  // lanes within -128..127
  for (int i = 0; i < 16; ++i) p[i] = int8_t(a.v[i / 4][i % 4]);
}

// total[c] + the dot product of the four unsigned bytes of each word with four signed values, of
// which no product of 16 bits by 16 overflows.
RL_INLINE W4 dot_words(W4 total, W4 bytes, int32_t four) {
#if defined(__SSE2__)
  const __m128i none = _mm_setzero_si128(), all = __m128i(bytes), own = _mm_set1_epi32(four);
  const __m128i values = _mm_srai_epi16(_mm_unpacklo_epi8(own, own), 8);
  const __m128 low = _mm_castsi128_ps(_mm_madd_epi16(_mm_unpacklo_epi8(all, none), values));
  const __m128 high = _mm_castsi128_ps(_mm_madd_epi16(_mm_unpackhi_epi8(all, none), values));
  const __m128i first = _mm_castps_si128(_mm_shuffle_ps(low, high, 0x88));
  const __m128i second = _mm_castps_si128(_mm_shuffle_ps(low, high, 0xdd));
  return W4(_mm_add_epi32(__m128i(total), _mm_add_epi32(first, second)));
#else
  const U4 words = U4(bytes);
  for (int i = 0; i < 4; ++i)
    total += W4((words >> (8 * i)) & 0xff) * int32_t(int8_t(uint32_t(four) >> (8 * i)));
  return total;
#endif
}

// ---- storage types ------------------------------------------------------------------------------

RL_INLINE F16 load_bf16(const uint16_t* p) {
  RL_EACH(F16, V4(__builtin_convertvector(load_vector<H4>(p + 4 * i), U4) << 16));
}
RL_INLINE F16 load_fp16(const uint16_t* p) {
  float own[16];
  for (int i = 0; i < 16; ++i) own[i] = from_fp16(p[i]);
  return load(own);
}
RL_INLINE void store_bf16(uint16_t* p, F16 a) {
  for (int i = 0; i < 16; ++i) p[i] = to_bf16(a.v[i / 4][i % 4]);
}
RL_INLINE void store_fp16(uint16_t* p, F16 a) {
  for (int i = 0; i < 16; ++i) p[i] = to_fp16(a.v[i / 4][i % 4]);
}

// ---- reductions: lane i with i + 8, then + 4, + 2, + 1 ------------------------------------------

RL_INLINE float sum(F16 a) {
  const V4 x = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (x[0] + x[2]) + (x[1] + x[3]);
}
RL_INLINE float max_lane(F16 a) {
  const V4 x = greater(greater(a.v[0], a.v[2]), greater(a.v[1], a.v[3]));
  const float y = x[0] > x[2] ? x[0] : x[2], z = x[1] > x[3] ? x[1] : x[3];
  return y > z ? y : z;
}
#undef RL_EACH

// ---- lanes moved among themselves ---------------------------------------------------------------

// Each lane's partner: lane i gets lane i ^ H. H is 1, 2, 4 or 8.
template <int H>
RL_INLINE F16 swapped(F16 x) {
  if constexpr (H == 4) return {{x.v[1], x.v[0], x.v[3], x.v[2]}};
  if constexpr (H == 8) return {{x.v[2], x.v[3], x.v[0], x.v[1]}};
  for (V4& y : x.v) y = V4{y[0 ^ (H & 3)], y[1 ^ (H & 3)], y[2 ^ (H & 3)], y[3 ^ (H & 3)]};
  return x;
}

// Lanes whose bit H is clear get the sum of both partners, the others lower minus upper.
template <int H>
RL_INLINE F16 butterfly(F16 x) {
  const F16 other = swapped<H>(x);
  for (int i = 0; i < 4; ++i) {
    const W4 lane = W4{0, 1, 2, 3} + 4 * i;
    x.v[i] = choose(W4((lane & H) == H), other.v[i] - x.v[i], x.v[i] + other.v[i]);
  }
  return x;
}

}  // namespace rl
