"""The one door to attention for models: write the new keys and values, then attend over the tree.

Dispatches by device: calls of torch's own flash kernel on the CPU, Triton on a GPU, and for
probes the float64 reference.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from radixlang.kernels.cpu.attention import Halves, attend_cpu, attend_packed_cpu
from radixlang.kernels.gpu.graph_plan import GraphPlan
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.reference.attention import attend_reference


@dataclass(frozen=True, slots=True)
class LayerKV:
    """The KV pool of one layer.

    Cold segments may live in int8 planes of the same layout beside it, with one scale for each
    token and head; a batch says which segments do (`TreeBatch.segment_quantized`).
    """

    k: Tensor  # [num_slots, num_kv_heads, head_dim]
    v: Tensor  # [num_slots, num_kv_heads, head_dim]
    k_int8: Tensor | None = None  # [num_cold_slots, num_kv_heads, head_dim]
    v_int8: Tensor | None = None
    k_scale: Tensor | None = None  # [num_cold_slots, num_kv_heads], float32
    v_scale: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("k", "v", "k_int8", "v_int8"):
            plane: Tensor | None = getattr(self, name)
            if plane is not None and not plane.is_contiguous():
                raise ValueError(
                    f"{name} has strides {plane.stride()}; kernels read whole tokens, "
                    "so the pool must be contiguous"
                )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_kv: LayerKV,
    plan: AttentionPlan | GraphPlan,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    turns: Tensor | None = None,
) -> Tensor:
    """Store the new tokens' keys and values, then attend over every row's path.

    q [num_tokens, num_heads, head_dim] and k, v [num_tokens, num_kv_heads, head_dim], already
    rotated, rows in the plan's flat order. A window of w shows the row's own token and the w - 1
    before it. `sinks` [num_heads] are logits that take weight and give nothing. With `turns`
    [num_tokens, rotary_dim / 2] complex64, q and k are not rotated yet, pairs side by side, and
    the launch that stores the keys does it (plans for Triton only). Returns q's shape and dtype.
    Raises ValueError where shapes disagree with the plan.
    """
    _check(q, plan.q_shape, k, plan, window)
    if isinstance(plan, GraphPlan) or plan.backend == "triton":
        q = _store_triton(q, k, v, layer_kv, plan, turns)
        return _attend_triton(q, layer_kv, plan, scale, window, soft_cap, sinks)
    if turns is not None:
        raise ValueError("only a plan for Triton rotates; rotate q and k first on the CPU")
    write_kv(layer_kv, plan, k, v)
    if plan.backend == "reference":
        return attend_reference(
            q, layer_kv.k, layer_kv.v, plan.batch,
            scale=scale, window=window, soft_cap=soft_cap, sinks=sinks,
        ).to(q.dtype)  # fmt: skip
    return attend_cpu(q, layer_kv, plan, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks)


def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_kv: LayerKV,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor | Halves:
    """As `attend` for callers that go over rows in one go before and after it, on the CPU.

    They give q as it is computed with, contiguous [num_tokens, group, kv_heads, head_dim] in the
    pool's dtype, and are left one or two partials of all rows to join, which costs less there than
    here. The rest comes as `attend` gives it, in float32.
    """
    if plan.backend == "cpu" and soft_cap is None and q.dtype == layer_kv.k.dtype:
        _check(q, plan.packed_shape, k, plan, window)
        write_kv(layer_kv, plan, k, v)
        return attend_packed_cpu(q, layer_kv, plan, scale=scale, window=window)
    heads = q.transpose(1, 2).reshape(plan.q_shape).float()
    return attend(heads, k, v, layer_kv, plan, scale=scale, window=window, soft_cap=soft_cap)


def _store_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_kv: LayerKV,
    plan: AttentionPlan | GraphPlan,
    turns: Tensor | None,
) -> Tensor:
    """Write the new keys and values; returns the queries to attend with."""
    from radixlang.kernels.gpu import launch as gpu  # Triton is there on Linux only

    if turns is not None:
        return gpu.rotary_append(layer_kv, plan.new_slots, q, k, v, turns)
    gpu.append(layer_kv, plan.new_slots, k, v)
    return q


def _attend_triton(
    q: Tensor,
    layer_kv: LayerKV,
    plan: AttentionPlan | GraphPlan,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    from radixlang.kernels.gpu import launch as gpu

    layer = gpu.Layer(
        plan.num_kv_heads, plan.group_size, plan.head_dim, scale, window, soft_cap, sinks
    )
    units = plan.device_plan(window, q.element_size())
    return gpu.attend_triton(q, layer_kv, units, layer)[0]


def write_kv(layer_kv: LayerKV, plan: AttentionPlan, k: Tensor, v: Tensor) -> None:
    """Put the new tokens' keys and values [num_tokens, num_kv_heads, head_dim] in their slots."""
    run = plan.new_run
    if run is not None:
        layer_kv.k[run] = k
        layer_kv.v[run] = v
    else:
        layer_kv.k.index_copy_(0, plan.new_slots, k.to(layer_kv.k.dtype))
        layer_kv.v.index_copy_(0, plan.new_slots, v.to(layer_kv.v.dtype))


def _check(
    q: Tensor,
    q_shape: tuple[int, ...],
    k: Tensor,
    plan: AttentionPlan | GraphPlan,
    window: int | None,
) -> None:
    if q.shape != q_shape:
        raise ValueError(f"q is {tuple(q.shape)}; this plan needs {q_shape}")
    if k.shape != plan.kv_shape:
        raise ValueError(f"k is {tuple(k.shape)}; this plan needs {plan.kv_shape}")
    if window is not None and window < 1:
        raise ValueError(f"window={window} shows nothing; use None for a layer without a window")
