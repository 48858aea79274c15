"""How much memory a step of the largest size takes beside weights and cache: measured, once.

The KV pool takes most of what is free, so what the layers need for their own tensors has to be
known before. One forward pass over as many new tokens as a step may have gives it; it also compiles
the kernels, so that no request waits for that.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from radixlang.errors import ParameterError
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.progress import doing
from radixlang.runtime.models.model import CausalModel, plan_for
from radixlang.runtime.process.device import Device

MIN_STEP_TOKENS = 64  # a device without room for so many cannot serve a model

log = logging.getLogger("radixlang.runtime")


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The largest step that fits, and the bytes that its tensors take."""

    max_tokens: int
    num_bytes: int


def measure_step(
    model: CausalModel, device: Device, max_tokens: int, max_logit_rows: int
) -> StepMemory:
    """Run one step of `max_tokens` new tokens and its logits; of half as many if memory runs out.

    Raises:
        ParameterError: not even a small step fits beside the weights.
    """
    if device.is_host:
        return StepMemory(max_tokens, 0)
    size, why = max_tokens, None
    with device.current(), doing("compiling kernels and measuring a step"):
        while why is None or size > MIN_STEP_TOKENS:
            if why is not None:  # outside of the handler, whose traceback holds tensors
                device.give_back()
                log.warning("a step of %d tokens does not fit in memory (%s): now half", size, why)
                size = max(MIN_STEP_TOKENS, size // 2)
            step = partial(_step, model, device, size, max_logit_rows)
            try:
                return StepMemory(size, device.peak_bytes(step))
            except torch.OutOfMemoryError as error:
                why = str(error).partition("\n")[0]
    raise ParameterError(
        f"{model.config.name} leaves no memory for a step of {size} tokens ({why}). Close what "
        "else runs on this device, or take a smaller model"
    )


@torch.inference_mode()
def _step(model: CausalModel, device: Device, num_tokens: int, max_logit_rows: int) -> None:
    """New prompts, as long as the context allows, all layers over the same keys and values."""
    config = model.config
    shape = (num_tokens, config.num_kv_heads, config.head_dim)
    dtype = getattr(torch, config.kv_dtype)
    pool = LayerKV(*(torch.zeros(shape, dtype=dtype, device=model.device) for _ in range(2)))
    batch = _prompts(num_tokens, config.context_length)
    plan = plan_for(model, batch, backend=device.attention)
    (ids,) = plan.send_rows(np.zeros(num_tokens, np.int64))
    hidden = model.forward(ids, plan.positions, plan, [pool] * config.num_layers)
    model.logits(hidden[:max_logit_rows])


def _prompts(num_tokens: int, most: int) -> TreeBatch:
    """Prompts of at most `most` tokens each, nothing cached, nothing shared."""
    starts = np.arange(0, num_tokens, most)
    counts = np.minimum(num_tokens - starts, most).astype(np.int32)
    num = len(starts)
    return TreeBatch(
        segment_slots=[
            np.arange(start, start + count, dtype=np.int32)
            for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
        ],
        segment_parent=np.full(num, -1, np.int32),
        segment_start=np.zeros(num, np.int32),
        branch_segment=np.arange(num, dtype=np.int32),
        branch_query_start=np.zeros(num, np.int32),
        branch_num_queries=counts,
    )
