"""Random programs on the tiny model with faults in every state, for as long as is asked.

    python tests/runtime/soak.py --minutes 10

Ends with an error when an invariant breaks, a future hangs, pages stay held, or memory grows.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import resource
import time
from pathlib import Path
from typing import Any

import torch

from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams

TIMEOUT = 120


def tiny_model() -> Any:
    path = Path(__file__).parents[1] / "conftest.py"
    spec = importlib.util.spec_from_file_location("tiny", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_tiny_model()


class FaultyModel:
    """The model, with a NaN or an exception now and then."""

    def __init__(self, model: Any, choose: random.Random) -> None:
        self._model, self._choose = model, choose
        self.config, self.device = model.config, model.device
        self.num_weight_bytes = model.num_weight_bytes
        self.batch_invariant = model.batch_invariant
        self.library = model.library

    def forward(self, input_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        if self._choose.random() < 0.003:
            raise RuntimeError("a fault of the soak")
        hidden: torch.Tensor = self._model.forward(input_ids, *rest)
        if self._choose.random() < 0.01:
            hidden[self._choose.randrange(len(hidden))] = torch.nan
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model.logits(hidden)
        return logits


def live(runtime: Any, choose: random.Random, constraint: Any) -> int:
    """One random life: branches come, work, and go; returns how many requests there were."""
    stems = [[choose.randint(3, 447) for _ in range(40)] for _ in range(4)]
    branches: list[Any] = [runtime.new_branch(namespace=choose.choice("ab")) for _ in range(3)]
    futures: list[Any] = []
    for _ in range(choose.randint(20, 120)):
        if not branches:
            branches.append(runtime.new_branch())
        branch = choose.choice(branches)
        match choose.randrange(9):
            case 0:
                branches.append(runtime.new_branch())
                branches[-1].extend(choose.choice(stems)[: choose.randint(1, 40)])
            case 1:
                branches += branch.fork(choose.randint(0, 4))
            case 2 | 3 | 4:
                branch.extend(choose.choice(["the north ", "every town", "", "10 20 "]))
                params = SamplingParams(
                    max_tokens=choose.randint(1, 40), stop=choose.choice([(), ("th",)]),
                    top_p=choose.choice([1.0, 0.8]), temperature=choose.choice([0.0, 1.0]),
                    logprobs=choose.random() < 0.2,
                )  # fmt: skip
                bound = constraint if choose.random() < 0.3 else None
                timeout_s = choose.choice([None, None, None, 0.01, 5.0])
                futures.append(branch.generate(params, bound, timeout_s=timeout_s))
            case 5:
                futures.append(branch.score(["the north", "the town", " a", "10"]))
            case 6 if futures:
                choose.choice(futures).cancel()
            case 7:
                branches.remove(branch)
                choose.choice([branch.cancel, branch.release])()
            case 8:
                time.sleep(choose.random() * 0.01)
    for branch in branches:
        branch.release()
    for future in futures:
        future.exception(TIMEOUT)
    return len(futures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    import logging
    from dataclasses import replace

    logging.getLogger("radixlang.runtime").setLevel(logging.CRITICAL)
    from radixlang.constraints.specs import Regex

    choose = random.Random(args.seed)
    loaded = tiny_model()
    loaded = replace(loaded, model=FaultyModel(loaded.model, choose))
    runtime = Runtime(
        loaded, num_pages=150, page_size=1, cold_tokens=200, cold_idle_s=0.05, debug=True,
        max_batch_tokens=48, seed=0,
    )  # fmt: skip
    constraint = runtime.compile_constraint(Regex("[a-z]{1,12}( [0-9]{1,3})?"))
    end, num_lives, num_requests, early_kb = time.monotonic() + 60 * args.minutes, 0, 0, 0
    while time.monotonic() < end:
        num_requests += live(runtime, choose, constraint)
        num_lives += 1
        violations = runtime.audit()
        assert violations == [], violations[:5]
        if num_lives == 50:
            early_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    runtime.flush_cache()
    stats = runtime.stats()
    assert stats.num_pages_free == stats.num_pages_total, stats
    assert stats.num_branches == stats.num_running == stats.num_waiting == 0, stats
    late_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{num_lives} lives, {num_requests} requests ({stats.num_failed_requests} failed), "
        f"{stats.num_steps} steps, {stats.num_retracted} retracted, "
        f"{stats.num_evicted_tokens} tokens evicted; no page held, no invariant broken; "
        f"resident {early_kb / 1024:.0f} → {late_kb / 1024:.0f} MB"
    )
    assert not early_kb or late_kb < early_kb * 1.2
    runtime.close()


if __name__ == "__main__":
    main()
