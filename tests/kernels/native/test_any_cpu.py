"""Lanes made of the compiler's own vectors: every operation gives what IEEE 754 says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from radixlang.kernels.native.build import FLAGS, SOURCES, find_compiler

PROGRAM = r"""
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include "lanes.h"
#include "bytes.h"

using namespace rl;

static uint64_t state = 1;
static uint64_t draw() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (state >> 33) ^ (state << 20);
}

// Any pattern; numbers near each other, whose sums cancel; few bits, whose sums lie half-way;
// tiny ones, whose products underflow.
static float number(int kind) {
  const uint32_t bits = uint32_t(draw());
  if (kind == 0) return float_of(bits);
  if (kind == 1) return float_of((bits & 0x83ffffff) | 0x3c000000);
  if (kind == 2) return float_of((bits & 0x81ff0000) | 0x3f000000 | (bits % 3 ? 0 : bits & 3));
  return float_of((bits & 0x83ffffff) | (bits % 2 ? 0x18000000 : 0x00000000));
}

// a b is half a step of c, but for a part that float64 has no place for beside c.
static void near_half(float* a, float* b, float* c, bool tiny) {
  for (int i = 0; i < 16; ++i) {
    const uint32_t bits = uint32_t(draw()), off = bits & 3;
    const float power = tiny ? 0x1p-75f : 0x1p-12f;
    a[i] = (1.0f + off * 0x1p-23f) * power;
    b[i] = (1.0f - (bits >> 2 & 3) * 0x1p-23f) * power;
    c[i] = tiny ? (bits >> 4 & 255) * 0x1p-149f : 1.0f + (bits >> 4 & 255) * 0x1p-23f;
    if (bits >> 30 & 1) a[i] = -a[i];
    if (bits >> 31) c[i] = -c[i];
  }
}

static void expect(float found, float exact, const char* what) {
  if (std::isnan(found) && std::isnan(exact)) return;
  if (bits_of(found) == bits_of(exact)) return;
  std::printf("%s: %a instead of %a\n", what, found, exact);
  std::exit(1);
}

static void floats(const float* a, const float* b, const float* c) {
  float sum_[16], minus[16], most[16], least[16];
  store(sum_, fma(load(a), load(b), load(c)));
  store(minus, fnma(load(a), load(b), load(c)));
  store(most, max(load(a), load(b)));
  store(least, min(load(a), load(b)));
  for (int i = 0; i < 16; ++i) {
    expect(sum_[i], std::fma(a[i], b[i], c[i]), "fma");
    expect(minus[i], std::fma(-a[i], b[i], c[i]), "fnma");
    expect(most[i], a[i] > b[i] ? a[i] : b[i], "max");
    expect(least[i], a[i] < b[i] ? a[i] : b[i], "min");
  }
  float tree[16];
  for (int i = 0; i < 16; ++i) tree[i] = a[i];
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) tree[i] = tree[i] + tree[i + half];
  expect(sum(load(a)), tree[0], "sum");
}

template <int H>
static void partners(const float* a) {
  float other[16], mixed[16];
  store(other, swapped<H>(load(a)));
  store(mixed, butterfly<H>(load(a)));
  for (int i = 0; i < 16; ++i) {
    expect(other[i], a[i ^ H], "swapped");
    expect(mixed[i], i & H ? a[i ^ H] - a[i] : a[i] + a[i ^ H], "butterfly");
  }
}

static void integers(const float* a) {
  int32_t whole[16];
  store_int(whole, round_to_int(load(a)));
  for (int i = 0; i < 16; ++i) {
    const bool fits = a[i] >= -0x1p31f && a[i] < 0x1p31f;
    const int32_t exact = fits ? int32_t(std::nearbyint(a[i])) : INT32_MIN;
    if (whole[i] != exact) std::printf("round %a: %d\n", a[i], whole[i]), std::exit(1);
  }
  uint8_t bytes[64];
  int8_t four[4];
  for (uint8_t& byte : bytes) byte = uint8_t(draw());
  for (int8_t& value : four) value = int8_t(draw());
  store_int(whole, dot<true>(set1_int(-5), load_bytes(bytes), four));
  for (int i = 0; i < 16; ++i) {
    int32_t exact = -5;
    for (int j = 0; j < 4; ++j) exact += bytes[4 * i + j] * four[j];
    if (whole[i] != exact) std::printf("dot: %d instead of %d\n", whole[i], exact), std::exit(1);
  }
}

int main() {
  for (int round = 0; round < 400000; ++round) {
    float a[16], b[16], c[16];
    const int kind = round % 4;
    for (int i = 0; i < 16; ++i) {
      a[i] = number(kind), b[i] = number(kind), c[i] = number(kind);
      if (round % 5 == 0) c[i] = -(a[i] * b[i]);
      if (round % 7 == 0) c[i] = float_of(bits_of(a[i] * b[i]) + (24u << 23));
    }
    if (round % 11 == 0) near_half(a, b, c, round % 2);
    floats(a, b, c);
    if (round % 8) continue;
    partners<1>(a), partners<2>(a), partners<4>(a), partners<8>(a);
    const float grown = float_of(uint32_t(round % 40 + 110) << 23);
    for (float& x : a) x = round % 16 ? x : float(int32_t(draw() % 4096) - 2048) * 0.5f * grown;
    integers(a);
  }
  std::printf("all bits are right\n");
}
"""


@pytest.mark.parametrize("more", [(), ("-U__SSE2__",)], ids=["as it is", "without SSE2"])
def test_every_operation_is_exact(tmp_path: Path, more: tuple[str, ...]) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source, program = tmp_path / "lanes.cpp", tmp_path / "lanes"
    source.write_text(PROGRAM, "utf-8")
    command = [
        *compiler.split(),
        *FLAGS,
        *more,
        "-I",
        str(SOURCES),
        str(source),
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "all bits are right\n")
