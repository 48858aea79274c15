// Sixteen lanes moved among themselves, and what is built of that: Hadamard transforms, levels.
#pragma once

#include <algorithm>

#include "simd.h"

namespace rl {

#if !RL_PORTABLE

// Each lane's partner: lane i gets lane i ^ H. H is 1, 2, 4 or 8.
template <int H>
RL_INLINE F16 swapped(F16 x) {
#if RL_AVX512
  if constexpr (H == 1) return {_mm512_permute_ps(x.v, 0xb1)};
  if constexpr (H == 2) return {_mm512_permute_ps(x.v, 0x4e)};
  if constexpr (H == 4) return {_mm512_shuffle_f32x4(x.v, x.v, 0xb1)};
  if constexpr (H == 8) return {_mm512_shuffle_f32x4(x.v, x.v, 0x4e)};
#else
  if constexpr (H == 1) return {_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)};
  if constexpr (H == 2) return {_mm256_permute_ps(x.a, 0x4e), _mm256_permute_ps(x.b, 0x4e)};
  if constexpr (H == 4)
    return {_mm256_permute2f128_ps(x.a, x.a, 1), _mm256_permute2f128_ps(x.b, x.b, 1)};
  if constexpr (H == 8) return {x.b, x.a};
#endif
}

// Lanes whose bit H is clear get the sum of both partners, the others lower minus upper.
template <int H>
RL_INLINE F16 butterfly(F16 x) {
  const F16 other = swapped<H>(x);
#if RL_AVX512
  constexpr __mmask16 upper = H == 1 ? 0xaaaa : H == 2 ? 0xcccc : H == 4 ? 0xf0f0 : 0xff00;
  return {_mm512_mask_sub_ps(_mm512_add_ps(x.v, other.v), upper, other.v, x.v)};
#else
  const F16 plus = add(x, other), minus = sub(other, x);
  constexpr int upper = H == 1 ? 0xaa : H == 2 ? 0xcc : 0xf0;
  if constexpr (H == 8) return {plus.a, minus.b};
  return {_mm256_blend_ps(plus.a, minus.a, upper), _mm256_blend_ps(plus.b, minus.b, upper)};
#endif
}

#endif

RL_INLINE F16 butterflies(F16 x, int64_t block) {
  if (block > 1) x = butterfly<1>(x);
  if (block > 2) x = butterfly<2>(x);
  if (block > 4) x = butterfly<4>(x);
  if (block > 8) x = butterfly<8>(x);
  return x;
}

// Unscaled Hadamard transform of every `block` values of x, in place, in one fixed order. `width`
// is rounded up to 16, and so much memory must be there; block is a power of two.
RL_INLINE void transform(float* x, int64_t width, int64_t block) {
  if (block <= 1) return;
  const int64_t padded = (width + 15) / 16 * 16;
  if (block < 64) {
    for (int64_t i = 0; i < padded; i += 16) store(x + i, butterflies(load(x + i), block));
    if (block == 32)
      for (int64_t i = 0; i < padded; i += 32) {
        const F16 a = load(x + i), b = load(x + i + 16);
        store(x + i, add(a, b));
        store(x + i + 16, sub(a, b));
      }
    return;
  }
  for (int64_t i = 0; i < padded; i += 64) {  // widths 1 to 32 in registers
    const F16 a = butterflies(load(x + i), 16), b = butterflies(load(x + i + 16), 16);
    const F16 c = butterflies(load(x + i + 32), 16), d = butterflies(load(x + i + 48), 16);
    const F16 ab = add(a, b), ba = sub(a, b), cd = add(c, d), dc = sub(c, d);
    store(x + i, add(ab, cd));
    store(x + i + 16, add(ba, dc));
    store(x + i + 32, sub(ab, cd));
    store(x + i + 48, sub(ba, dc));
  }
  for (int64_t half = 64; half < block; half *= 2)
    for (int64_t start = 0; start < padded; start += 2 * half)
      for (int64_t i = start; i < start + half; i += 16) {
        const F16 a = load(x + i), b = load(x + i + half);
        store(x + i, add(a, b));
        store(x + i + half, sub(a, b));
      }
}

RL_INLINE F16 load_at(const float* row, int64_t i, int64_t width) {
  return i + 16 <= width ? load(row + i) : load_n(row + i, static_cast<int>(width - i));
}

RL_INLINE void store_at(float* row, int64_t i, int64_t width, F16 x) {
  if (i + 16 <= width) return store(row + i, x);
  store_n(row + i, x, static_cast<int>(width - i));
}

RL_INLINE int32_t sum_of(I16 x) {
  int32_t lanes[16], sum = 0;
  store_int(lanes, x);
  for (int32_t lane : lanes) sum += lane;
  return sum;
}

// 1 / sqrt(mean of squares + eps).
RL_INLINE float inverse_rms(const float* row, int64_t width, float eps) {
  F16 squares = zero();
  for (int64_t i = 0; i < width; i += 16) {
    const F16 x = load_at(row, i, width);
    squares = fma(x, x, squares);
  }
  return 1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + eps);
}

RL_INLINE F16 silu(F16 x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }

RL_INLINE F16 gelu_tanh(F16 x) {
  const F16 inner = mul(mul(x, set1(0.7978845608f)), fma(mul(x, x), set1(0.044715f), set1(1.0f)));
  return mul(mul(set1(0.5f), x), add(set1(1.0f), tanh(inner)));
}

// By the series near 0, and as 1 - e^q(|x|) beyond 1; coefficients are our own least-maximum fits.
RL_INLINE F16 erf(F16 x) {
  const F16 square = mul(x, x), size = min(set1(4.2f), abs(x));
  F16 p = set1(7.889123e-05f);
  p = fma(p, square, set1(-0.0008020842f));
  p = fma(p, square, set1(0.0051895357f));
  p = fma(p, square, set1(-0.026854444f));
  p = fma(p, square, set1(0.112836f));
  p = fma(p, square, set1(-0.37612626f));
  p = fma(p, square, set1(1.1283791f));
  F16 q = set1(-2.1686767e-05f);
  q = fma(q, size, set1(0.00044133535f));
  q = fma(q, size, set1(-0.0042045563f));
  q = fma(q, size, set1(0.02520824f));
  q = fma(q, size, set1(-0.108418554f));
  q = fma(q, size, set1(-0.6332199f));
  q = fma(q, size, set1(-1.1295784f));
  q = fma(q, size, set1(0.00018803716f));
  const F16 far = sub(set1(1.0f), exp(q));
  const F16 signed_far = select(less(x, zero()), sub(zero(), far), far);
  return select(less(abs(x), set1(1.0f)), mul(p, x), signed_far);
}

RL_INLINE F16 gelu(F16 x) {
  const F16 share = add(set1(1.0f), erf(mul(x, set1(0.7071067812f))));
  return mul(mul(set1(0.5f), x), share);
}

}  // namespace rl
