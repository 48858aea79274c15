"""A plan cut into units for its device, and the launches that its decode steps can need."""

from __future__ import annotations

import torch

from radixlang.kernels.gpu.plan.tiles import CDNA3, Tile, launches
from radixlang.kernels.gpu.plan.work_units import UnitPlan, build_units
from radixlang.kernels.plan.plan import AttentionPlan


def units_of(
    plan: AttentionPlan,
    window: int | None,
    itemsize: int,
    *,
    tile_rows: int = 0,
    quantized: bool = False,
) -> UnitPlan:
    """The plan cut for its device, as it now stands; see `build_units`."""
    num_sms, arch = _device_shape(plan.device)
    return build_units(
        plan.current_topology(),
        group_size=plan.group_size,
        num_kv_heads=plan.num_kv_heads,
        head_dim=plan.head_dim,
        window=window,
        deterministic=plan.deterministic,
        num_sms=num_sms,
        itemsize=itemsize,
        arch=arch,
        tile_rows=tile_rows,
        quantized=quantized,
    )


def launches_of(
    plan: AttentionPlan, itemsize: int, *, tile_rows: int, quantized: bool
) -> tuple[tuple[Tile, bool], ...]:
    """(tile, quantised) of every launch that a decode plan with these tiles can need."""
    return launches(
        plan.group_size,
        plan.head_dim,
        itemsize=itemsize,
        arch=_device_shape(plan.device)[1],
        tile_rows=tile_rows,
        quantized=quantized,
        deterministic=plan.deterministic,
    )


def _device_shape(device: torch.device) -> tuple[int, int]:
    """Multiprocessors and compute capability; an H100's where there is no device to ask."""
    if device.type != "cuda":
        return 132, 90
    properties = torch.cuda.get_device_properties(device)
    arch = CDNA3 if torch.version.hip else 10 * properties.major + properties.minor
    return properties.multi_processor_count, arch
