"""The one door to attention for models: plan a step, then attend over it in every layer.

Backends are chosen here and know nothing of each other: the native library or plain torch on the
CPU, Triton on a GPU, and a float64 reference for probes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from radixlang.kernels.cpu.backend import CpuBackend
from radixlang.kernels.gpu.backend import TritonBackend
from radixlang.kernels.gpu.graph_plan import GraphPlan
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.backend import HEAD_DIM_STEP, NativeBackend
from radixlang.kernels.native.library import Library
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionBackend, AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch, check_batch
from radixlang.kernels.reference.backend import ReferenceBackend

StepPlan = AttentionPlan | GraphPlan  # of a step as it is, or padded to a captured graph's size


def plan_attention(
    batch: TreeBatch,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    deterministic: bool = False,
    device: torch.device | str = "cpu",
    backend: str | None = None,
    library: Library | None = None,
) -> AttentionPlan:
    """Check a batch and plan attention over it for every layer of one model.

    `backend` is "native", "cpu" or "triton", or "reference": slow, in float64, for probes; it
    cannot advance. By default it is what suits the device: on the CPU "native" where a library is
    given and the heads are multiples of HEAD_DIM_STEP, else "cpu". ("triton" on host memory needs
    Triton's interpreter.) On the CPU a branch's result has the same bits alone and in any company;
    with `deterministic` on a GPU too. A batch with `limits` is for "native" and "cpu". Raises
    ValueError where the batch or the heads contradict themselves.
    """
    if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"{num_heads} query heads do not divide among {num_kv_heads} key heads; "
            "num_heads must be a multiple of num_kv_heads"
        )
    check_batch(batch)
    device = torch.device(device)
    if backend is None:
        suits = library is not None and head_dim % HEAD_DIM_STEP == 0
        backend = "triton" if device.type != "cpu" else "native" if suits else "cpu"
    if batch.limits is not None and backend not in ("native", "cpu"):
        raise ValueError(f"the {backend} backend reads all of every path; leave out the limits")
    return AttentionPlan(
        batch,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        deterministic=deterministic,
        device=device,
        backend=_backend(backend, library, batch, (num_heads, num_kv_heads, head_dim)),
    )


def _backend(
    name: str, library: Library | None, batch: TreeBatch, heads: tuple[int, int, int]
) -> AttentionBackend:
    match name:
        case "native":
            if library is None:
                raise ValueError("the native backend needs its library; see native.library.load")
            return NativeBackend(library, batch, *heads)
        case "cpu":
            return CpuBackend(batch)
        case "triton":
            return TritonBackend()
        case "reference":
            return ReferenceBackend()
    raise ValueError(f"backend={name!r} is neither 'native', 'cpu', 'triton' nor 'reference'")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_kv: LayerKV,
    plan: StepPlan,
    options: AttentionOptions,
    *,
    rotations: Tensor | None = None,
) -> Tensor:
    """Store the new tokens' keys and values, then attend over every row's path.

    q [num_tokens, num_heads, head_dim] and k, v [num_tokens, num_kv_heads, head_dim], already
    rotated, rows in the plan's flat order. With `rotations` [num_tokens, rotary_dim / 2]
    complex64, q and k are not rotated yet, the two of a pair side by side, and the launch that
    stores the keys rotates them (only where `plan.rotates`). Returns q's shape and dtype. Raises
    ValueError where shapes disagree with the plan.
    """
    _check(q, plan.q_shape, k, plan.kv_shape)
    if rotations is not None and not plan.rotates:
        raise ValueError("only a plan for Triton rotates; rotate q and k first on the CPU")
    return plan.attend(q, k, v, layer_kv, options, rotations)


def _check(q: Tensor, q_shape: tuple[int, ...], k: Tensor, kv_shape: tuple[int, ...]) -> None:
    if q.shape != q_shape:
        raise ValueError(f"q is {tuple(q.shape)}; this plan needs {q_shape}")
    if k.shape != kv_shape:
        raise ValueError(f"k is {tuple(k.shape)}; this plan needs {kv_shape}")
