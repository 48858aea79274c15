// 8-bit products on every instruction set. Integer sums are exact, so all give the same bits.
#include "products.h"

#include "grouped.h"
#include "simd.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace rl {
namespace {

constexpr int64_t kTile = 1024;     // bytes of 16 columns and 64 of the inner dimension
constexpr int32_t kOffset = 128;    // stored weights are larger by it
constexpr int64_t kAmxFrom = 3;     // rows; fewer are served faster by dot products of vectors
constexpr int64_t kPieceBytes = 1 << 15;

// The columns of one block that exist.
int columns_of(const Weight& weight, int64_t block) {
  return static_cast<int>(std::min<int64_t>(16, weight.out - 16 * block));
}

const uint8_t* tiles_of(const Weight& weight, int64_t block) {
  return weight.tiles + block * weight.steps * kTile;
}

int32_t load4(const int8_t* values) {
  int32_t four;
  std::memcpy(&four, values, 4);
  return four;
}

#if !defined(__AVX2__)

// ---- any CPU ----------------------------------------------------------------------------------

template <int R>
void portable_block(const Weight& weight, const Rows& rows, int64_t row, const Floats& out,
                    int64_t block) {
  const int8_t* values = rows.values + row * rows.stride;
  const uint8_t* tile = tiles_of(weight, block);
  W4 total[R][4] = {};
  for (int64_t four = 0; four < weight.steps * 16; ++four, tile += 64)
    for (int i = 0; i < R; ++i) {
      const int32_t own = load4(values + i * rows.stride + 4 * four);
      for (int quarter = 0; quarter < 4; ++quarter)
        total[i][quarter] =
            dot_words(total[i][quarter], load_vector<W4>(tile + 16 * quarter), own);
    }
  const F16 scale = load(weight.scale + 16 * block);
  for (int i = 0; i < R; ++i) {
    const I16 sums{{total[i][0], total[i][1], total[i][2], total[i][3]}};
    const F16 exact = to_float(sub(sums, set1_int(kOffset * rows.sums[row + i])));
    store_n(out.data + (row + i) * out.stride + 16 * block, mul(exact, scale),
            columns_of(weight, block));
  }
}

void portable(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
              int64_t last) {
  for (int64_t block = first; block < last; ++block) {
    int64_t row = 0;
    for (; row + 2 <= rows.count; row += 2) portable_block<2>(weight, rows, row, out, block);
    if (row < rows.count) portable_block<1>(weight, rows, row, out, block);
  }
}

#endif

#if defined(__AVX2__) && !defined(__AVX512F__)

// ---- AVX2: products of bytes are summed in pairs, which fits 16 bits as no weight is -128 ------


inline void store_avx2(const Weight& weight, __m256i low, __m256i high, int32_t sum, float* out,
              int64_t block) {
  const __m256i correction = _mm256_set1_epi32(kOffset * sum);
  const float* scale = weight.scale + 16 * block;
  const __m256 a = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(low, correction)),
                                   _mm256_loadu_ps(scale));
  const __m256 b = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(high, correction)),
                                   _mm256_loadu_ps(scale + 8));
  const int columns = columns_of(weight, block);
  if (columns == 16) {
    _mm256_storeu_ps(out + 16 * block, a);
    _mm256_storeu_ps(out + 16 * block + 8, b);
    return;
  }
  float both[16];
  _mm256_storeu_ps(both, a);
  _mm256_storeu_ps(both + 8, b);
  std::memcpy(out + 16 * block, both, columns * sizeof(float));
}

