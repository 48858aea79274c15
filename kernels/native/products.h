// Products of 8-bit rows with 8-bit weights: exact integer sums, then one float factor a column.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rl {

// A weight [out, in]. Where its kind is kByRow it is in one layout for every instruction set. Columns of the product come in blocks
// of 16, the inner dimension in steps of 64: a tile of 1,024 bytes is 16 rows of 64 bytes, row r
// holding for each of 16 columns the four values 4r..4r+3. Values are stored plus 128 (unsigned),
// so a sum over them is too large by 128 times the sum of the row that they were multiplied with.
struct Weight {
  int64_t out;         // columns of the product
  int64_t in;          // length of a sum
  int64_t steps;       // of 64, the last padded
  int64_t blocks;      // of 16 columns, the last padded
  uint8_t* tiles;      // [blocks, steps, 16, 16, 4]
  float* scale;        // [blocks * 16], 0 behind `out`
  std::size_t bytes;   // of the one allocation that holds all of it
  int kind = 0;        // of grouped.h: how else it is laid out; tiles then are the low plane
  const uint8_t* high = nullptr;    // the plane of bits above
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

// Rows to multiply: int8 values in [-127, 127], zeros from `in` to steps * 64. Up to 16 rows behind
// the last may be read, and what is read there is not used.
struct Rows {
  const int8_t* values;
  int64_t stride;       // bytes from row to row, a multiple of 64
  const int32_t* sums;  // of each row's values
  int64_t count;
  const Group* groups = nullptr;  // [count, group_stride], for weights with groups
  int64_t group_stride = 0;
};

// Where products are written: row r, column c at data[r * stride + c].
struct Floats {
  float* data;
  int64_t stride;
};

// Sets out[r, c] = float(sum) * scale[c] for the columns of blocks [first, last) of all rows.
void multiply_blocks(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
                     int64_t last);

// All columns, of the weights behind it too, shared by a team.
void multiply(const Weight& weight, const Rows& rows, const Floats& out, int threads);

// The number of blocks that one piece of work should have when `threads` share a product.
int64_t blocks_a_piece(const Weight& weight, int64_t count, int threads);

// Sums of int8 rows [count, width].
void sum_rows(const int8_t* values, int64_t stride, int64_t width, int64_t count, int32_t* sums);

}  // namespace rl
