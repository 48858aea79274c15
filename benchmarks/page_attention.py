"""TopMass and TopPages beside exact attention, on real text: KL, pages read, times, and needles.

    python -m benchmarks.page_attention                   # 8,192 tokens, default model
    python -m benchmarks.page_attention --tokens 2048 --positions 32
    python -m benchmarks.page_attention --model model.gguf --tokens 16384
    python -m benchmarks.page_attention --cases 100000    # the property test's check, so often

A text of the repository's pages is read exactly, but for its last tokens, which are then forced one
by one: in each position every setting takes a step in turn, over keys and values of its own, and
its next-token distribution is compared with that of exact attention. The first step of a setting
makes the boxes of all keys and stands apart. Then ten facts are planted in the text, one at each
tenth of it, and asked for with each setting by a runtime; only the answers read less.

No text is longer than the model's context: 8,192 tokens for the default model, so 16,000 need
another one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from benchmarks.quality import print_table
from radixlang import Exact, Runtime, SamplingParams, TopMass, TopPages
from radixlang.attention import Attention
from radixlang.kernels.plan.page_limits import PageLimits
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch, chain
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.model import LoadedModel, plan_for

ROOT = Path(__file__).resolve().parents[1]
CHUNK = 512  # tokens of a step that reads the text
MAX_KL, LEAST_SPEEDUP = 1e-3, 1.5
CITIES = ("Oslo", "Lima", "Cairo", "Tokyo", "Paris", "Delhi", "Quito", "Dakar", "Bern", "Hanoi")
CODES = (4918, 7302, 1645, 8827, 2259, 6071, 3584, 9136, 5490, 1773)
ROUND = 1000  # cases drawn from one seed
ROOM = 64  # tokens for a question and its answer
WEIGHTS = ("int8", "file", "float32")
Row = dict[str, object]


def main() -> int:
    """Print the tables, or check that many cases."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page_attention", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--model", help="a file or folder; by default the default model")
    parser.add_argument("--weights", choices=WEIGHTS, default="int8")
    parser.add_argument("--kv-dtype", default="auto", help="of the cache; see load_model")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--positions", type=int, default=64, help="forced tokens")
    parser.add_argument("--text", type=Path, nargs="+", help="text or .jsonl; default: docs/")
    parser.add_argument("--epsilon", type=float, nargs="*", default=[0.1, 0.03, 0.01, 0.001])
    parser.add_argument("--pages", type=int, nargs="*", default=[8, 16, 32])
    parser.add_argument("--cases", type=int, help="check so many random cases instead")
    parser.add_argument("--seed", type=int, default=0, help="of the cases")
    args = parser.parse_args()
    if args.cases:
        return check_cases(args.cases, args.seed)
    loaded = load(args.model, args.weights, args.kv_dtype)
    if args.tokens > loaded.config.context_length:
        parser.error(f"{loaded.config.name} reads at most {loaded.config.context_length} tokens")
    ids = loaded.tokenizer.encode_run([read(args.text)], at_start=True)
    if len(ids) < args.tokens:
        parser.error(f"the text has {len(ids)} tokens; name more files with --text")
    settings = [Exact(), *map(TopMass, args.epsilon), *map(TopPages, args.pages)]
    print(f"{loaded.config.name}, weights in {args.weights}, keys and values in "
          f"{loaded.config.kv_dtype}, {args.tokens:,} tokens, {args.positions} positions, "
          f"{torch.get_num_threads()} threads\n")  # fmt: skip
    report_steps(loaded, ids[: args.tokens], args.positions, settings)
    report_needles(loaded, ids[: args.tokens], settings)
    return 0


def load(path: str | None, weights: str, kv_dtype: str) -> LoadedModel:
    """A model, by default the default one, with its weights held in one of WEIGHTS."""
    if weights == "float32":
        return load_model(path, quantization=None, dtype=weights, kv_dtype=kv_dtype)
    return load_model(path, quantization=weights, kv_dtype=kv_dtype)


