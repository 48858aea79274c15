"""The loop that every peer runs in its own process: a workload a line in, a result a line out.

Standard library only, for peers live in virtual environments of their own.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Call(NamedTuple):
    """See benchmarks/workloads.py."""

    parent: int | None
    suffix: list[int]
    num_tokens: int


Outputs = list[list[int]]  # generated token ids by call
Run = Callable[[list[Call], list[list[int]]], Outputs]
Generate = Callable[[list[list[int]], list[int]], Outputs]  # (prompts, counts)
RunJson = Callable[[list[Call], dict[str, Any]], Outputs]


def no_json(calls: list[Call], schema: dict[str, Any]) -> Outputs:
    """For peers without constrained generation."""
    raise NotImplementedError("it has no generation under a schema")


def serve(name: str, version: str, run: Run, run_json: RunJson = no_json) -> None:
    """Answer workloads from standard input until it closes."""
    answer({"ready": name, "version": version})
    for line in sys.stdin:
        request = json.loads(line)
        calls = [Call(*call) for call in request["calls"]]
        began, used = time.perf_counter(), time.process_time()
        try:
            schema = request["schema"]
            outputs = run_json(calls, schema) if schema else run(calls, request["levels"])
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
            continue
        told = {"seconds": time.perf_counter() - began, "outputs": outputs,
                "processor_seconds": time.process_time() - used}  # fmt: skip
        answer({**told, "peak_bytes": peak_bytes()})


def peak_bytes() -> int:
    """Peak resident memory of this process.

    From the process's own memory map: what getrusage tells begins with the size of the parent at
    the time of its fork, and lasts through exec.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024


def answer(message: dict[str, Any]) -> None:
    """One line of JSON on the real standard output."""
    sys.__stdout__.write(json.dumps(message) + "\n")
    sys.__stdout__.flush()


def prompts(calls: list[Call], level: list[int], full: dict[int, list[int]]) -> list[list[int]]:
    """Whole prompts of a level's calls, their parents' tokens first."""
    return [
        (full[calls[i].parent] if calls[i].parent is not None else []) + calls[i].suffix
        for i in level
    ]


def in_batches(generate: Generate, most: int) -> Generate:
    """The same for any number of prompts, at most so many at once."""

    def batches(prompts: list[list[int]], counts: list[int]) -> Outputs:
        answers: Outputs = []
        for start in range(0, len(prompts), most):
            part = slice(start, start + most)
            answers += generate(prompts[part], counts[part])
        return answers

    return batches


def by_level(calls: list[Call], levels: list[list[int]], generate: Generate) -> Outputs:
    """Run level by level through generate(prompts, counts), which may batch as it likes.

    Calls that generate nothing only stand for a shared prefix and are not sent.
    """
    full: dict[int, list[int]] = {}
    outputs: Outputs = [[] for _ in calls]
    for level in levels:
        whole = dict(zip(level, prompts(calls, level, full), strict=True))
        asked = [i for i in level if calls[i].num_tokens]
        if asked:
            answers = generate([whole[i] for i in asked], [calls[i].num_tokens for i in asked])
            for i, tokens in zip(asked, answers, strict=True):
                outputs[i] = tokens
        for i in level:
            full[i] = whole[i] + outputs[i]
    return outputs
