"""The one door to attention for models: plan a step, then attend over it in every layer.

Backends are chosen here and know nothing of each other: calls of torch's own flash kernel on the
CPU, Triton on a GPU, and a float64 reference for probes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from radixlang.kernels.cpu.attention import Partials
from radixlang.kernels.cpu.backend import CpuBackend
from radixlang.kernels.gpu.backend import TritonBackend
from radixlang.kernels.gpu.graph_plan import GraphPlan
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionBackend, AttentionPlan
from radixlang.kernels.plan.topology import build_topology
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
) -> AttentionPlan:
    """Check a batch and plan attention over it for every layer of one model.

    `backend` is "cpu" or "triton", by default what suits the device ("triton" on host memory
    needs Triton's interpreter), or "reference": slow, in float64, for probes; it cannot advance.
    With `deterministic`, splits do not depend on the batch: a branch's result has the same bits
    alone and in any company. Raises ValueError where the batch or the heads contradict themselves.
    """
    if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"{num_heads} query heads do not divide among {num_kv_heads} key heads; "
            "num_heads must be a multiple of num_kv_heads"
        )
    device = torch.device(device)
    chosen = _backend(backend or ("cpu" if device.type == "cpu" else "triton"))
    check_batch(batch)
    spare_reads = chosen.spare_bytes // (num_kv_heads * head_dim * 4)
    return AttentionPlan(
        build_topology(batch, deterministic=deterministic, spare_reads=spare_reads),
        batch,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        deterministic=deterministic,
        device=device,
        backend=chosen,
    )


def _backend(name: str) -> AttentionBackend:
    match name:
        case "cpu":
            return CpuBackend()
        case "triton":
            return TritonBackend()
        case "reference":
            return ReferenceBackend()
    raise ValueError(f"backend={name!r} is neither 'cpu', 'triton' nor 'reference'")


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


def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_kv: LayerKV,
    plan: AttentionPlan,
    options: AttentionOptions,
) -> Tensor | Partials:
    """As `attend` for callers that go over rows in one go before and after it, on the CPU.

    They give q as it is computed with, contiguous [num_tokens, group, kv_heads, head_dim] in the
    pool's dtype, and may get one or two partials of all rows to merge, which costs less there than
    here. The rest comes as `attend` gives it, in float32.
    """
    backend, plain = plan.backend, options.soft_cap is None and options.sinks is None
    if isinstance(backend, CpuBackend) and plain and q.dtype == layer_kv.k.dtype:
        _check(q, plan.packed_shape, k, plan.kv_shape)
        return backend.attend_packed(q, k, v, layer_kv, plan, options)
    heads = q.transpose(1, 2).reshape(plan.q_shape).float()
    return attend(heads, k, v, layer_kv, plan, options)


def _check(q: Tensor, q_shape: tuple[int, ...], k: Tensor, kv_shape: tuple[int, ...]) -> None:
    if q.shape != q_shape:
        raise ValueError(f"q is {tuple(q.shape)}; this plan needs {q_shape}")
    if k.shape != kv_shape:
        raise ValueError(f"k is {tuple(k.shape)}; this plan needs {kv_shape}")
