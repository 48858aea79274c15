"""FlashInfer's paged decode and its multi-level cascade on our shapes, where it is installed.

Not a dependency: it needs an NVIDIA GPU. Its results are checked before they are timed, as all are.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import torch
from torch import Tensor

from radixlang.kernels.tools.bench_baselines import BenchCase, Run

WORKSPACE_BYTES = 128 << 20
PLAIN_GROUPS = (1, 2, 4, 8)  # others need its tensor-core kernels


def why_not(device: torch.device) -> str | None:
    """Why there will be no numbers of FlashInfer; None where there will be."""
    if importlib.util.find_spec("flashinfer") is None:
        return "not installed"
    return None if device.type == "cuda" else "runs on NVIDIA GPUs only"


def decode(case: BenchCase) -> Run | None:
    """Its decode over page tables, which reads a shared prefix once a branch."""
    if case.shape.num_queries > 1 or case.shape.quantized:
        return None
    import flashinfer  # type: ignore[import-not-found, unused-ignore]

    heads, kv_heads = case.shape.heads
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(case), "NHD", use_tensor_cores=heads // kv_heads not in PLAIN_GROUPS
    )
    lengths = [len(path) for path in case.paths]
    wrapper.plan(
        _offsets(lengths, case.q.device), torch.cat(case.paths).int(), _ones(len(lengths), case),
        heads, kv_heads, case.shape.head_dim, 1,
        q_data_type=case.q.dtype, kv_data_type=case.pool.k.dtype,
    )  # fmt: skip
    return _run(wrapper, case)


def cascade(case: BenchCase) -> Run | None:
    """Its cascade, a level of the tree at a time; shapes of a single level have none."""
    shape = case.shape
    if shape.num_queries > 1 or shape.quantized or len(shape.counts) < 2:
        return None
    import flashinfer

    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(
        len(shape.counts), _workspace(case), "NHD"
    )
    ends = np.cumsum(shape.counts).tolist()
    rows, tables, indices, last = [], [], [], []
    for count, length, end in zip(shape.counts, shape.lengths, ends, strict=True):
        slots = np.concatenate(case.batch.segment_slots[end - count : end])
        rows.append(_offsets([shape.counts[-1] // count] * count, case.q.device))
        tables.append(_offsets([length] * count, case.q.device))
        indices.append(torch.from_numpy(slots).int().to(case.q.device))
        last.append(_ones(count, case))
    wrapper.plan(
        rows, tables, indices, last, *shape.heads, shape.head_dim, 1, q_data_type=case.q.dtype
    )
    return _run(wrapper, case)


def _run(wrapper: Any, case: BenchCase) -> Run:
    planes = tuple(plane[:, None] for plane in (case.pool.k, case.pool.v))  # pages of one token

    def run() -> Tensor:
        out: Tensor = wrapper.run(case.q, planes)
        return out

    return run


def _workspace(case: BenchCase) -> Tensor:
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=case.q.device)


def _ones(count: int, case: BenchCase) -> Tensor:
    return torch.ones(count, dtype=torch.int32, device=case.q.device)


def _offsets(counts: list[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *np.cumsum(counts).tolist()], dtype=torch.int32, device=device)
