// Sixty-four bytes, four for each of sixteen columns, and their dot product with four values.
#pragma once

#include "simd.h"

namespace rl {

#if RL_AVX512

struct B64 { __m512i v; };

RL_INLINE B64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
RL_INLINE void store_bytes(uint8_t* p, B64 x) { _mm512_storeu_si512(p, x.v); }
RL_INLINE B64 set1_bytes(int x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
RL_INLINE B64 bit_and(B64 x, B64 y) { return {_mm512_and_si512(x.v, y.v)}; }
RL_INLINE B64 bit_or(B64 x, B64 y) { return {_mm512_or_si512(x.v, y.v)}; }
// Bits of 16-bit words: mask away what comes from the neighbour.
template <int N> RL_INLINE B64 words_right(B64 x) { return {_mm512_srli_epi16(x.v, N)}; }
template <int N> RL_INLINE B64 words_left(B64 x) { return {_mm512_slli_epi16(x.v, N)}; }

#elif RL_AVX2

struct B64 { __m256i a, b; };

RL_INLINE B64 load_bytes(const uint8_t* p) {
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
RL_INLINE void store_bytes(uint8_t* p, B64 x) {
  __m256i* q = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(q, x.a);
  _mm256_storeu_si256(q + 1, x.b);
}
RL_INLINE B64 set1_bytes(int x) {
  const __m256i all = _mm256_set1_epi8(static_cast<char>(x));
  return {all, all};
}
RL_INLINE B64 bit_and(B64 x, B64 y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
RL_INLINE B64 bit_or(B64 x, B64 y) {
  return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
template <int N> RL_INLINE B64 words_right(B64 x) {
  return {_mm256_srli_epi16(x.a, N), _mm256_srli_epi16(x.b, N)};
}
template <int N> RL_INLINE B64 words_left(B64 x) {
  return {_mm256_slli_epi16(x.a, N), _mm256_slli_epi16(x.b, N)};
}

#else

struct B64 { W4 v[4]; };

#define RL_EACH(expression)                          \
  B64 r;                                             \
  for (int i = 0; i < 4; ++i) r.v[i] = (expression); \
  return r
typedef uint16_t H8 __attribute__((vector_size(16)));
RL_INLINE B64 load_bytes(const uint8_t* p) { RL_EACH(load_vector<W4>(p + 16 * i)); }
RL_INLINE void store_bytes(uint8_t* p, B64 x) { std::memcpy(p, x.v, 64); }
RL_INLINE B64 set1_bytes(int x) { RL_EACH(all4_int(int32_t(uint32_t(uint8_t(x)) * 0x01010101u))); }
RL_INLINE B64 bit_and(B64 x, B64 y) { RL_EACH(x.v[i] & y.v[i]); }
RL_INLINE B64 bit_or(B64 x, B64 y) { RL_EACH(x.v[i] | y.v[i]); }
template <int N> RL_INLINE B64 words_right(B64 x) { RL_EACH(W4(H8(x.v[i]) >> N)); }
template <int N> RL_INLINE B64 words_left(B64 x) { RL_EACH(W4(H8(x.v[i]) << N)); }
#undef RL_EACH

#endif

RL_INLINE int32_t four_of(const int8_t* values) {
  int32_t four;
  std::memcpy(&four, values, 4);
  return four;
}

// total[c] + the dot product of column c's four unsigned bytes with four signed values, which are
// -127 or more. Bytes are below 64 unless `Wide`: AVX2 adds pairs in 16 bits.
template <bool Wide>
RL_INLINE I16 dot(I16 total, B64 x, const int8_t* values) {
#if defined(__AVX512VNNI__)
  return {_mm512_dpbusd_epi32(total.v, x.v, _mm512_set1_epi32(four_of(values)))};
#elif RL_AVX2
  const __m256i four = _mm256_set1_epi32(four_of(values)), ones = _mm256_set1_epi16(1);
  if constexpr (Wide) {  // the eighth bit apart
    const __m256i bit = _mm256_set1_epi8(static_cast<char>(0x80));
    const B64 top{_mm256_and_si256(x.a, bit), _mm256_and_si256(x.b, bit)};
    x = {_mm256_andnot_si256(bit, x.a), _mm256_andnot_si256(bit, x.b)};
    total.a = _mm256_add_epi32(total.a, _mm256_madd_epi16(_mm256_maddubs_epi16(top.a, four), ones));
    total.b = _mm256_add_epi32(total.b, _mm256_madd_epi16(_mm256_maddubs_epi16(top.b, four), ones));
  }
  return {_mm256_add_epi32(total.a, _mm256_madd_epi16(_mm256_maddubs_epi16(x.a, four), ones)),
          _mm256_add_epi32(total.b, _mm256_madd_epi16(_mm256_maddubs_epi16(x.b, four), ones))};
#else
  const int32_t four = four_of(values);
  for (int i = 0; i < 4; ++i) total.v[i] = dot_words(total.v[i], x.v[i], four);
  return total;
#endif
}

}  // namespace rl
