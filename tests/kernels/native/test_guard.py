"""No exception leaves a C function or ends a thread of the team, whichever thread met it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from radixlang.kernels.native.build import FLAGS, SOURCES, find_compiler

# C functions that only read, free or hand out an address: there is nothing in them that can throw
CANNOT_FAIL = {
    "rl_attention_free", "rl_attention_num_rows", "rl_attention_positions",
    "rl_attention_new_slots", "rl_attention_chosen", "rl_attention_take_tallies", "rl_cpu_isa",
    "rl_weight_free", "rl_weight_bytes", "rl_weight_checksum", "rl_weight_read",
    "rl_weight_append", "rl_weight_memory", "rl_weight_forget", "rl_grouped_rows",
}  # fmt: skip

# Bodies that throw on every thread, on one item of many, and in a call within a call.
PROGRAM = r"""
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include "guard.h"
#include "team.h"

using rl::parallel_for;

static void expect(bool is_so, const char* what) {
  if (is_so) return;
  std::printf("%s\n", what);
  std::exit(1);
}

static int run(int threads, int items, int which, std::atomic<int>& done) {
  return rl::guarded([&] {
    parallel_for(threads, items, [&](int item, int) {
      if (which < 0 || item == which) throw std::bad_alloc();
      done.fetch_add(1);
    });
  });
}

int main() {
  for (int threads : {1, 2, 5})
    for (int items : {1, 2, 64, 1000}) {
      std::atomic<int> done{0};
      expect(run(threads, items, -1, done) == rl::kNoMemory && !done, "all throw");
      expect(run(threads, items, items / 2, done) == rl::kNoMemory && done < items, "one throws");
      done = 0;
      expect(run(threads, items, items, done) == rl::kDone && done == items, "none throws");
    }
  const int nested = rl::guarded([] {
    parallel_for(3, 9, [](int item, int) {
      parallel_for(3, 9, [&](int inner, int) {
        if (item == 4 && inner == 4) throw std::runtime_error("another kind");
      });
    });
  });
  expect(nested == rl::kFailed, "nested");
  const auto too_large = [] { rl::scratch_bytes(0, size_t(1) << 60); };
  expect(rl::guarded([&] { parallel_for(2, 64, [&](int, int) { too_large(); }); }) == rl::kNoMemory,
         "a size that no memory has");
  std::atomic<int> done{0};
  expect(run(4, 64, 64, done) == rl::kDone && done == 64, "the team goes on");
  rl_shutdown();
  std::printf("as it should be\n");
}
"""


def test_an_exception_of_a_body_reaches_the_caller_and_the_team_goes_on(tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source, program = tmp_path / "guard.cpp", tmp_path / "guard"
    source.write_text(PROGRAM, "utf-8")
    command = [
        *compiler.split(),
        *FLAGS,
        "-I",
        str(SOURCES),
        str(source),
        str(SOURCES / "team.cpp"),
    ]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "as it should be\n")


def test_every_c_function_is_guarded() -> None:
    sources = "".join(path.read_text("utf-8") for path in sorted(SOURCES.glob("*.cpp")))
    start = r"^(?:const )?[\w:]+[* ]+(rl_\w+)\([^)]*\) (?:try )?\{"
    every = set(re.findall(start, sources, re.M))
    guarded = set(re.findall(start + r"\s*return rl::(?:guarded|made)\(", sources, re.M))
    assert len(guarded) > 15
    assert every - guarded == CANNOT_FAIL
