"""`radixlang bench`: three figures of this machine, with the counts that explain them."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

from radixlang.cli._runtime import Opened, opened_runtime
from radixlang.errors import ParameterError
from radixlang.explain.savings import savings
from radixlang.sampling_params import SamplingParams
from radixlang.units import bytes_text

_WORDS = "The river runs past the old mill and the garden where the children read. "


def run(args: argparse.Namespace) -> int:
    """Returns 0; sizes that cannot be served raise an error."""
    for name in ("shared", "branches", "private", "tokens"):
        if getattr(args, name) < 1:
            raise ParameterError(f"--{name} must be at least 1, got {getattr(args, name)}")
    with opened_runtime(args, seed=0) as runtime:
        _warm_up(runtime)
        model = runtime.model_name
        figures = {
            "prefill": _prefill(runtime, args.shared),
            "stream": _stream(runtime, args.shared, args.tokens),
            "fork": _fork(runtime, args),
        }
    if args.json:
        print(json.dumps({"model": model, **figures}, indent=2))
    else:
        print(_table(model, figures, args))
    return 0


def _greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)


def _token_ids(runtime: Opened, num_tokens: int, salt: int = 0) -> list[int]:
    ids: Sequence[int] = runtime.encode(f"{salt}. " + _WORDS * (num_tokens // 10 + 1))
    return list(ids[:num_tokens])


def _warm_up(runtime: Opened) -> None:
    branch = runtime.new_branch()
    branch.extend(_token_ids(runtime, 16, salt=9))
    branch.generate(_greedy(2)).result()
    branch.release()


def _clean(runtime: Opened) -> None:
    runtime.flush_cache()
    runtime.reset_stats()


def _prefill(runtime: Opened, num_tokens: int) -> dict[str, float]:
    _clean(runtime)
    branch = runtime.new_branch()
    branch.extend(_token_ids(runtime, num_tokens))
    start = time.perf_counter()
    branch.generate(_greedy(1)).result()
    seconds = time.perf_counter() - start
    branch.release()
    return {"num_tokens": num_tokens, "seconds": seconds, "tokens_a_second": num_tokens / seconds}


def _stream(runtime: Opened, num_prompt: int, num_tokens: int) -> dict[str, float]:
    """Decoding only: the prompt is in the cache when the clock starts."""
    branch = runtime.new_branch()
    branch.extend(_token_ids(runtime, num_prompt))
    branch.generate(_greedy(1)).result()
    start = time.perf_counter()
    branch.generate(_greedy(num_tokens)).result()
    seconds = time.perf_counter() - start
    branch.release()
    return {"num_tokens": num_tokens, "seconds": seconds, "tokens_a_second": num_tokens / seconds}


def _fork(runtime: Opened, args: argparse.Namespace) -> dict[str, float]:
    """A whole fork: shared prefix, branches' own prompts, and decoding."""
    _clean(runtime)
    start = time.perf_counter()
    root = runtime.new_branch()
    root.extend(_token_ids(runtime, args.shared))
    branches = root.fork(args.branches)
    answers = []
    for index, branch in enumerate(branches):
        branch.extend(_token_ids(runtime, args.private, salt=index))
        answers.append(branch.generate(_greedy(args.tokens)))
    for answer in answers:
        answer.result()
    seconds = time.perf_counter() - start
    found = savings(runtime)
    for branch in (root, *branches):
        branch.release()
    return {
        "seconds": seconds,
        "generated_tokens_a_second": args.branches * args.tokens / seconds,
        **found.to_json(),
    }


def _table(model: str, figures: dict[str, dict[str, float]], args: argparse.Namespace) -> str:
    prefill, stream, fork = figures["prefill"], figures["stream"], figures["fork"]
    return "\n".join([
        f"model    {model}",
        f"prefill  {prefill['num_tokens']:,} tokens in {prefill['seconds']:.2f} s: "
        f"{prefill['tokens_a_second']:,.0f} tokens a second",
        f"stream   {stream['num_tokens']:,} tokens in {stream['seconds']:.2f} s: "
        f"{stream['tokens_a_second']:,.1f} tokens a second",
        f"fork     {args.branches} branches on {args.shared:,} shared tokens, "
        f"{args.private} + {args.tokens} tokens each, in {fork['seconds']:.2f} s: "
        f"{fork['generated_tokens_a_second']:,.1f} generated tokens a second",
        f"         {fork['num_prompt_tokens']:,} prompt tokens, {fork['num_computed_tokens']:,} "
        f"computed; KV {bytes_text(fork['kv_bytes'])}, unshared "
        f"{bytes_text(fork['kv_bytes_unshared'])}",
    ])  # fmt: skip
