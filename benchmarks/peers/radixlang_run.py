"""radixlang itself: every call is a branch forked from its parent's.

Arguments: the model, "auto", "int8" or "fp32", and optionally "unshared": every call in a namespace
of its own, so that the cache finds nothing; or "undrafted": nothing is guessed ahead.
"""

from __future__ import annotations

import itertools
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from radixlang import Runtime, SamplingParams
from radixlang.constraints import JsonSchema

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
    kind = sys.argv[2] if len(sys.argv) > 2 else "auto"
    quantization = None if kind == "fp32" else kind
    drafts = 0 if "undrafted" in sys.argv else None
    with Runtime(sys.argv[1], quantization=quantization, draft_tokens=drafts) as runtime:
        work = run_unshared if "unshared" in sys.argv else run
        serve(
            "radixlang",
            version("radixlang"),
            lambda *workload: work(runtime, *workload),
            lambda *workload: run_json(runtime, *workload),
        )


if __name__ == "__main__":
    main()
