"""What a GPU computes, and how fast: the kernels' part of `radixlang doctor --gpu`.

Every check compares with float64 or with the host's code on the CPU, and gives its figures beside
the sentence, so that a report from a machine we have never seen can be read as a table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import attend_reference
from radixlang.runtime.cache.kv_cache import quantize_tokens
from radixlang.runtime.diagnostics.doctor import Finding
from radixlang.runtime.process.device import Device
from radixlang.runtime.sampling.device_sampler import sample_step
from radixlang.runtime.sampling.row import SamplingRow
from radixlang.runtime.sampling.sampler import sample
from radixlang.sampling_params import SamplingParams

REPORT = "report this with the output of `radixlang doctor --gpu --json`"
Timer = Callable[[Callable[[], object]], float]  # seconds of one call


@dataclass(frozen=True, slots=True)
class Heads:
    """One kind of layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much the checks compute; tests take less.

    Attributes:
        shared, own: tokens of a shared node, and of each branch below it.
        branches: for the decode step and the bandwidth of attention.
        new_tokens: of the one branch that extends.
        prompt: tokens that the branches of the graph's check share.
        vocab_size, rows: of the sampler's logits.
        copied_bytes: of the copy that measures bandwidth.
        square: rows of the matrix product that measures the rate.
    """

    heads: tuple[Heads, ...] = (Heads(32, 8, 128), Heads(9, 3, 64), Heads(8, 1, 256))
    shared: int = 8192
    own: int = 256
    branches: int = 64
    new_tokens: int = 300
    prompt: int = 200
    vocab_size: int = 128_000
    rows: int = 64
    copied_bytes: int = 256 << 20
    square: int = 4096


@dataclass(frozen=True, slots=True)
class Lab:
    """Where the checks run: a device as torch and as the engine see it, and a clock for it."""

    device: torch.device
    engine: Device
    timer: Timer
    sizes: Sizes = Sizes()


@dataclass(frozen=True, slots=True)
class Precision:
    """A kind of keys and values: how it is stored, and how far from float64 it may be."""

    name: str
    dtype: torch.dtype
    quantized: bool
    limit: float  # of values near 1


PRECISIONS = (
    Precision("bf16", torch.bfloat16, False, 0.02),
    Precision("fp16", torch.float16, False, 0.003),
    Precision("int8", torch.bfloat16, True, 0.02),
)


def gpu_lab(device: torch.device, engine: Device) -> Lab:
    """A lab on a GPU: times are medians, with the L2 cache flushed between the calls."""
    from triton.testing import do_bench

    return Lab(device, engine, lambda run: float(do_bench(run, return_mode="median")) / 1e3)


def host_clock(run: Callable[[], object]) -> float:
    """Seconds of one call on the host."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


# ---- attention


def attention(lab: Lab, precision: Precision) -> Finding:
    """Every path of the kernels against float64: slots in runs and scattered, decode and extend."""
    errors = {}
    for heads in lab.sizes.heads:
        for path, batch in _paths(lab.sizes, precision.quantized):
            name = f"{path} {heads.num_heads}/{heads.num_kv_heads} d{heads.head_dim}"
            errors[name] = _error(lab, heads, batch, precision)
    worst = max(errors, key=lambda name: _or_infinity(errors[name]))
    found = f"{errors[worst]:.1e} from float64 at most, in {worst}"
    is_ok = _or_infinity(errors[worst]) < precision.limit
    return Finding(f"attention {precision.name}", "ok" if is_ok else "failed",
                   found if is_ok else f"{found}; {precision.limit} is allowed",
                   "" if is_ok else REPORT, dict(errors))  # fmt: skip


def _or_infinity(error: float) -> float:
    return error if error == error else float("inf")


def _paths(sizes: Sizes, quantized: bool) -> list[tuple[str, TreeBatch]]:
    """The forests to attend over, by what they go through."""
    shared = min(sizes.shared, 1500)  # float64 on the host takes its time
    few = min(sizes.branches, 5)
    own = min(sizes.own, 70)
    return [
        ("decode", forest(shared, [own] * few, 1, quantized=quantized)),
        ("scattered", forest(shared, [own] * few, 1, quantized=quantized, scattered=True)),
        ("extend", forest(shared, [sizes.new_tokens + 7], sizes.new_tokens, quantized=quantized)),
    ]


