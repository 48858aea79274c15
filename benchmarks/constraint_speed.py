"""What masks, forks and constraints cost, with the default model's vocabulary and weights."""

from __future__ import annotations

import gzip
import json
import time
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np

from benchmarks.constraint_schemas import DATA, MASKBENCH
from radixlang.constraints.specs import JsonSchema, Regex, canonical_json
from radixlang.errors import ConstraintError
from radixlang.runtime.constraints.compiled import CompiledConstraint, ConstraintCompiler
from radixlang.runtime.constraints.mask_worker import MaskWorker
from radixlang.runtime.constraints.vocabulary import Vocabulary
from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams

Row = tuple[str, str, str]
NUM_TOKENS = 96
NUM_ROUNDS = 5
NUM_ENGINE_CASES = 200


@lru_cache(maxsize=1)
def _runtime() -> Runtime:
    return Runtime(seed=0)


def _compiler() -> ConstraintCompiler:
    loaded = _runtime().loaded
    vocabulary = Vocabulary.of(
        loaded.tokenizer, loaded.config.vocab_size, sorted(loaded.eos_token_ids)
    )
    return ConstraintCompiler(vocabulary, max_cached=2)


def mask_rows() -> list[Row]:
    """Masks along valid texts of the MaskBench sample, and the compiling of its schemas."""
    if not MASKBENCH.exists():
        return [("masks", "", f"{MASKBENCH.name} is not in {DATA}")]
    compiler, encode = _compiler(), _runtime().loaded.tokenizer.encode_run
    masks: list[float] = []
    compiling: list[float] = []
    for case in _cases():
        begun = time.perf_counter()
        try:
            compiled = compiler.compile(JsonSchema(canonical_json(case["schema"])))
        except ConstraintError:
            continue
        compiling.append(time.perf_counter() - begun)
        for test in case["tests"][:2]:
            text = json.dumps(test["data"], ensure_ascii=False)
            masks.extend(_mask_times(compiled, encode([text], at_start=False)))
    micro, milli = np.percentile(masks, [50, 99]) * 1e6, np.percentile(compiling, [50, 99]) * 1e3
    return [
        ("mask", "p50 <= 25 us, p99 <= 1 ms",
         f"p50 {micro[0]:.0f} us, p99 {micro[1]:.0f} us over {len(masks)} masks"),
        ("compiling, first mask included", "p50 <= 3 ms, p99 <= 100 ms",
         f"p50 {milli[0]:.1f} ms, p99 {milli[1]:.0f} ms, most {max(compiling) * 1e3:.0f} ms"),
    ]  # fmt: skip