def read(paths: Sequence[Path] | None) -> str:
    """The text of files, by default of the documentation; of .jsonl the values of its records."""
    parts = []
    for path in paths or sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text("utf-8")
        if path.suffix == ".jsonl":
            records = map(json.loads, text.splitlines())
            text = "\n\n".join("\n".join(map(str, record.values())) for record in records)
        parts.append(text)
    return "\n\n".join(parts)


# ---- steps


@dataclass
class Steps:
    """What one setting has done, position by position."""

    attention: Attention
    plan: AttentionPlan
    slots: range
    seconds: list[float] = field(default_factory=list)
    divergence: list[float] = field(default_factory=list)
    same_top: list[bool] = field(default_factory=list)
    num_pages: int = 0
    num_read: int = 0
    omitted_mass: float = 0.0

    def step(self, loaded: LoadedModel, cache: KVCache, token: int, number: int) -> torch.Tensor:
        """Log-probabilities [vocab_size] after one more token."""
        begun = time.perf_counter()
        if number:
            self.plan.advance(np.array([self.slots[number]], np.int32))
        model = loaded.model
        hidden = model.forward(torch.tensor([token]), self.plan.positions, self.plan, cache)
        logits = model.logits(hidden)[0]
        self.seconds.append(time.perf_counter() - begun)
        tallies = self.plan.take_tallies()
        if tallies is not None:
            self.num_pages += int(tallies.all_pages.sum())
            self.num_read += int(tallies.read.sum())
            self.omitted_mass = max(self.omitted_mass, float(tallies.omitted.max()))
        return logits.double().log_softmax(-1)

    def compare(self, exact: torch.Tensor, found: torch.Tensor) -> None:
        """Count one position's distribution."""
        self.divergence.append(float((exact.exp() * (exact - found)).sum()))
        self.same_top.append(bool(exact.argmax() == found.argmax()))


def report_steps(
    loaded: LoadedModel, ids: Sequence[int], num_positions: int, settings: Sequence[Attention]
) -> None:
    """Print a line a setting, and whether one is as fast and as near as was aimed at."""
    all_steps = forced(loaded, ids, num_positions, settings)
    exact_s = statistics.median(all_steps[0].seconds[1:])
    print_table([row_of(steps, exact_s) for steps in all_steps])
    good = [
        str(steps.attention)
        for steps in all_steps[1:]
        if exact_s / statistics.median(steps.seconds[1:]) >= LEAST_SPEEDUP
        and statistics.mean(steps.divergence) <= MAX_KL
    ]
    print(f"\n{LEAST_SPEEDUP} times the speed at a mean KL of at most {MAX_KL}: "
          f"{', '.join(good) or 'none'}\n", flush=True)  # fmt: skip


def row_of(steps: Steps, exact_s: float) -> Row:
    step_s = statistics.median(steps.seconds[1:])
    return {
        "attention": steps.attention,
        "mean KL": f"{statistics.mean(steps.divergence):.2e}",
        "largest KL": f"{max(steps.divergence):.2e}",
        "same top-1": f"{statistics.mean(steps.same_top):.3f}",
        "pages read": f"{steps.num_read / steps.num_pages:.3f}" if steps.num_pages else "1",
        "mass missed, at most": f"{steps.omitted_mass:.2g}",
        "ms a step": f"{step_s * 1e3:.1f}",
        "first step": f"{steps.seconds[0] * 1e3:.1f}",
        "times exact's speed": f"{exact_s / step_s:.2f}",
    }


@torch.no_grad()
def forced(
    loaded: LoadedModel, ids: Sequence[int], num_positions: int, settings: Sequence[Attention]
) -> list[Steps]:
    """Every setting's steps over the last tokens of a text; the first setting is exact."""
    config, prefix = loaded.config, len(ids) - num_positions
    cache = KVCache(
        prefix + len(settings) * num_positions, config.num_layers, config.num_kv_heads,
        config.head_dim, dtype=getattr(torch, config.kv_dtype),
    )  # fmt: skip
    for start in range(0, prefix, CHUNK):
        end = min(start + CHUNK, prefix)
        plan = plan_for(loaded.model, chain((0, end), start))
        loaded.model.forward(torch.tensor(ids[start:end]), plan.positions, plan, cache)
    all_steps = []
    for number, attention in enumerate(settings):
        begin = prefix + number * num_positions
        plan = plan_for(loaded.model, one_token(prefix, begin, attention))
        all_steps.append(Steps(attention, plan, range(begin, begin + num_positions)))
    for number, token in enumerate(ids[prefix:]):
        turn = number % len(settings)
        order = [*range(turn, len(settings)), *range(turn)]
        found = {at: all_steps[at].step(loaded, cache, token, number) for at in order}
        for at, steps in enumerate(all_steps):
            steps.compare(found[0], found[at])
    return all_steps


