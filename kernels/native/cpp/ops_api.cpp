// The operations for callers outside of a decoder step: whole arrays, shared by a team.
#include <algorithm>
#include <cmath>

#include "guard.h"
#include "lanes.h"
#include "ops.h"
#include "team.h"

namespace {

constexpr int64_t kPieceFloats = 1 << 14;

template <class Body>
void in_pieces(int64_t count, int64_t width, int threads, const Body& body) {
  const int64_t piece = std::max<int64_t>(1, kPieceFloats / width);
  rl::parallel_for(threads, static_cast<int>((count + piece - 1) / piece), [&](int item, int) {
    body(item * piece, std::min(count, (item + 1) * piece));
  });
}

void hadamard_rows(float* x, int64_t count, int64_t width, int64_t block) {
  const float factor = 1.0f / std::sqrt(static_cast<float>(block));
  float* own = rl::scratch<float>(2, width + 64);
  for (float* row = x; row < x + count * width; row += width) {
    for (int64_t i = 0; i < width; i += 16) rl::store(own + i, rl::load_at(row, i, width));
    rl::transform(own, width, block);
    for (int64_t i = 0; i < width; i += 16)
      rl::store_at(row, i, width, rl::mul(rl::load(own + i), rl::set1(factor)));
  }
}

}  // namespace

extern "C" {

// Each returns a Status (guard.h).

// x [count, width] times the rotation, in place.
int rl_rotate(const RlRotation* rotation, float* x, int64_t count, int threads) {
  return rl::guarded([&] {
    in_pieces(count, rotation->width, threads, [&](int64_t first, int64_t last) {
      rl::rotate_rows(*rotation, x + first * rotation->width, last - first);
    });
  });
}

// x [count, width] times the orthonormal block Hadamard matrix, in place.
int rl_hadamard(float* x, int64_t count, int64_t width, int64_t block, int threads) {
  return rl::guarded([&] {
    in_pieces(count, width, threads, [&](int64_t first, int64_t last) {
      hadamard_rows(x + first * width, last - first, width, block);
    });
  });
}

int rl_read_rows(const RlShape* shape, const float* stream, const float* gain, int64_t count,
                 const rl::Levels* out) {
  return rl::guarded([&] { rl::read_rows(*shape, stream, gain, count, *out); });
}

int rl_split_rows(const RlShape* shape, const rl::Product* product, const rl::Angles* angles,
                  const float* bias, const float* gain, int64_t count, const rl::Heads* out) {
  return rl::guarded([&] { rl::split_rows(*shape, *product, *angles, bias, gain, count, *out); });
}

int rl_quantize_rows(const float* x, int64_t width, int64_t count, const rl::Levels* out) {
  return rl::guarded([&] { rl::quantize_rows(x, width, count, *out); });
}

int rl_add_read_rows(const RlShape* shape, float* stream, const rl::Product* product,
                     const float* bias, const float* post_gain, const float* gain, int64_t count,
                     const rl::Levels* out) {
  return rl::guarded([&] {
    rl::add_read_rows(*shape, stream, *product, bias, post_gain, gain, count, *out);
  });
}

int rl_activate_rows(const RlShape* shape, const rl::Product* product, const float* bias,
                     int64_t count, const rl::Levels* out) {
  return rl::guarded([&] { rl::activate_rows(*shape, *product, bias, count, *out); });
}

int rl_make_angles(const float* inverse_freq, int64_t num_turned, float factor, int64_t head_dim,
                   const int32_t* positions, int64_t count, float* cosines, float* sines) {
  return rl::guarded([&] {
    rl::make_angles(inverse_freq, num_turned, factor, head_dim, positions, count, cosines, sines);
  });
}
}