template <int R>
void avx2_block(const Weight& weight, const Rows& rows, int64_t row, const Floats& out,
                     int64_t block) {
  const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80)), ones = _mm256_set1_epi16(1);
  const int8_t* values = rows.values + row * rows.stride;
  const uint8_t* tile = tiles_of(weight, block);
  __m256i low[R], high[R];
  for (int i = 0; i < R; ++i) low[i] = high[i] = _mm256_setzero_si256();
  for (int64_t four = 0; four < weight.steps * 16; ++four, tile += 64) {
    const __m256i* at = reinterpret_cast<const __m256i*>(tile);
    const __m256i w0 = _mm256_xor_si256(_mm256_loadu_si256(at), flip);
    const __m256i w1 = _mm256_xor_si256(_mm256_loadu_si256(at + 1), flip);
    const __m256i u0 = _mm256_abs_epi8(w0), u1 = _mm256_abs_epi8(w1);
    for (int i = 0; i < R; ++i) {
      const __m256i a = _mm256_set1_epi32(load4(values + i * rows.stride + 4 * four));
      const __m256i p0 = _mm256_maddubs_epi16(u0, _mm256_sign_epi8(a, w0));
      const __m256i p1 = _mm256_maddubs_epi16(u1, _mm256_sign_epi8(a, w1));
      low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(p0, ones));
      high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(p1, ones));
    }
  }
  for (int i = 0; i < R; ++i)  // these sums are of weights as they are
    store_avx2(weight, low[i], high[i], 0, out.data + (row + i) * out.stride, block);
}

void avx2(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
               int64_t last) {
  for (int64_t block = first; block < last; ++block) {
    int64_t row = 0;
    for (; row + 4 <= rows.count; row += 4) avx2_block<4>(weight, rows, row, out, block);
    if (row + 2 <= rows.count) {
      avx2_block<2>(weight, rows, row, out, block);
      row += 2;
    }
    if (row < rows.count) avx2_block<1>(weight, rows, row, out, block);
  }
}

// ---- AVX-VNNI: found at run time, as it is in no set of ours ------------------------------------

#if defined(__clang__) || __GNUC__ > 10
#define RL_AVX_VNNI __attribute__((target("avx2,fma,avxvnni")))

bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

template <int R>
RL_AVX_VNNI void avx_vnni_block(const Weight& weight, const Rows& rows, int64_t row,
                             const Floats& out, int64_t block) {
  const int8_t* values = rows.values + row * rows.stride;
  const uint8_t* tile = tiles_of(weight, block);
  __m256i low[R], high[R];
  for (int i = 0; i < R; ++i) low[i] = high[i] = _mm256_setzero_si256();
  for (int64_t four = 0; four < weight.steps * 16; ++four, tile += 64) {
    const __m256i* at = reinterpret_cast<const __m256i*>(tile);
    const __m256i w0 = _mm256_loadu_si256(at), w1 = _mm256_loadu_si256(at + 1);
    for (int i = 0; i < R; ++i) {
      const __m256i a = _mm256_set1_epi32(load4(values + i * rows.stride + 4 * four));
      low[i] = _mm256_dpbusd_avx_epi32(low[i], w0, a);
      high[i] = _mm256_dpbusd_avx_epi32(high[i], w1, a);
    }
  }
  for (int i = 0; i < R; ++i)
    store_avx2(weight, low[i], high[i], rows.sums[row + i],
                   out.data + (row + i) * out.stride, block);
}

RL_AVX_VNNI void avx_vnni(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
                       int64_t last) {
  for (int64_t block = first; block < last; ++block) {
    int64_t row = 0;
    for (; row + 4 <= rows.count; row += 4) avx_vnni_block<4>(weight, rows, row, out, block);
    if (row + 2 <= rows.count) {
      avx_vnni_block<2>(weight, rows, row, out, block);
      row += 2;
    }
    if (row < rows.count) avx_vnni_block<1>(weight, rows, row, out, block);
  }
}

#endif
#endif

#if defined(__AVX512VNNI__)

// ---- AVX-512 VNNI -----------------------------------------------------------------------------

inline void store_avx512(const Weight& weight, __m512i total, int32_t sum, float* out,
                int64_t block) {
  const __m512i exact = _mm512_sub_epi32(total, _mm512_set1_epi32(kOffset * sum));
  const __m512 scaled =
    _mm512_mul_ps(_mm512_cvtepi32_ps(exact), _mm512_loadu_ps(weight.scale + 16 * block));
  const __mmask16 exists = static_cast<__mmask16>((1u << columns_of(weight, block)) - 1);
  _mm512_mask_storeu_ps(out + 16 * block, exists, scaled);
}

