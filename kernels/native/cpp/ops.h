// What a decoder computes between its products, row by row, in one fixed order.
#pragma once

#include <cstdint>

#include "products.h"

extern "C" {

enum { RL_SILU = 0, RL_GELU_TANH = 1, RL_GELU = 2 };

// All that the operations of a model depend on. Blocks are those of Hadamard transforms, 1: none.
struct RlShape {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t hidden_size;
  int64_t intermediate_size;
  int64_t activation;
  int64_t stream_block;  // before what reads the stream
  int64_t inner_block;   // before the down projection
  int64_t value_parts;   // 2: values' rows come once more behind the product of qkv, finer
  float norm_eps;
  float unused;
};

// y = diag(signs) x, Hadamard transformed in blocks, then mixed across the blocks by `rest`
// [width / block, width / block].
struct RlRotation {
  int64_t width;
  int64_t block;
  const float* signs;
  const float* rest;
};
}

namespace rl {

// Rows to write for a product. For 8-bit weights: values [rows, stride], zeros behind the width; a
// scale and a sum a row. A scale is the largest size in the row: the factor 1 / 127 is in the
// weights. For grouped weights: values, a scale and sums for every 32 of them, and the row's scale,
// a factor on all. For dense weights: floats [rows, stride], and nothing else.
struct Levels {
  int8_t* values;
  int64_t stride;
  float* scale;
  int32_t* sums;
  float* floats;
  Group* groups = nullptr;  // [rows, group_stride]
  int64_t group_stride = 0;
};

// Rows of a product without their own scale, and that scale; null where rows have none.
struct Product {
  const float* data;
  int64_t stride;
  const float* scale;
};

// Where heads go: q [rows, num_heads * head_dim] in float32; k and v into slots of one layer's pool.
struct Heads {
  float* q;
  void* k;
  void* v;
  const int32_t* slots;  // of each row
  int dtype;             // rl::Dtype of the pool
};

// Cosines, each twice, and sines as -s, s: [rows, head_dim] each.
struct Angles {
  const float* cosines;
  const float* sines;
};

void quantize_rows(const float* x, int64_t width, int64_t count, const Levels& out);

void read_rows(const RlShape& shape, const float* stream, const float* gain, int64_t count,
               const Levels& out);

// Product of the qkv weight; see `value_parts`. bias and gain may be null.
void split_rows(const RlShape& shape, const Product& product, const Angles& angles,
                const float* bias, const float* gain, int64_t count, const Heads& out);

// stream += product (+ bias, normalised by the post gain), then read_rows of it.
void add_read_rows(const RlShape& shape, float* stream, const Product& product, const float* bias,
                   const float* post_gain, const float* gain, int64_t count, const Levels& out);

// act(gate) * up of the gate_up product, transformed.
void activate_rows(const RlShape& shape, const Product& product, const float* bias, int64_t count,
                   const Levels& out);

// data *= scale (null: 1), + bias, soft capped: columns [first, last) of rows, in place; cap 0: none.
void finish_logits(float* data, int64_t stride, const float* scale, const float* bias, float cap,
                   int64_t count, int64_t first, int64_t last);

// x [count, width] times the rotation, in place.
void rotate_rows(const RlRotation& rotation, float* x, int64_t count);

// Angles of positions; turns [rotary_dim / 2] in radians a token. Behind them: no turn.
void make_angles(const float* inverse_freq, int64_t num_turned, float factor, int64_t head_dim,
                 const int32_t* positions, int64_t count, float* cosines, float* sines);

}  // namespace rl
