// The operations between products. Every loop goes over one row; rows do not meet.
#include "ops.h"

#include <cmath>
#include <cstring>

#include "lanes.h"
#include "team.h"

namespace rl {
namespace {

constexpr float kLargest = 127.0f;
constexpr float kTiny = 1e-30f;  // the peak of a row of zeros
constexpr int kWork = 3;         // the scratch place of these functions

float* work_row(int64_t width) { return scratch<float>(kWork, width + 64); }

// A number, or NaN where the row holds what is not finite: it is then lost as a whole, and seen.
RL_INLINE float checked_peak(F16 peak, F16 poison) {
  return std::fmax(max_lane(peak), kTiny) + sum(poison);
}

RL_INLINE void float_row(const float* x, int64_t width, float factor, float* out) {
  const F16 all = set1(factor);
  for (int64_t i = 0; i < width; i += 16) store_at(out, i, width, mul(load_at(x, i, width), all));
}

RL_INLINE int32_t round_store(const float* x, F16 inverse, int8_t* values) {
  const I16 level = round_to_int(mul(load(x), inverse));
  store_i8(values, level);
  return static_cast<int32_t>(sum(to_float(level)));  // exact: below 2^24
}

// Levels of every 32 of x [width] with their own scales; the row's is the factor.
void quantize_groups(const float* x, int64_t width, float factor, const Levels& out, int64_t row) {
  int8_t* values = out.values + row * out.stride;
  Group* group = out.groups + row * out.group_stride;
  F16 poison = zero();
  for (int64_t i = 0; i < width; i += 32, ++group) {
    const F16 a = load(x + i), b = load(x + i + 16);
    poison = fma(b, zero(), fma(a, zero(), poison));
    const float peak = std::fmax(max_lane(max(abs(a), abs(b))), kTiny);
    const F16 inverse = set1(kLargest / peak);
    const float scale = peak / kLargest;
    const int32_t low = round_store(x + i, inverse, values + i);
    const int32_t high = round_store(x + i + 16, inverse, values + i + 16);
    *group = {scale, scale * static_cast<float>(low + high), -8 * (low + high),
              {-8 * low, -8 * high}, {}};
  }
  out.scale[row] = factor + sum(poison);
}

// Levels of x [width], padded with zeros to 16, whose scale is that of the row times a factor; or
// by groups; or x times the factor as it is, for dense weights.
RL_INLINE void write_row(const float* x, int64_t width, float factor, const Levels& out,
                         int64_t row) {
  if (out.floats) return float_row(x, width, factor, out.floats + row * out.stride);
  if (out.groups) return quantize_groups(x, width, factor, out, row);
  F16 peak = zero(), poison = zero();
  for (int64_t i = 0; i < width; i += 16) {
    const F16 value = load_at(x, i, width);
    peak = max(abs(value), peak);
    poison = fma(value, zero(), poison);
  }
  const float scale = checked_peak(peak, poison);
  const F16 inverse = set1(kLargest / scale);
  int8_t* values = out.values + row * out.stride;
  I16 total = set1_int(0);
  for (int64_t i = 0; i < width; i += 16) {
    const I16 level = round_to_int(mul(load_at(x, i, width), inverse));
    store_i8(values + i, level);
    total = add(total, level);
  }
  const int64_t padded = (width + 15) / 16 * 16;
  std::memset(values + padded, 0, out.stride - padded);
  out.scale[row] = scale * factor;
  out.sums[row] = sum_of(total);
}

RL_INLINE float scale_of(const Product& product, int64_t row) {
  return product.scale ? product.scale[row] : 1.0f;
}

RL_INLINE void scale_by(float* x, int64_t width, float factor) {
  const F16 all = set1(factor);
  for (int64_t i = 0; i < width; i += 16) store(x + i, mul(load(x + i), all));
}

void read_row(const RlShape& shape, const float* stream, const float* gain, const Levels& out,
              int64_t row) {
  const int64_t width = shape.hidden_size;
  const float factor = inverse_rms(stream, width, shape.norm_eps);
  if (!gain && shape.stream_block <= 1) return write_row(stream, width, factor, out, row);
  float* x = work_row(width);
  for (int64_t i = 0; i < width; i += 16) {
    const F16 value = load_at(stream, i, width);
    store(x + i, gain ? mul(value, load_at(gain, i, width)) : value);
  }
  if (shape.stream_block > 1) {
    transform(x, width, shape.stream_block);
    scale_by(x, width, 1.0f / std::sqrt(static_cast<float>(shape.stream_block)));
  }
  write_row(x, width, factor, out, row);
}

// product * scale (+ bias) of 16 columns.
RL_INLINE F16 scaled(const float* product, F16 scale, const float* bias, int64_t i, int64_t width) {
  const F16 value = mul(load_at(product, i, width), scale);
  return bias ? add(value, load_at(bias, i, width)) : value;
}

void store_kv(int dtype, void* pool, int64_t index, F16 x, int64_t count) {
  if (count >= 16) return store_as(dtype, pool, index, x);
  alignas(64) char lanes[64];
  store_as(dtype, lanes, 0, x);
  std::memcpy(static_cast<char*>(pool) + index * bytes_of(dtype), lanes, count * bytes_of(dtype));
}

// One query or key head: scaled, normalised where there is a gain, turned; left in x.
void turn_head(const RlShape& shape, const float* product, F16 scale, const float* bias,
               const float* gain, const float* cosines, const float* sines, float* x) {
  const int64_t dim = shape.head_dim;
  for (int64_t i = 0; i < dim; i += 16) store(x + i, scaled(product, scale, bias, i, dim));
  const F16 factor = set1(gain ? inverse_rms(x, dim, shape.norm_eps) : 1.0f);
  for (int64_t i = 0; i < dim; i += 16) {
    F16 value = load(x + i);
    if (gain) value = mul(mul(value, factor), load_at(gain, i, dim));
    const F16 crossed = mul(swapped<1>(value), load_at(sines, i, dim));
    store(x + i, fma(value, load_at(cosines, i, dim), crossed));
  }
}

void split_row(const RlShape& shape, const Product& product, const Angles& angles,
               const float* bias, const float* gain, int64_t row, const Heads& out) {
  const int64_t dim = shape.head_dim, turned = shape.num_heads + shape.num_kv_heads;
  const float* data = product.data + row * product.stride;
  const F16 scale = set1(scale_of(product, row));
  const int64_t slot = int64_t(out.slots[row]) * shape.num_kv_heads * dim;
  float* x = work_row(dim);
  for (int64_t head = 0; head < turned; ++head) {
    turn_head(shape, data + head * dim, scale, bias ? bias + head * dim : nullptr,
              gain ? gain + head * dim : nullptr, angles.cosines + row * dim,
              angles.sines + row * dim, x);
    if (head < shape.num_heads) {
      std::memcpy(out.q + (row * shape.num_heads + head) * dim, x, dim * sizeof(float));
      continue;
    }
    for (int64_t i = 0; i < dim; i += 16)
      store_kv(out.dtype, out.k, slot + (head - shape.num_heads) * dim + i, load(x + i), dim - i);
  }
  const int64_t width = shape.num_kv_heads * dim;
  const float* coarse = data + turned * dim;
  for (int64_t i = 0; i < width; i += 16) {
    F16 value = mul(load_at(coarse, i, width), scale);
    if (shape.value_parts == 2)
      value = add(value, mul(load_at(coarse + width, i, width), scale));
    if (bias) value = add(value, load_at(bias + turned * dim, i, width));
    store_kv(out.dtype, out.v, slot + i, value, width - i);
  }
}

void add_row(const RlShape& shape, float* stream, const float* product, float row_scale,
             const float* bias, const float* post_gain) {
  const int64_t width = shape.hidden_size;
  const F16 scale = set1(row_scale);
  if (!post_gain) {
    for (int64_t i = 0; i < width; i += 16) {
      const F16 value = scaled(product, scale, bias, i, width);
      store_at(stream, i, width, add(load_at(stream, i, width), value));
    }
    return;
  }
  float* x = work_row(width);
  for (int64_t i = 0; i < width; i += 16) store(x + i, scaled(product, scale, bias, i, width));
  const F16 factor = set1(inverse_rms(x, width, shape.norm_eps));
  for (int64_t i = 0; i < width; i += 16) {
    const F16 value = mul(mul(load(x + i), factor), load_at(post_gain, i, width));
    store_at(stream, i, width, add(load_at(stream, i, width), value));
  }
}

template <class Activation>
RL_INLINE void activate_row(const RlShape& shape, const Product& product, const float* bias,
                            int64_t row, const Levels& out, const Activation& activation) {
  const int64_t width = shape.intermediate_size;
  const float* gate = product.data + row * product.stride;
  const F16 scale = set1(scale_of(product, row));
  float* x = work_row(width);
  for (int64_t i = 0; i < width; i += 16) {
    const F16 value = activation(scaled(gate, scale, bias, i, width));
    const F16 up = scaled(gate + width, scale, bias ? bias + width : nullptr, i, width);
    store(x + i, mul(value, up));
  }
  transform(x, width, shape.inner_block);
  if (shape.inner_block > 1)
    scale_by(x, width, 1.0f / std::sqrt(static_cast<float>(shape.inner_block)));
  write_row(x, width, 1.0f, out, row);
}

template <class Activation>
void activate_all(const RlShape& shape, const Product& product, const float* bias, int64_t count,
                  const Levels& out, const Activation& activation) {
  for (int64_t row = 0; row < count; ++row)
    activate_row(shape, product, bias, row, out, activation);
}

// x split as [rest, block], mixed over the first; products and sums apart, as plain torch has them.
void mix_blocks(const RlRotation& rotation, const float* x, float* out) {
  const int64_t block = rotation.block, rest = rotation.width / block;
  for (int64_t i = 0; i < rest; ++i)
    for (int64_t at = 0; at < block; at += 16) {
      F16 total = zero();
      for (int64_t j = 0; j < rest; ++j)
        total = add(total, mul(set1(rotation.rest[i * rest + j]), load_at(x + j * block, at, block)));
      store_at(out + i * block, at, block, total);
    }
}

// Sine and cosine of an angle of up to about 1e8, in double precision, by the same operations
// everywhere: a multiple of pi / 2 is taken off in two parts, then Taylor's series.
void sine_cosine(double angle, float* sine, float* cosine) {
  const double turns = std::nearbyint(angle * 0.63661977236758134308);
  double r = std::fma(turns, -1.57079632679489655800, angle);
  r = std::fma(turns, -6.12323399573676603587e-17, r);
  const double s = r * r;
  double a = 1.0 / 6227020800.0;
  a = std::fma(a, s, -1.0 / 39916800.0);
  a = std::fma(a, s, 1.0 / 362880.0);
  a = std::fma(a, s, -1.0 / 5040.0);
  a = std::fma(a, s, 1.0 / 120.0);
  a = std::fma(a, s, -1.0 / 6.0);
  a = std::fma(a * s, r, r);
  double b = -1.0 / 87178291200.0;
  b = std::fma(b, s, 1.0 / 479001600.0);
  b = std::fma(b, s, -1.0 / 3628800.0);
  b = std::fma(b, s, 1.0 / 40320.0);
  b = std::fma(b, s, -1.0 / 720.0);
  b = std::fma(b, s, 1.0 / 24.0);
  b = std::fma(b, s, -0.5);
  b = std::fma(b, s, 1.0);
  const int64_t quarter = static_cast<int64_t>(turns) & 3;
  const double sin_part = quarter & 1 ? b : a, cos_part = quarter & 1 ? a : b;
  *sine = static_cast<float>(quarter & 2 ? -sin_part : sin_part);
  *cosine = static_cast<float>((quarter + 1) & 2 ? -cos_part : cos_part);
}

}  // namespace

void quantize_rows(const float* x, int64_t width, int64_t count, const Levels& out) {
  for (int64_t row = 0; row < count; ++row) write_row(x + row * width, width, 1.0f, out, row);
}

void read_rows(const RlShape& shape, const float* stream, const float* gain, int64_t count,
               const Levels& out) {
  for (int64_t row = 0; row < count; ++row)
    read_row(shape, stream + row * shape.hidden_size, gain, out, row);
}

void split_rows(const RlShape& shape, const Product& product, const Angles& angles,
                const float* bias, const float* gain, int64_t count, const Heads& out) {
  for (int64_t row = 0; row < count; ++row)
    split_row(shape, product, angles, bias, gain, row, out);
}

void add_read_rows(const RlShape& shape, float* stream, const Product& product, const float* bias,
                   const float* post_gain, const float* gain, int64_t count, const Levels& out) {
  for (int64_t row = 0; row < count; ++row) {
    float* own = stream + row * shape.hidden_size;
    add_row(shape, own, product.data + row * product.stride, scale_of(product, row), bias, post_gain);
    read_row(shape, own, gain, out, row);
  }
}

void activate_rows(const RlShape& shape, const Product& product, const float* bias, int64_t count,
                   const Levels& out) {
  if (shape.activation == RL_SILU)
    return activate_all(shape, product, bias, count, out, [](F16 x) __attribute__((always_inline)) { return silu(x); });
  if (shape.activation == RL_GELU_TANH)
    return activate_all(shape, product, bias, count, out,
                        [](F16 x) __attribute__((always_inline)) { return gelu_tanh(x); });
  activate_all(shape, product, bias, count, out, [](F16 x) __attribute__((always_inline)) { return gelu(x); });
}

void finish_logits(float* data, int64_t stride, const float* scale, const float* bias, float cap,
                   int64_t count, int64_t first, int64_t last) {
  for (int64_t row = 0; row < count; ++row) {
    float* own = data + row * stride;
    const F16 factor = set1(scale ? scale[row] : 1.0f);
    for (int64_t i = first; i < last; i += 16) {
      F16 value = scaled(own, factor, bias, i, last);
      if (cap > 0) value = mul(tanh(div(value, set1(cap))), set1(cap));
      store_at(own, i, last, value);
    }
  }
}

void rotate_rows(const RlRotation& rotation, float* x, int64_t count) {
  const int64_t width = rotation.width;
  const float factor = 1.0f / std::sqrt(static_cast<float>(rotation.block));
  float* turned = work_row(width);
  for (int64_t row = 0; row < count; ++row) {
    float* own = x + row * width;
    for (int64_t i = 0; i < width; i += 16)
      store(turned + i, mul(load_at(own, i, width), load_at(rotation.signs, i, width)));
    transform(turned, width, rotation.block);
    scale_by(turned, width, factor);
    mix_blocks(rotation, turned, own);
  }
}

void make_angles(const float* inverse_freq, int64_t num_turned, float factor, int64_t head_dim,
                 const int32_t* positions, int64_t count, float* cosines, float* sines) {
  for (int64_t row = 0; row < count; ++row) {
    float *c = cosines + row * head_dim, *s = sines + row * head_dim;
    const float position = static_cast<float>(positions[row]);
    for (int64_t i = 0; i < head_dim / 2; ++i) {
      float sine = 0.0f, cosine = 1.0f;
      if (i < num_turned) {
        sine_cosine(position * inverse_freq[i], &sine, &cosine);
        sine *= factor;
        cosine *= factor;
      }
      c[2 * i] = c[2 * i + 1] = cosine;
      s[2 * i] = -sine;
      s[2 * i + 1] = sine;
    }
  }
}

}  // namespace rl