// R rows by B blocks; few rows have several sums under way at once, which are added at the end.
template <int R, int B>
void avx512_blocks(const Weight& weight, const Rows& rows, int64_t row, const Floats& out,
                          int64_t block) {
  constexpr int kWays = R * B >= 8 ? 1 : R * B >= 4 ? 2 : 4;
  const int8_t* values = rows.values + row * rows.stride;
  const uint8_t* tile = tiles_of(weight, block);
  const int64_t apart = weight.steps * kTile;
  __m512i total[B][R][kWays];
  for (auto& part : total)
    for (auto& ways : part)
      for (auto& way : ways) way = _mm512_setzero_si512();
  for (int64_t four = 0; four < weight.steps * 16; four += 4, tile += 256) {
    for (int b = 0; b < B; ++b) _mm_prefetch(tile + b * apart + 2048, _MM_HINT_T0);
    for (int b = 0; b < B; ++b) _mm_prefetch(tile + b * apart + 2112, _MM_HINT_T0);
    for (int b = 0; b < B; ++b) _mm_prefetch(tile + b * apart + 2176, _MM_HINT_T0);
    for (int b = 0; b < B; ++b) _mm_prefetch(tile + b * apart + 2240, _MM_HINT_T0);
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      __m512i w[B];
      for (int b = 0; b < B; ++b) w[b] = _mm512_loadu_si512(tile + b * apart + 64 * u);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const __m512i a =
          _mm512_set1_epi32(load4(values + i * rows.stride + 4 * (four + u)));
        for (int b = 0; b < B; ++b)
          total[b][i][u % kWays] = _mm512_dpbusd_epi32(total[b][i][u % kWays], w[b], a);
      }
    }
  }
  for (int b = 0; b < B; ++b)
    for (int i = 0; i < R; ++i) {
      __m512i sum = total[b][i][0];
      for (int way = 1; way < kWays; ++way) sum = _mm512_add_epi32(sum, total[b][i][way]);
      store_avx512(weight, sum, rows.sums[row + i], out.data + (row + i) * out.stride,
                         block + b);
    }
}

using Avx512Blocks = void (*)(const Weight&, const Rows&, int64_t, const Floats&, int64_t);
constexpr int kAvx512Rows = 8;
constexpr Avx512Blocks kAvx512[2][kAvx512Rows] = {
  {avx512_blocks<1, 1>, avx512_blocks<2, 1>, avx512_blocks<3, 1>, avx512_blocks<4, 1>,
     avx512_blocks<5, 1>, avx512_blocks<6, 1>, avx512_blocks<7, 1>, avx512_blocks<8, 1>},
  {avx512_blocks<1, 2>, avx512_blocks<2, 2>, avx512_blocks<3, 2>, avx512_blocks<4, 2>,
     avx512_blocks<5, 2>, avx512_blocks<6, 2>, avx512_blocks<7, 2>, avx512_blocks<8, 2>},
};

void avx512(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
      int64_t last) {
  for (int64_t block = first; block < last;) {
    const int width = block + 2 <= last ? 2 : 1;
    for (int64_t row = 0; row < rows.count; row += kAvx512Rows) {
      const int64_t count = std::min<int64_t>(kAvx512Rows, rows.count - row);
      kAvx512[width - 1][count - 1](weight, rows, row, out, block);
    }
    block += width;
  }
}

#endif

#if defined(__AMX_INT8__)

// ---- AMX --------------------------------------------------------------------------------------

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0..3 are sums, 4 and 5 rows, 6 and 7 weights.
void configure(int64_t rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : 16);
  }
  _tile_loadconfig(&config);
}

inline void store_tile(const Weight& weight, const int32_t* totals, const Rows& rows,
                           int64_t row, const Floats& out, int64_t block) {
  const int64_t count = std::min<int64_t>(16, rows.count - row);
  for (int64_t i = 0; i < count; ++i)
    store_avx512(weight, _mm512_load_si512(totals + 16 * i), rows.sums[row + i],
                     out.data + (row + i) * out.stride, block);
}

