"""transformers' continuous batching: paged attention with its block cache for prefixes. fp32."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
import transformers
from transformers.generation import ContinuousBatchingConfig
from transformers_plain import load
from worker import Call, Outputs, by_level, serve

PAGE = 16  # tokens; a prefix is shared by whole pages
NUM_PAGES = 2048  # 1.5 GB of SmolLM2 in fp32
BATCH_TOKENS = 512  # a step; later prompts find in the cache what earlier steps computed


def open_manager(model: Any) -> Any:
    """The engine and its thread."""
    threading.excepthook = sys.excepthook
    limits = ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=NUM_PAGES,
        max_batch_tokens=BATCH_TOKENS,
        auto_switch_to_flash=False,  # it has no kernel for a CPU; sdpa has
    )
    greedy = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(greedy, limits)
    manager.start()
    return manager


def generate(manager: Any, prompts: list[list[int]], counts: list[int]) -> Outputs:
    """Greedy tokens; a level's prompts are sent together."""
    order = [
        manager.add_request(prompt, max_new_tokens=count)
        for prompt, count in zip(prompts, counts, strict=True)
    ]
    found: dict[str, list[int]] = {}
    while len(found) < len(order):
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("its generation thread has ended")
        elif result.error is not None:
            raise RuntimeError(result.error)
        else:
            found[result.request_id] = list(result.generated_tokens)
    return [found[name] for name in order]


def main() -> None:
    """Serve workloads."""
    transformers.logging.set_verbosity_error()
    with torch.inference_mode():
        manager = open_manager(load(sys.argv[1]))

    def run(calls: list[Call], levels: list[list[int]]) -> Outputs:
        return by_level(calls, levels, lambda *asked: generate(manager, *asked))

    serve("transformers, continuous batching", transformers.__version__, run)
    manager.stop(hard_stop=True)  # else its thread keeps the process


if __name__ == "__main__":
    main()
