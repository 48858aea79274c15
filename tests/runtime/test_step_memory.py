"""A step without memory fails its own programs, whichever thread met it, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlang.errors import RequestError, StepMemoryError
from radixlang.kernels.native.build import find_compiler
from radixlang.sampling_params import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)

# posix_memalign that fails on every thread but those spared
SHIM = r"""
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>
static const long* spared = 0;  // ends with 0
extern "C" void spare(const long* threads) { spared = threads; }
extern "C" int posix_memalign(void** memory, size_t align, size_t size) {
  static int (*real)(void**, size_t, size_t) =
      (int (*)(void**, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  bool fails = spared != 0;
  const long own = syscall(SYS_gettid);
  for (const long* thread = spared; thread && *thread; ++thread) fails &= *thread != own;
  return fails ? ENOMEM : real(memory, align, size);
}
"""

# Threads of the interpreter have memory, the library's own have none.
SCRIPT = r"""
import ctypes, sys, threading
import torch
from radixlang import Runtime, SamplingParams
from radixlang.errors import StepMemoryError
from tests.conftest import make_tiny_model

GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
spare = ctypes.CDLL(sys.argv[1]).spare
torch.set_num_threads(2)
runtime = Runtime(make_tiny_model(), seed=0, num_pages=4096, debug=True)

def ask(first, num_tokens=700):
    branch = runtime.new_branch()
    branch.extend([3 + (first + 7 * i) % 400 for i in range(num_tokens)])
    generation = branch.generate(GREEDY)
    try:
        return list(generation.result().token_ids)
    finally:
        branch.release()

ask(0, 2)  # the engine's thread is there from now on
known = [thread.native_id for thread in threading.enumerate()]
threads = (ctypes.c_long * (len(known) + 1))(*known, 0)
spare(threads)
try:
    for first in range(500):  # until the team takes part
        ask(first)
except StepMemoryError as error:
    print(type(error.__cause__).__name__, "max_batch_tokens" in str(error))
spare(None)
again = ask(first)
runtime.flush_cache()
print(again == ask(first), runtime.audit())
runtime.close()
"""


def test_a_thread_of_the_team_without_memory_fails_that_step_alone(tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C++ compiler, and a loader that takes LD_PRELOAD")
    source, shim = tmp_path / "shim.cpp", tmp_path / "shim.so"
    source.write_text(SHIM, "utf-8")
    subprocess.run(
        [*compiler.split(), "-shared", "-fPIC", str(source), "-o", str(shim), "-ldl"],
        check=True, timeout=120,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(shim)], cwd=ROOT, capture_output=True, text=True,
        timeout=300, env=os.environ | {"LD_PRELOAD": str(shim)},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["MemoryError True", "True []"], done.stderr


def test_the_others_of_the_queue_go_on(
    make_runtime: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(max_batch_tokens=16, order="fcfs")
    model = runtime.loaded.model
    real, raised = model.forward, list[str]()

    def forward(*args: Any, **more: Any) -> torch.Tensor:
        if not raised:
            raised.append("once")
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return real(*args, **more)

    monkeypatch.setattr(model, "forward", forward)
    branches = [runtime.new_branch() for _ in range(3)]
    generations = []
    for number, branch in enumerate(branches):
        branch.extend([5 + number] * 12)
        generations.append(branch.generate(GREEDY))
    failed = [generation.exception(60) for generation in generations]
    assert isinstance(failed[0], StepMemoryError)
    assert "step of 16 tokens" in str(failed[0]) or "step of 12 tokens" in str(failed[0])
    assert failed[2] is None
    assert len(generations[2].result().token_ids) == 4
    for branch in branches:
        branch.release()
    assert runtime.audit() == []


def test_another_fault_is_not_said_to_be_one_of_memory(
    make_runtime: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime()

    def forward(*args: Any, **more: Any) -> torch.Tensor:
        raise RuntimeError("shapes disagree")

    monkeypatch.setattr(runtime.loaded.model, "forward", forward)
    branch = runtime.new_branch()
    branch.extend([5] * 12)
    error = branch.generate(GREEDY).exception(60)
    branch.release()
    assert isinstance(error, RequestError)
    assert not isinstance(error, StepMemoryError)
    assert "please report" in str(error)
