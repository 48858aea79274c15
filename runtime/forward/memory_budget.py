"""Sizes of the KV pool and of a step: defaults for the machine, and checks of the configuration."""

from __future__ import annotations

import os

import torch

from radixlang.errors import ParameterError
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.model import CausalModel
from radixlang.runtime.process.device import device_of
from radixlang.runtime.runtime_config import RuntimeConfig

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_CPU_SHARE, _CPU_MAX_BYTES = 0.25, 4 * 2**30
_GPU_SHARE = 0.9  # of what is free once the weights are loaded and a step has its room
_LOGIT_BYTES = 2**28  # of float32 logits in memory at once on a GPU
_CPU_LOGIT_ROWS = 32
_MIN_TOKENS = 16
_CPU_DRAFT = 8


def max_batch_tokens_for(device: torch.device) -> int:
    """Most tokens of a step: few on a CPU, since other branches wait for the step to end."""
    return 512 if device.type == "cpu" else 8192


def max_logit_rows_for(device: torch.device, vocab_size: int) -> int:
    """Rows of logits made at once. On a GPU the head is read anew for each part of a step's rows,
    so a step of 256 branches is one part wherever the vocabulary allows it."""
    if device.type == "cpu":
        return _CPU_LOGIT_ROWS
    return max(_CPU_LOGIT_ROWS, _LOGIT_BYTES // (4 * vocab_size))


def draft_tokens_for(model: CausalModel, config: RuntimeConfig) -> int:
    """Most tokens drafted in a step: on a GPU a step of one token replays a graph, and is cheaper.

    Raises:
        ParameterError: drafts are asked for of a deterministic runtime whose model would then give
            other last bits.
    """
    asked, varies = config.draft_tokens, config.deterministic and not model.batch_invariant
    if asked is None:
        return 0 if varies or model.device.type != "cpu" else _CPU_DRAFT
    if asked and varies:
        raise ParameterError(
            f"draft_tokens={asked} drafts tokens, which this model computes in other calls than "
            "alone, and so with other last bits; leave it out, or give deterministic=False"
        )
    return asked


def make_cache(
    config: ModelConfig, device: torch.device, wanted: RuntimeConfig, *, step_bytes: int = 0
) -> KVCache:
    """The KV tensors for a model, by pages, by bytes, or as the machine allows.

    Args:
        step_bytes: memory that is kept free for a step's activations.

    Raises:
        ParameterError: the pool is too small for the smallest request.
    """
    page_size, num_pages, kv_bytes = wanted.page_size, wanted.num_pages, wanted.kv_bytes
    token_bytes = config.kv_bytes_per_token
    if num_pages is None:
        budget = _default_bytes(device, step_bytes) if kv_bytes is None else kv_bytes
        num_pages = int(budget) // (token_bytes * page_size)
    num_slots = num_pages * page_size
    if num_slots < _MIN_TOKENS:
        raise ParameterError(
            f"a KV pool of {num_pages} pages of {page_size} tokens is too small: a token of "
            f"{config.name} takes {token_bytes} bytes, and the smallest request {_MIN_TOKENS} "
            f"tokens. Give at least kv_bytes={_MIN_TOKENS * token_bytes}, or close() another "
            "Runtime that holds the memory"
        )
    return KVCache(
        num_slots,
        config.num_layers,
        config.num_kv_heads,
        config.head_dim,
        num_cold_slots=wanted.cold_tokens,
        dtype=_DTYPES[config.kv_dtype],
        device=device,
    )


def _default_bytes(device: torch.device, step_bytes: int) -> int:
    free = device_of(device).free_bytes()
    if free is not None:
        return int(max(0, free - step_bytes) * _GPU_SHARE)
    return min(int(_free_ram_bytes() * _CPU_SHARE), _CPU_MAX_BYTES)


def _free_ram_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return _CPU_MAX_BYTES
