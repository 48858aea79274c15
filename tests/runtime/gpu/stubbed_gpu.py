"""A GPU whose kernels are plain torch: the runtime's whole suite takes the GPU's path with it.

    make test-gpu-path

Models on the CPU count as being on this device. Plans, units, padded buffers, the device's sampler
and the engine's use of them are those of a GPU; attention reads the units that the kernels would
read, a unit at a time in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlang.kernels.gpu import launch, sample_tokens
from radixlang.kernels.gpu.layer import AttentionLayer
from radixlang.kernels.gpu.plan.device_plan import EXTEND_AT, ROWS_AT, TOKENS_AT, DevicePlan
from radixlang.kernels.gpu.plan.work_units import FIELDS
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.reference.attention import partial_reference
from radixlang.kernels.reference.fused import rotary_append_reference, sample_reference
from radixlang.runtime.engine import assemble
from radixlang.runtime.process import device as devices


class StubbedGpu(devices.HostDevice):
    """A device on the host's memory; a replay runs what was captured again."""

    is_host = False
    attention = "triton"

    def capture(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """The tensor of the first run is written by every replay."""
        out = run()
        return lambda: out.copy_(run())


def append(pool: LayerKV, slots: Tensor, k: Tensor, v: Tensor, *, quantize: bool = False) -> None:
    """As `launch.append`, exact values only, which is all that the engine appends."""
    assert not quantize
    real = slots >= 0
    pool.k[slots[real]] = k[real].to(pool.k.dtype)
    pool.v[slots[real]] = v[real].to(pool.v.dtype)


def advance(plan: DevicePlan, new_slots: Tensor) -> None:
    """As `launch.advance`."""
    views = {name: view.numpy() for name, view in plan.views.items()}
    units, slots = views["units"].reshape(-1, FIELDS), views["slots"]
    rows = np.arange(views["header"][ROWS_AT])
    added = new_slots.numpy()[views["row_token"][rows]]
    mine = views["tail_unit"][rows]
    at, num_keys, base = units[mine, 0], units[mine, 1], units[mine, 6]
    slots[at + num_keys] = added
    units[mine, 1] += 1
    units[mine, 6] = np.where((base >= 0) & (base + num_keys == added), base, -1)
    views["row_pos"][rows] += 1


def attend(
    q: Tensor, pool: LayerKV, plan: DevicePlan, layer: AttentionLayer, *, with_lse: bool = False
) -> tuple[Tensor, Tensor]:
    """As `launch.attend_triton`: every unit of the plan, merged by row in float64."""
    views = {name: view.numpy() for name, view in plan.views.items()}
    num_tokens = len(views["row_token"])
    out = torch.zeros((num_tokens, *q.shape[1:]), dtype=torch.float64)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float64)[:num_tokens]
    for unit, quantized in _units(plan, views):
        first, count, first_pos, row, num_rows, rank, base, _ = unit
        listed = views["slots"][first : first + count]
        slots = base + np.arange(count) if base >= 0 else listed.astype(np.int64)
        rows = np.arange(row, row + num_rows)
        rows = rows[views["row_first"][rows] <= rank]
        at, pos = first_pos + np.arange(count), views["row_pos"][rows, None]
        visible = at[None] <= pos
        if layer.options.window is not None:
            visible &= at[None] > pos - layer.options.window
        keys, values = _read(pool, torch.from_numpy(slots), quantized=quantized)
        token = torch.from_numpy(views["row_token"][rows].astype(np.int64))
        found = partial_reference(
            q[token], keys, values, torch.from_numpy(visible), layer.options
        )  # fmt: skip
        _merge(out, lse, token, *found)
    if layer.options.sinks is not None:
        out *= torch.sigmoid(lse - layer.options.sinks.double())[..., None]
    whole = q.new_zeros(q.shape)
    real = int(views["header"][TOKENS_AT])
    whole[:real] = out[:real].to(q.dtype)
    return whole, lse if with_lse else q.new_empty(0)


def _units(plan: DevicePlan, views: dict[str, np.ndarray]) -> Iterator[tuple[list[int], bool]]:
    """Every unit with whether it reads the 8-bit planes."""
    units = views["units"].reshape(-1, FIELDS)
    for index, (start, (_, quantized, _)) in enumerate(
        zip(plan.list_starts, plan.capacity.lists, strict=True)
    ):
        for unit in units[start : start + views["header"][index]].tolist():
            yield unit, quantized
    for unit in views["extend"].reshape(-1, FIELDS)[: views["header"][EXTEND_AT]].tolist():
        yield unit, False


def _read(pool: LayerKV, slots: Tensor, *, quantized: bool) -> tuple[Tensor, Tensor]:
    if not quantized:
        return pool.k[slots], pool.v[slots]
    k, v, k_scale, v_scale = pool.quantized_planes()
    return k[slots] * k_scale[slots, :, None], v[slots] * v_scale[slots, :, None]


def _merge(out: Tensor, lse: Tensor, token: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Fold normalised partials of some tokens into what they have."""
    total = torch.logaddexp(lse[token], more_lse)
    safe = total.clamp(min=-1e300)
    kept, added = torch.exp(lse[token] - safe), torch.exp(more_lse - safe)
    out[token] = out[token] * kept[..., None] + more * added[..., None]
    lse[token] = total


def sample(
    logits: Tensor, masks: Tensor, mask_rows: Tensor, *chances: Tensor
) -> tuple[Tensor, Tensor]:
    """As `sample_tokens.sample`."""
    if not len(masks):
        return sample_reference(logits, None, *chances)
    open_mask = torch.full_like(masks[:1], -1)
    by_row = torch.cat((masks, open_mask))[mask_rows.long()]  # -1 is the last: everything
    return sample_reference(logits, by_row, *chances)


def stub(patch: pytest.MonkeyPatch) -> None:
    """Put these functions where kernels are launched."""
    for name, function in (("append", append), ("rotary_append", rotary_append_reference),
                           ("attend_triton", attend), ("advance", advance)):  # fmt: skip
        patch.setattr(launch, name, function)
    patch.setattr(sample_tokens, "sample", sample)


ELSEWHERE = {  # by a part of its id, why a test does not belong on this device
    "test_deterministic_runtimes_draft_where_that_leaves_the_bits": "a promise of CPUs",
    "test_rows_of_a_batch_are_read": "compares to the last bits, a promise of CPUs",
    "test_eight_bits.py": "8-bit weights run on CPUs",
    "test_nothing_kept.py": "starts processes of its own",
    "test_step_memory.py": "memory of the native library",
    "test_time_bound.py": "starts processes of its own",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what stands above."""
    out = [item for item in items if any(part in item.nodeid for part in ELSEWHERE)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


@pytest.fixture(scope="session", autouse=True)
def everything_on_the_stubbed_gpu() -> Iterator[None]:
    """The whole session on this device; models in plain torch, as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RADIXLANG_NATIVE", "")
        patch.setitem(devices.KINDS, "cpu", lambda device: StubbedGpu())
        stub(patch)
        patch.setattr(assemble, "warm_up", lambda *_: None)  # nothing is compiled here
        yield
