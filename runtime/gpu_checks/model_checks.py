"""The default model on a GPU: a replayed graph against eager steps, and one decode by the engine.

The model's part of `radixlang doctor --gpu`; the kernels' is in kernel_checks.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.diagnostics.doctor import Finding
from radixlang.runtime.forward.cuda_graphs import DecodeGraphs, Replay
from radixlang.runtime.gpu_checks.kernel_checks import REPORT, Lab, forest
from radixlang.runtime.models.model import CausalModel, LoadedModel, plan_for
from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams

NUM_STEPS = 3  # one that is loaded, and two that follow where they are
OWN, BRANCHES = 3, 3  # tokens of a branch below the prompt, and how many there are
SAME_LAUNCHES = 0.02  # of the output's size: libraries may choose other products in a capture
OTHER_TILES = 0.1  # an eager step has no padding, and so other tiles
PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"


@torch.inference_mode()
def replayed_graph(lab: Lab, model: CausalModel) -> Finding:
    """Decode steps by a captured graph beside the same launches made one by one, and eager steps.

    Both caches start from the same prompt; errors are the largest differences of the model's output
    in units of its root mean square.
    """
    launches: list[Callable[[], Tensor]] = []

    def capture(run: Callable[[], Tensor]) -> Replay:
        launches.append(run)
        return lab.engine.capture(run)

    replayed, eager = (_prefilled(lab, model) for _ in range(2))
    plans = [_decode_plan(lab, model) for _ in range(2)]
    graphs = DecodeGraphs(model, replayed, capture)
    same_launches = other_tiles = 0.0
    for step in range(NUM_STEPS):
        if step:
            for plan in plans:
                plan.advance(_slots(lab, step))
        ids = np.arange(BRANCHES) + 7 * step + 1
        found = graphs.run(ids, plans[0])
        if found is None:
            return Finding("graph", "failed", "a decode step could not be captured; the log says "
                           "why", "Runtime(cuda_graphs=False) runs without. " + REPORT)  # fmt: skip
        found = found.clone()
        one_by_one = launches[-1]()[:BRANCHES].clone()
        (sent,) = plans[1].send_rows(ids)
        expected = model.forward(sent, plans[1].positions, plans[1], eager)
        same_launches = _larger(same_launches, _difference(found, one_by_one))
        other_tiles = _larger(other_tiles, _difference(found, expected))
    is_ok = same_launches < SAME_LAUNCHES and other_tiles < OTHER_TILES
    text = (f"{NUM_STEPS} steps replayed: {same_launches:.1e} from the same launches one by one, "
            f"{other_tiles:.1e} from eager steps")  # fmt: skip
    values = {"same_launches": same_launches, "other_tiles": other_tiles}
    return Finding("graph", "ok" if is_ok else "failed", text, "" if is_ok else REPORT, values)


def _slots(lab: Lab, step: int) -> np.ndarray:
    """Where the tokens of a decode step go: the first at the ends of the tails, others behind."""
    first = lab.sizes.prompt + OWN * BRANCHES
    return (first + (step - 1) * BRANCHES + np.arange(BRANCHES)).astype(np.int32)


def _prefilled(lab: Lab, model: CausalModel) -> KVCache:
    """A cache with a prompt and some tokens of each branch, the same each time."""
    config, prompt = model.config, lab.sizes.prompt
    cache = KVCache(
        prompt + OWN * BRANCHES + NUM_STEPS * BRANCHES, config.num_layers, config.num_kv_heads,
        config.head_dim, dtype=getattr(torch, config.kv_dtype), device=model.device,
    )  # fmt: skip
    whole = forest(0, [prompt], prompt)
    branches = forest(prompt, [OWN] * BRANCHES, OWN)
    for batch in (whole, branches):
        plan = plan_for(model, batch, backend=lab.engine.attention)
        ids = np.arange(plan.num_tokens) * 31 % config.vocab_size
        (sent,) = plan.send_rows(ids)
        model.forward(sent, plan.positions, plan, cache)
    return cache


def _decode_plan(lab: Lab, model: CausalModel) -> AttentionPlan:
    batch = forest(lab.sizes.prompt, [OWN] * BRANCHES, 1)
    return plan_for(model, batch, backend=lab.engine.attention)


def _difference(found: Tensor, expected: Tensor) -> float:
    size = expected.float().square().mean().sqrt()
    return float((found.float() - expected.float()).abs().max() / size)


def _larger(one: float, other: float) -> float:
    """The larger; NaN if one is."""
    return one if one != one or one > other else other


# ---- the engine


def decode(lab: Lab, loaded: LoadedModel, *, num_tokens: int = 64, branches: int = 32) -> Finding:
    """One branch and many by the engine, with graphs and without; and a path beside float64."""
    values: dict[str, float | str] = {"model": loaded.config.name}
    texts = []
    for graphs in (True, False):
        with Runtime(loaded, kv_bytes=_kv_bytes(loaded, branches, num_tokens), seed=0,
                     cuda_graphs=graphs, warm_up=False) as runtime:  # fmt: skip
            kind = "graphs" if graphs else "eager"
            for num in (1, branches):
                _generate(runtime, num, num_tokens)  # compiled and captured
                begin = time.perf_counter()
                texts.append(_generate(runtime, num, num_tokens)[0])
                seconds = time.perf_counter() - begin
                values[f"tokens_per_s_{num}_{kind}"] = num * num_tokens / seconds
            compared = runtime.compare_with_float64(PROMPT)
    values |= {"text": texts[0], "kl_from_float64": compared.kl,
               "num_texts": len(set(texts))}  # fmt: skip
    is_ok = compared.same_top1 and not compared.diverged
    found = (
        f"{loaded.config.name}: {values['tokens_per_s_1_graphs']:,.0f} tokens a second alone "
        f"({values['tokens_per_s_1_eager']:,.0f} without graphs), "
        f"{values[f'tokens_per_s_{branches}_graphs']:,.0f} on {branches} branches "
        f"({values[f'tokens_per_s_{branches}_eager']:,.0f}); KL {compared.kl:.0e} from float64"
    )
    return Finding("decode", "ok" if is_ok else "failed", found, "" if is_ok else REPORT, values)


def _kv_bytes(loaded: LoadedModel, branches: int, num_tokens: int) -> int:
    return loaded.config.kv_bytes_per_token * 2 * (branches * (num_tokens + 64) + 1024)


def _generate(runtime: Runtime, num: int, num_tokens: int) -> list[str]:
    """The texts of as many greedy branches below one prompt."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    root = runtime.new_branch()
    root.extend(PROMPT)
    branches = root.fork(num)
    futures = [branch.generate(params) for branch in branches]
    texts = [future.result().text for future in futures]
    for branch in (*branches, root):
        branch.release()
    return texts
