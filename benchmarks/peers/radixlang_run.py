"""radixlang itself: every call is a branch forked from its parent's.

Arguments: the model; "auto", "file", "int8" or "fp32"; and parts to do without:

unshared    every call is in a namespace of its own, so that the cache finds nothing
own-reads   every branch reads its whole path by itself: no key is read once for many
unbatched   one call decodes at a time
undrafted   nothing is guessed ahead
torch       8-bit layers run in torch, without the native library
"""

from __future__ import annotations

import itertools
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from radixlang import Runtime, SamplingParams
from radixlang.constraints.specs import JsonSchema
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import path_of
from radixlang.runtime.forward import model_runner as runner

sys.path.insert(0, str(Path(__file__).parent))
from worker import Call, Outputs, by_level, serve

_alone = itertools.count()


def run_unshared(runtime: Runtime, calls: list[Call], levels: list[list[int]]) -> Outputs:
    """Whole prompts, level by level, each in a namespace of its own."""

    def generate(prompts: list[list[int]], counts: list[int]) -> Outputs:
        futures = []
        for prompt, count in zip(prompts, counts, strict=True):
            branch = runtime.new_branch(namespace=f"alone {next(_alone)}")
            branch.extend(prompt)
            futures.append(branch.generate(greedy(count)))
            branch.release()
        return [list(future.result().token_ids) for future in futures]

    runtime.flush_cache()
    return by_level(calls, levels, generate)


def read_alone() -> None:
    """From now on each branch of a step is a segment of its own, whatever paths have in common."""
    shared = runner.tree_batch
    runner.tree_batch = lambda batch: apart(shared(batch))


def apart(batch: TreeBatch) -> TreeBatch:
    """The same branches over the same slots, as a forest of whole paths."""
    num = len(batch.branch_segment)
    return TreeBatch(
        segment_slots=[
            path_of(batch, int(segment))[0].numpy().astype(np.int32)
            for segment in batch.branch_segment
        ],
        segment_parent=np.full(num, -1, np.int32),
        segment_start=np.zeros(num, np.int32),
        branch_segment=np.arange(num, dtype=np.int32),
        branch_query_start=batch.branch_query_start,
        branch_num_queries=batch.branch_num_queries,
    )


def greedy(num_tokens: int) -> SamplingParams:
    """A fixed number of likeliest tokens."""
    return SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)


def run(runtime: Runtime, calls: list[Call], levels: list[list[int]]) -> Outputs:
    """All calls at once: the engine knows what has to wait for what."""
    runtime.flush_cache()
    branches, futures = {}, {}
    for i, call in enumerate(calls):
        branch = runtime.new_branch() if call.parent is None else branches[call.parent].fork(1)[0]
        branches[i] = branch
        branch.extend(call.suffix)
        if call.num_tokens:
            futures[i] = branch.generate(greedy(call.num_tokens))
    outputs: Outputs = [[] for _ in calls]
    for i, future in futures.items():
        outputs[i] = list(future.result().token_ids)
    for branch in branches.values():
        branch.release()
    return outputs


def run_json(runtime: Runtime, calls: list[Call], schema: dict[str, Any]) -> Outputs:
    """All calls at once, each until its value is complete."""
    runtime.flush_cache()
    constraint = runtime.compile_constraint(JsonSchema.of(schema, whitespace=1))
    futures = []
    for call in calls:
        branch = runtime.new_branch()
        branch.extend(call.suffix)
        params = SamplingParams(max_tokens=call.num_tokens, temperature=0)
        futures.append(branch.generate(params, constraint=constraint))
        branch.release()
    return [list(future.result().token_ids) for future in futures]


def main() -> None:
    """Serve workloads."""
    _, model, kind, *without = sys.argv
    if "own-reads" in without:
        read_alone()
    if "torch" in without:
        os.environ["RADIXLANG_NATIVE"] = ""
    options = {
        "quantization": None if kind == "fp32" else kind,
        "draft_tokens": 0 if "undrafted" in without else None,
        "max_running": 1 if "unbatched" in without else 256,
    }
    with Runtime(model, **options) as runtime:
        work = run_unshared if "unshared" in without else run
        serve(
            "radixlang",
            version("radixlang"),
            lambda *workload: work(runtime, *workload),
            lambda *workload: run_json(runtime, *workload),
        )


if __name__ == "__main__":
    main()
