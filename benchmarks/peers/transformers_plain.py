"""transformers' generate, a batch a level, whole prompts each time. fp32."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
import transformers
from worker import Call, Outputs, by_level, in_batches, serve

MAX_BATCH = 8  # whole prompts side by side; more only costs memory on two cores


def load(path: str) -> torch.nn.Module:
    """The GGUF's weights, dequantised to fp32 by transformers itself."""
    file = Path(path)
    return transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()


def generate(model: torch.nn.Module, prompts: list[list[int]], counts: list[int]) -> Outputs:
    """Greedy tokens for prompts of equal length and count, together."""
    ids = torch.tensor(prompts)
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=counts[0],
        max_new_tokens=counts[0],
        pad_token_id=0,
    )
    return made[:, ids.shape[1] :].tolist()


def main() -> None:
    """Serve workloads."""
    transformers.logging.set_verbosity_error()
    model = load(sys.argv[1])

    batches = in_batches(partial(generate, model), MAX_BATCH)

    def run(calls: list[Call], levels: list[list[int]]) -> Outputs:
        with torch.inference_mode():
            return by_level(calls, levels, batches)

    serve("transformers, plain generate", transformers.__version__, run)


if __name__ == "__main__":
    main()
