// Products of rows with weights: of 8-bit rows with 8-bit weights by exact integer sums and one
// float factor a column, or of float rows with float weights.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rl {

// How a weight is stored: 8 bits with a scale a row; floats; or by groups as GGUF's block types of
// these numbers, see grouped.h.
enum Kind : int { kByRow = 0, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ4_K = 12,
                  kQ5_K = 13, kQ6_K = 14, kDense = 100 };

// A weight [out, in] in one layout for every instruction set. Columns of the product come in blocks
// of 16.
//
// In 8 bits the inner dimension comes in steps of 64: a tile of 1,024 bytes is 16 rows of 64 bytes,
// row r holding for each of 16 columns the four values 4r..4r+3. Values are stored plus 128
// (unsigned), so a sum over them is too large by 128 times the sum of the row that they were
// multiplied with. A dense weight has for each block [in, 16] values of its dtype. Of a grouped one
// tiles are the plane of low bits.
struct Weight {
  int kind;
  int dtype;           // rl::Dtype of a dense one
  int64_t out;         // columns of the product
  int64_t in;          // length of a sum
  int64_t steps;       // of 64, the last padded
  int64_t blocks;      // of 16 columns, the last padded
  uint8_t* tiles;      // [blocks, steps, 16, 16, 4], or [blocks, in, 16]
  float* scale;        // [blocks * 16], 0 behind `out`; only of 8 bits with a scale a row
  std::size_t bytes;   // of the one allocation that holds all of it
  const uint8_t* high = nullptr;    // plane of the bits above, of a grouped one
  const uint8_t* params = nullptr;  // scales of groups
  const Weight* behind = nullptr;   // the weight whose columns come behind these
};

// Columns of a weight and of those behind it.
int64_t columns_of_all(const Weight& weight);

// 32 values of a row: the step between them, and their sum, as the products' two ways with weights
// that are not centred take it: a number, or an integer -8 times of the whole and of both halves.
struct Group {
  float scale;
  float sum;        // of what they stand for
  int32_t whole;
  int32_t halves[2];
  int32_t unused[3];
};

// Rows to multiply. For 8-bit weights: int8 values in [-127, 127], zeros from `in` to steps * 64;
// up to 16 rows behind the last may be read, and what is read there is not used.
struct Rows {
  const int8_t* values;
  int64_t stride;       // values from row to row, a multiple of 64 for 8 bits
  const int32_t* sums;  // of each row's values
  int64_t count;
  const float* floats = nullptr;  // for dense weights, in place of values and sums
  const Group* groups = nullptr;  // [count, group_stride], for grouped weights
  int64_t group_stride = 0;
};

// Where products are written: row r, column c at data[r * stride + c].
struct Floats {
  float* data;
  int64_t stride;
};

// Sets out[r, c] = float(sum) * scale[c] (a dense weight has no scale) for the columns of blocks
// [first, last) of all rows.
void multiply_blocks(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
                     int64_t last);

void multiply_dense_blocks(const Weight& weight, const Rows& rows, const Floats& out,
                           int64_t first, int64_t last);

// All columns, of the weights behind it too, shared by a team.
void multiply(const Weight& weight, const Rows& rows, const Floats& out, int threads);

// The number of blocks that one piece of work should have when `threads` share a product.
int64_t blocks_a_piece(const Weight& weight, int64_t count, int threads);

// Sums of int8 rows [count, width].
void sum_rows(const int8_t* values, int64_t stride, int64_t width, int64_t count, int32_t* sums);

}  // namespace rl