// Up to 16 rows; blocks go by twos, so that a tile of rows is loaded half as often.
void amx_few(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
                 int64_t last) {
  alignas(64) int32_t totals[2][256];
  const int64_t apart = weight.steps * kTile;
  for (int64_t block = first; block < last; block += 2) {
    const bool two = block + 1 < last;
    const uint8_t* tile = tiles_of(weight, block);
    const int64_t second = two ? apart : 0;
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t step = 0; step < weight.steps; ++step, tile += kTile) {
      for (int line = 0; line < 16; ++line) {
        _mm_prefetch(tile + 2 * kTile + 64 * line, _MM_HINT_T0);
        _mm_prefetch(tile + second + 2 * kTile + 64 * line, _MM_HINT_T0);
      }
      _tile_loadd(4, rows.values + 64 * step, rows.stride);
      _tile_loadd(6, tile, 64);
      _tile_loadd(7, tile + second, 64);
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 4, 7);
    }
    _tile_stored(0, totals[0], 64);
    store_tile(weight, totals[0], rows, 0, out, block);
    if (!two) break;
    _tile_stored(1, totals[1], 64);
    store_tile(weight, totals[1], rows, 0, out, block + 1);
  }
}

// 32 rows by two blocks at a time; the two blocks stay in the cache for all rows.
void amx_many(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
                  int64_t last) {
  alignas(64) int32_t totals[4][256];
  const int64_t apart = weight.steps * kTile;
  for (int64_t block = first; block < last; block += 2) {
    const bool two = block + 1 < last;
    for (int64_t row = 0; row < rows.count; row += 32) {
      const bool pair = row + 16 < rows.count;
      const int8_t* top = rows.values + row * rows.stride;
      const int8_t* bottom = top + (pair ? 16 * rows.stride : 0);
      const uint8_t* tile = tiles_of(weight, block);
      const int64_t second = two ? apart : 0;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int64_t step = 0; step < weight.steps; ++step, tile += kTile) {
        _tile_loadd(4, top + 64 * step, rows.stride);
        _tile_loadd(6, tile, 64);
        _tile_loadd(7, tile + second, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        _tile_loadd(5, bottom + 64 * step, rows.stride);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
      }
      _tile_stored(0, totals[0], 64);
      _tile_stored(1, totals[1], 64);
      _tile_stored(2, totals[2], 64);
      _tile_stored(3, totals[3], 64);
      store_tile(weight, totals[0], rows, row, out, block);
      if (two) store_tile(weight, totals[1], rows, row, out, block + 1);
      if (!pair) continue;
      store_tile(weight, totals[2], rows, row + 16, out, block);
      if (two) store_tile(weight, totals[3], rows, row + 16, out, block + 1);
    }
  }
}

void amx(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
             int64_t last) {
  if (rows.count < kAmxFrom) return avx512(weight, rows, out, first, last);
  configure(std::min<int64_t>(rows.count, 16));
  (rows.count <= 16 ? amx_few : amx_many)(weight, rows, out, first, last);
  _tile_release();
}

#endif

}  // namespace

void multiply_blocks(const Weight& weight, const Rows& rows, const Floats& out, int64_t first,
                     int64_t last) {
  if (weight.kind == kDense) return multiply_dense_blocks(weight, rows, out, first, last);
  if (weight.kind != kByRow) return multiply_grouped(weight, rows, out, first, last);
#if defined(__AMX_INT8__)
  amx(weight, rows, out, first, last);
#elif defined(__AVX512VNNI__)
  avx512(weight, rows, out, first, last);
#elif defined(__AVX2__)
#if defined(RL_AVX_VNNI)
  static const bool fast = has_avx_vnni();
  if (fast) return avx_vnni(weight, rows, out, first, last);
#endif
  avx2(weight, rows, out, first, last);
#else
  portable(weight, rows, out, first, last);
#endif
}

int64_t blocks_a_piece(const Weight& weight, int64_t count, int threads) {
  if (threads < 2) return weight.blocks;
  const int64_t block = static_cast<int64_t>(weight.bytes) / weight.blocks;
  const int64_t bytes = block * std::max<int64_t>(1, count / 16);
  const int64_t fair = weight.blocks / (4 * threads);
  const int64_t blocks = std::max(fair, kPieceBytes / bytes);
  const int64_t together = weight.kind == kDense ? 12 : 2;  // blocks that are best taken at once
  return std::max(together, (blocks + together - 1) / together * together);
}

void sum_rows(const int8_t* values, int64_t stride, int64_t width, int64_t count, int32_t* sums) {
  for (int64_t row = 0; row < count; ++row) {
    int32_t sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += values[row * stride + i];
    sums[row] = sum;
  }
}

}  // namespace rl