def forest(
    shared: int, own: Sequence[int], new: int, *, quantized: bool = False, scattered: bool = False
) -> TreeBatch:
    """A shared node with branches of `own` tokens below it, of which the last `new` are new.

    Slots count from 0, in order or shuffled; a quantised shared node has those of the int8 planes.
    """
    slots = np.arange(shared + sum(own), dtype=np.int32)
    if scattered:
        slots[:shared] = np.random.default_rng(0).permutation(shared)
        slots[shared:] = shared + np.random.default_rng(1).permutation(sum(own))
    cuts = np.cumsum([shared, *own])[:-1]
    num = len(own)
    return TreeBatch(
        segment_slots=np.split(slots, cuts),
        segment_parent=np.array([-1] + [0] * num, np.int32),
        segment_start=np.array([0] + [shared] * num, np.int32),
        branch_segment=np.arange(1, num + 1, dtype=np.int32),
        branch_query_start=np.array([shared + each - new for each in own], np.int32),
        branch_num_queries=np.full(num, new, np.int32),
        segment_quantized=np.arange(num + 1) == 0 if quantized else None,
    )


def _error(lab: Lab, heads: Heads, batch: TreeBatch, precision: Precision) -> float:
    """Largest difference from float64 on the values that the kernels read; NaN if one is NaN."""
    num_slots = sum(map(len, batch.segment_slots))
    num_tokens = int(batch.branch_num_queries.sum())
    noise = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(num_tokens, num, heads.head_dim, generator=noise).to(precision.dtype)
        for num in (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads)
    )
    held = [
        torch.randn(num_slots, heads.num_kv_heads, heads.head_dim, generator=noise)
        .to(precision.dtype) for _ in range(2)
    ]  # fmt: skip
    options = AttentionOptions(heads.head_dim**-0.5)
    plan = _plan(lab, heads, batch)
    layer, read = _layer(lab, held, len(batch.segment_slots[0]), quantized=precision.quantized)
    found = attend(
        q.to(lab.device), k.to(lab.device), v.to(lab.device), layer, plan, options
    )  # fmt: skip
    new = np.concatenate(
        [slots[-n:] for slots, n in
         zip(batch.segment_slots[1:], batch.branch_num_queries.tolist(), strict=True)]
    )  # fmt: skip
    for plane, values in zip(read, (k, v), strict=True):
        plane[torch.from_numpy(new.astype(np.int64))] = values.double()
    expected = attend_reference(q, read[0], read[1], batch, options)
    return float((found.cpu().double() - expected).abs().max())


def _plan(lab: Lab, heads: Heads, batch: TreeBatch) -> AttentionPlan:
    return plan_attention(
        batch, num_heads=heads.num_heads, num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim, device=lab.device, backend=lab.engine.attention,
    )  # fmt: skip


def _layer(
    lab: Lab, held: Sequence[Tensor], num_shared: int, *, quantized: bool
) -> tuple[LayerKV, list[Tensor]]:
    """A pool on the device, and the keys and values in float64 that it stands for."""
    read = [plane.double() for plane in held]
    planes = [plane.to(lab.device) for plane in held]
    if not quantized:
        return LayerKV(*planes), read
    int8, scales = zip(*(quantize_tokens(plane[:num_shared].float()) for plane in held),
                       strict=True)  # fmt: skip
    for plane, whole, scale in zip(read, int8, scales, strict=True):
        plane[:num_shared] = whole.double() * scale.double()[..., None]
    cold = [each.to(lab.device) for each in (*int8, *scales)]
    return LayerKV(*planes, *cold), read


# ---- sampling

_SAMPLED: tuple[SamplingParams, ...] = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.9, min_p=0.02),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.95),
    SamplingParams(temperature=0.7, repetition_penalty=1.1, frequency_penalty=0.2),
)


