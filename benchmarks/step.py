"""Where the time of a decode step goes, and what of it is the runtime's own upkeep.

    python -m benchmarks.step
    python -m benchmarks.step --branches 32 --shared 1024 --tokens 48 --runs 3

Branches of `--private` tokens each over one shared prefix decode side by side, token by token,
nothing guessed ahead; the figures are `Runtime.profile()` over the steps, medians of the runs.
Upkeep is all that is neither the model nor sampling: scheduling, the attention plan, masks, the
tree, text, and the engine's Python. The bounds are 5 % of a step of SmolLM2, and 2 % with layers
as of a model of 1B parameters. For those a decoder of random weights is made in the shape of
Llama 3.2 1B, in 8 bits, `--layers` of its 16, with SmolLM2's vocabulary. Exit status 1: missed.
"""

from __future__ import annotations

import argparse
import statistics
import time
import zlib
from collections.abc import Callable

import torch

from benchmarks.workloads import corpus
from radixlang import Runtime, SamplingParams
from radixlang.runtime.metrics.stats import PROFILE_PARTS
from radixlang.runtime.models.config import ModelConfig, RopeConfig
from radixlang.runtime.models.gguf.file import GgufFile
from radixlang.runtime.models.int8.build import build_int8_decoder
from radixlang.runtime.models.loader import load_gguf_tokenizer
from radixlang.runtime.models.locate import find_default_model
from radixlang.runtime.models.model import LoadedModel
from radixlang.runtime.process.native_library import native_library

MARGIN = 8  # tokens of a branch before and after the steps that count
NOT_UPKEEP = ("model", "sampling")
Profile = dict[str, float]


def main() -> int:
    """Print the table; the exit status says whether both bounds hold."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--branches", type=int, default=32)
    parser.add_argument("--shared", type=int, default=1024, help="tokens of the shared prefix")
    parser.add_argument("--private", type=int, default=16, help="prompt tokens of each branch")
    parser.add_argument("--tokens", type=int, default=48, help="tokens decoded a branch and run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--layers", type=int, default=16, help="of the model of 1B's size")
    args = parser.parse_args()
    models: list[tuple[str, float, Callable[[], LoadedModel | None]]] = [
        ("SmolLM2-135M", 0.05, lambda: None),
        (f"random, {args.layers} layers of 1B's size", 0.02, lambda: large(args.layers)),
    ]
    print(f"{args.branches} branches of {args.private} + {args.tokens} tokens over {args.shared}\n")
    print("| ms a step | " + " | ".join(PROFILE_PARTS) + " | all | upkeep | bound |")
    print("|---" * (len(PROFILE_PARTS) + 4) + "|")
    shares = []
    for name, bound, make in models:
        found = measure(make(), args)
        shares.append((share := upkeep(found), bound))
        cells = [f"{found[part] * 1e3:.2f}" for part in PROFILE_PARTS]
        total = sum(found.values()) * 1e3
        print(f"| {name} | {' | '.join(cells)} | {total:.1f} | {share:.1%} | {bound:.0%} |")
    return 0 if all(share < bound for share, bound in shares) else 1


def upkeep(step: Profile) -> float:
    """Part of a step, 0 to 1, that is neither the model nor sampling."""
    return sum(step[part] for part in PROFILE_PARTS if part not in NOT_UPKEEP) / sum(step.values())


def measure(model: LoadedModel | None, args: argparse.Namespace) -> Profile:
    """Seconds a decode step by part, of each the median of the runs."""
    with Runtime(model, draft_tokens=0) as runtime:
        ids = runtime.encode(corpus()[: 16 * (args.shared + args.branches * args.private)])
        runs = [decode(runtime, ids, args) for _ in range(args.runs)]
    return {part: statistics.median(run[part] for run in runs) for part in PROFILE_PARTS}


def decode(runtime: Runtime, ids: list[int], args: argparse.Namespace) -> Profile:
    """Seconds a step by part, of steps in which every branch decodes: none begins or ends."""
    root = runtime.new_branch()
    root.extend(ids[: args.shared])
    branches = root.fork(args.branches)
    for number, branch in enumerate(branches):
        at = args.shared + number * args.private
        branch.extend(ids[at : at + args.private])
    params = SamplingParams(max_tokens=args.tokens + 2 * MARGIN, temperature=0, ignore_eos=True)
    generations = [branch.generate(params) for branch in branches]
    wait_for(lambda: runtime.stats().num_generated_tokens >= MARGIN * args.branches)
    runtime.reset_stats()
    wait_for(lambda: runtime.stats().num_steps >= args.tokens)
    found = runtime.profile()
    for generation in generations:
        generation.result()
    for branch in (root, *branches):
        branch.release()
    return {part: found[part] / found["num_steps"] for part in PROFILE_PARTS}


def wait_for(is_reached: Callable[[], bool]) -> None:
    """Look now and then; a look costs the engine some microseconds."""
    while not is_reached():
        time.sleep(0.02)


def large(num_layers: int) -> LoadedModel:
    """Random weights in the shape of Llama 3.2 1B, in 8 bits, with SmolLM2's tokenizer."""
    tokenizer = load_gguf_tokenizer(GgufFile(find_default_model()))
    config = ModelConfig(
        name="random", family="llama", num_layers=num_layers, hidden_size=2048,
        intermediate_size=8192, num_heads=32, num_kv_heads=8, head_dim=64,
        vocab_size=tokenizer.vocab_size, context_length=8192, norm_eps=1e-5,
        windows=(None,) * num_layers, ropes=(RopeConfig(theta=500000.0, rotary_dim=64),),
        layer_rope=(0,) * num_layers, attention_scale=64**-0.5, tie_embeddings=True,
        kv_dtype="bfloat16",
    )  # fmt: skip
    decoder = build_int8_decoder(config, Noise(config), library=native_library())
    return LoadedModel(decoder, tokenizer, config, quantization="int8")


class Noise:
    """A weight source of seeded noise, made when it is asked for: nothing is kept."""

    origin = "noise"
    pairs_side_by_side = True
    norm_offset_folded = True

    def __init__(self, config: ModelConfig) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        query, key = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
        layer = {
            "q": (query, hidden), "k": (key, hidden), "v": (key, hidden), "o": (hidden, query),
            "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
            "attn_norm": (hidden,), "mlp_norm": (hidden,),
        }  # fmt: skip
        self._shapes: dict[str, tuple[int, ...]] = {
            "embed.weight": (config.vocab_size, hidden), "norm.weight": (hidden,),
        } | {
            f"layers.{i}.{name}.weight": shape
            for i in range(config.num_layers) for name, shape in layer.items()
        }  # fmt: skip

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def take(self, name: str) -> torch.Tensor:
        """Noise for a matrix, ones for a norm."""
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape)
        noise = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.randn(shape, generator=noise) * shape[1] ** -0.5

    def lookup(self, name: str) -> None:
        """No matrix is stored anywhere."""


if __name__ == "__main__":
    raise SystemExit(main())