def one_token(prefix: int, slot: int, attention: Attention) -> TreeBatch:
    """A branch of one new token over the shared text."""
    pages = attention.k if isinstance(attention, TopPages) else 0
    mass = attention.epsilon if isinstance(attention, TopMass) else 0.0
    is_exact = isinstance(attention, Exact)
    return TreeBatch(
        segment_slots=[np.arange(prefix, dtype=np.int32), np.array([slot], np.int32)],
        segment_parent=np.array([-1, 0], np.int32),
        segment_start=np.array([0, prefix], np.int32),
        branch_segment=np.array([1], np.int32),
        branch_query_start=np.array([prefix], np.int32),
        branch_num_queries=np.array([1], np.int32),
        limits=None if is_exact else PageLimits(np.array([pages], np.int32), np.array([mass])),
    )


# ---- needles


def report_needles(loaded: LoadedModel, ids: Sequence[int], settings: Sequence[Attention]) -> None:
    """Print which of the planted facts each setting finds."""
    rows = []
    planted = plant(loaded, ids)
    with Runtime(loaded, num_pages=len(ids) + 4096) as runtime:
        for attention in settings:
            found = [ask(runtime, planted, city, attention) for city in CITIES]
            marks = [str(code) in text for code, (text, _) in zip(CODES, found, strict=True)]
            rows.append({
                "attention": attention,
                "found": f"{sum(marks)} of {len(marks)}",
                **{f"{10 * i + 5} %": "✓" if mark else "–" for i, mark in enumerate(marks)},
                "pages read": f"{statistics.mean(share for _, share in found):.3f}",
            })  # fmt: skip
    print_table(rows)


def plant(loaded: LoadedModel, ids: Sequence[int]) -> list[int]:
    """A text of as many tokens with a fact in each tenth, short of room for a question."""
    needles = [
        loaded.tokenizer.encode_run([f"\n\n{sentence(city)} {code}.\n\n"], at_start=False)
        for city, code in zip(CITIES, CODES, strict=True)
    ]
    hay = list(ids[: len(ids) - sum(map(len, needles)) - ROOM])
    for number, needle in reversed(list(enumerate(needles))):
        at = len(hay) * (2 * number + 1) // (2 * len(needles))
        hay[at:at] = needle
    return hay


def sentence(city: str) -> str:
    return f"The secret code of {city} is"


def ask(
    runtime: Runtime, planted: Sequence[int], city: str, attention: Attention
) -> tuple[str, float]:
    """The answer, and the share of pages that it read."""
    question = f"\n\nQuestion: What is the secret code of {city}?\nAnswer: {sentence(city)}"
    branch = runtime.new_branch()
    branch.extend([*planted, *runtime.encode(question)])
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, attention=attention)
    done = branch.generate(params).result()
    branch.release()
    usage = done.usage
    share = usage.num_pages_read / usage.num_pages if usage.num_pages else 1.0
    return runtime.decode(done.token_ids), share


# ---- cases


def check_cases(num_cases: int, seed: int) -> int:
    """The property that tests hold in a few cases, in many more; 1 where one breaks it."""
    from radixlang.runtime.process.native_library import native_library
    from tests.kernels.native.page_cases import check_many

    library = native_library()
    if library is None:
        print("there is no native library: no C++ compiler, or RADIXLANG_NATIVE is empty")
        return 1
    begun, left_out = time.perf_counter(), 0
    for done in range(0, num_cases, ROUND):
        count = min(ROUND, num_cases - done)
        left_out += check_many(library, count, seed + done)
        print(f"{done + count:,} cases hold in {time.perf_counter() - begun:.0f} s; {left_out:,} "
              "pages were left out in them", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