def _cases() -> list[Any]:
    with gzip.open(MASKBENCH, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _mask_times(compiled: CompiledConstraint, ids: list[int]) -> list[float]:
    matcher, times = compiled.matcher(), []
    row = np.zeros(compiled.vocabulary.num_words, dtype=np.int32)
    for token in ids[:400]:
        begun = time.perf_counter()
        matcher.fill_bitmask(row)
        times.append(time.perf_counter() - begun)
        if not matcher.num_valid([token]):
            break
        matcher.consume([token])
    return times


def engine_row() -> list[Row]:
    """A token under our matcher (mask, token taken, forced text, end) against the engine by hand.

    Both take the tokens of the same texts of the MaskBench sample, turn and turn about.
    """
    if not MASKBENCH.exists():
        return [("against the engine by hand", "", f"{MASKBENCH.name} is not in {DATA}")]
    compiler, encode = _compiler(), _runtime().loaded.tokenizer.encode_run
    ours_s = bare_s = 0.0
    num_tokens = 0
    for case in _cases()[:NUM_ENGINE_CASES]:
        try:
            compiled = compiler.compile(JsonSchema(canonical_json(case["schema"])))
        except ConstraintError:
            continue
        for test in case["tests"][:2]:
            text = json.dumps(test["data"], ensure_ascii=False)
            ids = encode([text], at_start=False)[:400]
            ids = ids[: compiled.matcher().num_valid(ids)]
            num_tokens += len(ids)
            ours_s += _ours(compiled, ids)
            bare_s += _by_hand(compiled, ids)
    each = f"{1e6 * ours_s / num_tokens:.0f} against {1e6 * bare_s / num_tokens:.0f} us a token"
    return [("a token, ours and engine by hand", "", f"{each}, ratio {ours_s / bare_s:.2f}")]


def _ours(compiled: CompiledConstraint, ids: list[int]) -> float:
    row = np.zeros(compiled.vocabulary.num_words, dtype=np.int32)
    matcher = compiled.matcher()
    begun = time.perf_counter()
    for token in ids:
        matcher.fill_bitmask(row)
        matcher.consume((token,))
        if not matcher.is_finished:
            matcher.forced_tokens()
    return time.perf_counter() - begun


def _by_hand(compiled: CompiledConstraint, ids: list[int]) -> float:
    engine = compiled.vocabulary.matcher(compiled.grammar)
    begun = time.perf_counter()
    for token in ids:
        np.frombuffer(engine.compute_bitmask(), dtype=np.int32)
        engine.consume_token(token)
        if not engine.is_stopped():
            engine.compute_ff_tokens()
    return time.perf_counter() - begun


def fork_row() -> list[Row]:
    """64 forks of a matcher, and their 64 masks in parallel."""
    compiler = _compiler()
    small = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    large = {"type": "object", "properties": {f"p{i}": {"anyOf": [small, {"type": "string"}]}
                                              for i in range(400)}}  # fmt: skip
    found = []
    for schema in (small, large):
        matcher = compiler.compile(JsonSchema.of(schema)).matcher()
        matcher.consume(matcher.forced_tokens())
        times = []
        for _ in range(NUM_ROUNDS):
            begun = time.perf_counter()
            forks = [matcher.fork() for _ in range(64)]
            times.append(time.perf_counter() - begun)
        for fork in forks:
            fork._row = None
        worker = MaskWorker(2)
        begun = time.perf_counter()
        worker.compute(forks)
        masks = time.perf_counter() - begun
        found.append(f"{median(times) * 1e3:.2f} ms (masks {masks * 1e3:.1f} ms)")
    return [("64 forks, small and large schema", "<= 2 ms, <= 25 ms", ", ".join(found))]


def generation_rows() -> list[Row]:
    """Tokens a second under a constraint against none, alternating, at 1 and 32 branches.

    The regex forces nothing: every token is sampled under a mask. The schema's fixed text is
    appended without sampling.
    """
    regex = Regex(r"(?s)[^\x00]{2000,}")
    keys = ["title", "author", "publisher", "edition", "language"]
    schema = JsonSchema.of(
        {
            "type": "object",
            "properties": {k: {"type": "string", "minLength": 24, "maxLength": 24} for k in keys},
            "required": keys,
            "additionalProperties": False,
        },
        whitespace=0,
    )
    rows: list[Row] = []
    for num, goal in ((1, ">= 97 %"), (32, ">= 90 %")):
        ratios: dict[str, list[float]] = {"all sampled": [], "text forced": []}
        for _ in range(NUM_ROUNDS):
            free = _tokens_per_second(num, None)
            ratios["all sampled"].append(_tokens_per_second(num, regex) / free)
            ratios["text forced"].append(_tokens_per_second(num, schema) / free)
        measured = ", ".join(f"{n} {100 * median(r):.0f} %" for n, r in ratios.items())
        rows.append((f"constrained speed, {num} branches", goal, measured))
    return rows


def _tokens_per_second(num: int, spec: Any) -> float:
    runtime = _runtime()
    runtime.flush_cache()
    constraint = None if spec is None else runtime.compile_constraint(spec)
    trunk = runtime.new_branch()
    trunk.extend("A record of a book, as JSON:\n")
    trunk.tokens().result()
    branches = trunk.fork(num)
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, ignore_eos=spec is None, seed=1)
    begun = time.perf_counter()
    running = [branch.generate(params, constraint) for branch in branches]
    done = sum(_num_generated(generation) for generation in running)
    elapsed = time.perf_counter() - begun
    for branch in [trunk, *branches]:
        branch.release()
    return done / elapsed


def _num_generated(generation: Any) -> int:
    """Tokens of a generation; one that max_tokens cut inside its constraint counts in full."""
    try:
        return int(generation.result().usage.num_generated_tokens)
    except ConstraintError:
        return NUM_TOKENS