def sampling(lab: Lab) -> Finding:
    """The device's sampler beside the host's on the same logits; and its time."""
    sizes = lab.sizes
    width = -(-sizes.vocab_size // 32) * 32
    logits = 4 * torch.randn(sizes.rows, width, generator=torch.Generator().manual_seed(0))
    rng = np.random.default_rng(0)
    rows = [
        SamplingRow(
            _SAMPLED[at % len(_SAMPLED)], seed=at, index=at,
            bitmask=None if at % 3 else rng.integers(-(2**31), 2**31, width // 32).astype(np.int32),
            prompt_ids=rng.integers(0, sizes.vocab_size, 300).astype(np.int32),
            generated_ids=rng.integers(0, sizes.vocab_size, 50).astype(np.int32),
        )
        for at in range(sizes.rows)
    ]  # fmt: skip
    on_device = logits.to(lab.device)
    index = torch.arange(sizes.rows, device=lab.device)[:, None]
    finite = torch.ones(sizes.rows, dtype=torch.bool, device=lab.device)

    def run() -> list[int]:
        got = sample_step(
            index, range(sizes.rows), rows, lambda part: on_device[part[:, 0]].clone(), finite,
            sizes.vocab_size, max_rows=sizes.rows,
        )  # fmt: skip
        return got.sampled.token_ids

    ours, expected = run(), sample(logits.clone(), rows, sizes.vocab_size).token_ids
    num_other = sum(mine != theirs for mine, theirs in zip(ours, expected, strict=True))
    greedy = all(ours[at] == expected[at] for at in range(0, sizes.rows, len(_SAMPLED)))
    is_ok = greedy and num_other <= sizes.rows // 16  # a draw may fall on a rounded border
    seconds = lab.timer(run)
    found = (f"{sizes.rows} rows of {sizes.vocab_size:,}: {num_other} tokens other than the "
             f"host's, {seconds * 1e3:.2f} ms")  # fmt: skip
    values = {"num_rows": sizes.rows, "num_other": num_other, "seconds": seconds}
    status: Literal["ok", "failed"] = "ok" if is_ok else "failed"
    return Finding("sampling", status, found, "" if is_ok else REPORT, values)


# ---- speed


def speed(lab: Lab) -> Finding:
    """Bandwidth of a copy and the rate of a matrix product: what all else is measured against."""
    source = torch.empty(lab.sizes.copied_bytes, dtype=torch.uint8, device=lab.device)
    target = torch.empty_like(source)
    side = lab.sizes.square
    square = torch.ones(side, side, dtype=torch.bfloat16, device=lab.device)
    copied = 2 * lab.sizes.copied_bytes / lab.timer(lambda: target.copy_(source))
    product = 2 * side**3 / lab.timer(lambda: square @ square)
    found = f"{copied / 1e9:,.0f} GB/s copied, {product / 1e12:,.1f} TFLOP/s in bf16"
    values = {"bytes_per_s": copied, "flops_per_s": product}
    return Finding("bandwidth", "ok", found, values=values)


def attention_speed(lab: Lab, precision: Precision) -> Finding:
    """A decode step's attention over a shared prefix, a layer: its time, and bytes a second."""
    heads, sizes = lab.sizes.heads[0], lab.sizes
    quantized = precision.quantized
    batch = forest(sizes.shared, [sizes.own] * sizes.branches, 1, quantized=quantized)
    num_slots = sizes.shared + sizes.own * sizes.branches
    noise = torch.Generator().manual_seed(0)
    plane = torch.randn(num_slots, heads.num_kv_heads, heads.head_dim, generator=noise)
    layer, _ = _layer(lab, [plane.to(precision.dtype)] * 2, sizes.shared, quantized=quantized)
    plan = _plan(lab, heads, batch)
    q, k, v = (
        torch.randn(sizes.branches, num, heads.head_dim).to(lab.device, precision.dtype)
        for num in (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads)
    )
    options = AttentionOptions(heads.head_dim**-0.5)
    seconds = lab.timer(lambda: attend(q, k, v, layer, plan, options))
    width = 2 * heads.num_kv_heads * heads.head_dim
    num_bytes = width * (sizes.shared * (1 if quantized else precision.dtype.itemsize)
                         + sizes.own * sizes.branches * precision.dtype.itemsize)  # fmt: skip
    found = (f"{sizes.branches} branches of {sizes.own} below {sizes.shared:,}: "
             f"{seconds * 1e6:,.1f} µs a layer, {num_bytes / seconds / 1e9:,.0f} GB/s of keys "
             "and values")  # fmt: skip
    return Finding(f"attention {precision.name} speed", "ok", found,
                   values={"seconds": seconds, "bytes": num_bytes,
                           "bytes_per_s": num_bytes / seconds})  # fmt: skip
