"""The ops of an 8-bit decoder as machine code: torch's Inductor writes them in C++, once a shape.

In plain torch a layer's rows are gone over some fifty times, compiled five times. Compiling takes
a C++ compiler and half a minute, so the result is kept on disk. It depends on the model's shape,
the CPU, torch and this package's code, not on weights. Without it the ops run in plain torch.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from radixlang.kernels.cpu.attention import packed
from radixlang.progress import each
from radixlang.runtime.models import decoder, rotary
from radixlang.runtime.models.int8 import compile_worker as compile_ops
from radixlang.runtime.models.int8 import ops as int8_ops
from radixlang.runtime.models.int8 import rotation
from radixlang.runtime.models.int8.ops import Int8Ops, OpsShape, plain_ops
from radixlang.runtime.process.disk_cache import digest, drop_older, kept_root

NAMES = ("heads", "activated", "add_read", "merged", "attended")  # longest first
NARROWEST = 256  # hidden size; smaller models are played with for less time than compiling takes
LIMIT_S = 300  # of compiling
_FAILED = "failed.txt"
_WHAT = "compiling for this CPU, once"
_VARIABLES = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}  # no trial of every instruction set
_LOOK_EVERY_S = 0.1
_COMPILERS = ("g++", "clang++")
log = logging.getLogger("radixlang.runtime")


def compiled_ops(shape: OpsShape) -> Int8Ops:
    """The compiled ops of a shape, made now if they are not there yet; else the plain ones."""
    plain, folder = plain_ops(shape), ops_folder(shape)
    if folder is None or not _make_sure(folder, shape):
        return plain
    try:
        made: dict[str, Any] = {name: _load(folder / f"{name}.so") for name in NAMES}
        return replace(plain, **made)
    except (AttributeError, OSError, RuntimeError) as error:
        log.warning("compiled ops are not used, %s cannot be loaded: %s", folder, error)
        return plain


def ops_folder(shape: OpsShape) -> Path | None:
    """Where the ops of a shape are, in $RADIXLANG_COMPILED or `home()`, or will be.

    None where the variable is empty, off Linux, without a C++ compiler, and for narrow models.
    """
    root = kept_root("RADIXLANG_COMPILED", "compiled")
    can_compile = sys.platform == "linux" and find_compiler() is not None
    if root is None or not can_compile or shape.hidden_size < NARROWEST:
        return None
    return root / f"{digest([repr(shape)])}-{digest(_made_from())}"


def find_compiler() -> str | None:
    """The C++ compiler that Inductor will use: $CXX, or one on the path."""
    return os.environ.get("CXX") or next(filter(None, map(shutil.which, _COMPILERS)), None)


def _make_sure(folder: Path, shape: OpsShape) -> bool:
    """Whether all ops are in the folder, compiled now if need be; skipped after a failed build."""
    are_there = all((folder / f"{name}.so").exists() for name in NAMES)
    if are_there or (folder / _FAILED).exists():
        return are_there
    with contextlib.suppress(OSError):
        drop_older(folder)
        folder.mkdir(parents=True, exist_ok=True)
        failure = _compile(folder, shape)
        if not failure:
            return True
        (folder / _FAILED).write_text(failure, "utf-8")
        log.warning(
            "the C++ compiler failed, so 8-bit models decode slower than they could; what it said "
            "is in %s, delete that file to try again", folder / _FAILED
        )  # fmt: skip
    return False


def _compile(folder: Path, shape: OpsShape) -> str:
    """Compile all ops, two at a time; returns what went wrong, empty if nothing did."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        reports = [Path(scratch) / "first.txt", Path(scratch) / "second.txt"]
        shares = zip((NAMES[::2], NAMES[1::2]), reports, strict=True)
        processes = [_start(folder, shape, names, report) for names, report in shares]
        try:
            made = list(each(_made(folder, processes), _WHAT, len(NAMES), "op"))
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if len(made) == len(NAMES):
            return ""
        return f"{len(made)} of {len(NAMES)} made in {LIMIT_S} s at most\n" + "\n".join(
            report.read_text("utf-8", "replace") for report in reports
        )


def _start(
    folder: Path, shape: OpsShape, names: tuple[str, ...], report: Path
) -> subprocess.Popen[bytes]:
    """A process that compiles; Inductor's files go to the folder of its report."""
    command = [sys.executable, "-m", "radixlang.runtime.models.int8.compile_worker"]
    scratch = str(report.parent)
    variables = os.environ | _VARIABLES | {"TORCHINDUCTOR_CACHE_DIR": scratch, "TMPDIR": scratch}
    with report.open("wb") as told:
        return subprocess.Popen(
            [*command, json.dumps(asdict(shape)), str(folder), *names],
            stdin=subprocess.DEVNULL, stdout=told, stderr=told, env=variables,
        )  # fmt: skip


def _made(folder: Path, processes: list[subprocess.Popen[bytes]]) -> Iterator[str]:
    """The ops as they appear in the folder; ends with the processes, or at the limit."""
    deadline, waiting = time.monotonic() + LIMIT_S, list(NAMES)
    while waiting and time.monotonic() < deadline:
        has_ended = all(process.poll() is not None for process in processes)
        for name in [name for name in waiting if (folder / f"{name}.so").exists()]:
            waiting.remove(name)
            yield name
        if has_ended:
            return
        time.sleep(_LOOK_EVERY_S)


def _load(path: Path) -> Callable[..., list[torch.Tensor]]:
    """An op as it is called; absent tensors are not in its machine code."""
    run = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1).run

    def op(*tensors: torch.Tensor | None) -> list[torch.Tensor]:
        result: list[torch.Tensor] = run([tensor for tensor in tensors if tensor is not None])
        return result

    return op


def _made_from() -> Iterator[str]:
    """What the machine code depends on apart from the shape."""
    yield f"{torch.__version__} {platform.machine()} {os.cpu_count()} {_cpu_flags()}"
    for part in (int8_ops, compile_ops, decoder, rotary, rotation, packed):
        yield inspect.getsource(part)


def _cpu_flags() -> str:
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return ""
