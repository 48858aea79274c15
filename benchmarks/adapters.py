"""What adapters cost: branches over one prompt, without adapters and spread over several.

    python -m benchmarks.adapters [--branches 32] [--adapters 4] [--rank 8] [--rounds 5]

Both run in turn in one process on the default model, and the ratio of their medians is printed. The
adapters are random, on all projections of all layers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from radixlang.protocol import AdapterUse
from radixlang.runtime.adapters.peft_folder import CONFIG, WEIGHTS
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams

NUM_PROMPT_TOKENS = 512


def write_random_adapter(folder: Path, config: ModelConfig, rank: int, seed: int) -> None:
    """A folder as PEFT writes it, with small random matrices for all projections."""
    noise = torch.Generator().manual_seed(seed)
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    sizes = {
        "self_attn.q": (query, hidden), "self_attn.k": (key, hidden),
        "self_attn.v": (key, hidden), "self_attn.o": (hidden, query),
        "mlp.gate": (inner, hidden), "mlp.up": (inner, hidden), "mlp.down": (hidden, inner),
    }  # fmt: skip
    tensors = {}
    for layer in range(config.num_layers):
        for name, (rows, columns) in sizes.items():
            module = f"base_model.model.model.layers.{layer}.{name}_proj"
            for side, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                tensors[f"{module}.lora_{side}.weight"] = (
                    torch.randn(shape, generator=noise) * 0.1 * shape[1] ** -0.5
                )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    (folder / CONFIG).write_text(json.dumps(about), encoding="utf-8")


def seconds(runtime: Runtime, names: list[str | None], num_branches: int, num_tokens: int) -> float:
    """Time of branches over one cached prompt; branch i uses adapter i modulo their number."""
    root = runtime.new_branch()
    root.extend(list(range(100, 100 + NUM_PROMPT_TOKENS)))
    once = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    root.fork(1)[0].generate(once).result()
    params = SamplingParams(max_tokens=num_tokens, temperature=1.0, seed=1, ignore_eos=True)
    branches = root.fork(num_branches)
    for i, branch in enumerate(branches):
        name = names[i % len(names)]
        branch.use_adapter(None if name is None else AdapterUse(name))
    begun = time.perf_counter()
    for generation in [branch.generate(params) for branch in branches]:
        generation.result()
    return time.perf_counter() - begun


def main() -> None:
    """Measure and print one line a case, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--branches", type=int, default=32)
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, Runtime(draft_tokens=0, seed=0) as runtime:
        names = [f"adapter {i}" for i in range(args.adapters)]
        for i, name in enumerate(names):
            folder = Path(home) / str(i)
            write_random_adapter(folder, runtime.loaded.config, args.rank, i)
            runtime.load_adapter(name, folder)
        cases: dict[str, list[str | None]] = {"without": [None], "with": [*names]}
        taken: dict[str, list[float]] = {case: [] for case in cases}
        for _ in range(args.rounds + 1):
            for case, used in cases.items():
                taken[case].append(seconds(runtime, used, args.branches, args.tokens))
        medians = {case: statistics.median(each[1:]) for case, each in taken.items()}
    total = args.branches * args.tokens
    for case, median in medians.items():
        print(f"{case:8} {total / median:8.1f} tokens a second")
    ratio = medians["without"] / medians["with"]
    print(f"{args.branches} branches over {args.adapters} adapters of rank {args.rank}: "
          f"{ratio:.2f} of the speed without")  # fmt: skip


if __name__ == "__main__":
    main()
