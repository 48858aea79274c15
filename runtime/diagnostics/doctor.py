"""The engine's checks of this machine for `radixlang doctor`: device, kernels, model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from radixlang.kernels.attention import attend, plan_attention
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import attend_reference
from radixlang.runtime.models.gguf.config import gguf_config
from radixlang.runtime.models.gguf.file import GgufFile
from radixlang.runtime.models.kept_weights import kept_bytes, weights_folder
from radixlang.runtime.models.locate import locate
from radixlang.runtime.process.cores import usable_cores
from radixlang.runtime.process.disk_cache import kept_root
from radixlang.runtime.process.native_library import native_library
from radixlang.runtime.process.served_devices import device_named, refusal

TOLERANCE = 2e-3  # of fp32 attention with values near 1; a GPU rounds products to 10 bits


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `remedy` says what to do if it is not ok; `values` are its figures,
    for a report."""

    name: str
    status: Literal["ok", "note", "missing", "failed"]
    found: str
    remedy: str = ""
    values: Mapping[str, float | str] = field(default_factory=dict)


def devices() -> Iterator[Finding]:
    """Every GPU that torch can use, or the CPU."""
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            of = torch.cuda.get_device_properties(index)
            found = f"{of.name}, compute {of.major}.{of.minor}, {of.total_memory / 1e9:.0f} GB"
            why = refusal(torch.device("cuda", index))
            if why is None:
                yield Finding(f"device cuda:{index}", "ok", found)
            else:
                yield Finding(f"device cuda:{index}", "note", f"{found}: not used", why)
        return
    vectors = torch.backends.cpu.get_cpu_capability()
    cores, usable = os.cpu_count(), usable_cores()
    on = f"{cores} cores" if usable == cores else f"{usable} of {cores} cores"
    found = f"{torch.get_num_threads()} threads on {on}, {vectors}"
    yield Finding("device cpu", "ok", found)
    if torch.version.cuda is not None:
        yield Finding("gpu", "note", "this torch is built for a GPU and sees none",
                      "check the driver with nvidia-smi, if there should be one")  # fmt: skip


def native() -> Finding:
    """The native CPU library: the instruction set it runs on, or why it does not."""
    if not kept_root("RADIXLANG_NATIVE", "native"):
        return Finding("native library", "note", "turned off by RADIXLANG_NATIVE",
                       "unset the variable: 8-bit models are slower without")  # fmt: skip
    library = native_library()
    if library is None:
        return Finding("native library", "note", "no C++ compiler: 8-bit models are slower",
                       "install g++ or clang++ (apt install g++)")  # fmt: skip
    return Finding("native library", "ok", f"8-bit layers on {library.isa()}")


def weights() -> Finding:
    """Prepared weights that are kept between starts: where, and how many bytes."""
    folder = weights_folder()
    if folder is None:
        return Finding("kept weights", "note", "turned off by RADIXLANG_WEIGHTS",
                       "unset the variable: models load more slowly without")  # fmt: skip
    return Finding("kept weights", "ok", f"{kept_bytes(folder) / 1e6:,.0f} MB in {folder}")


def kernels() -> Finding:
    """Attention over a small forest on this device, against the float64 reference."""
    device = device_named("auto").type
    error = attention_error(device)
    if not error < TOLERANCE:
        return Finding("kernels", "missing", f"attention on {device} is off by {error:.1e}",
                       "report this with the output of `radixlang doctor --json`")  # fmt: skip
    return Finding("kernels", "ok", f"tree attention on {device}, {error:.0e} from float64")


def attention_error(device: str) -> float:
    """Largest difference from the reference for a shared node with two branches below it."""
    batch = TreeBatch(
        segment_slots=[np.arange(s, e, dtype=np.int32) for s, e in ((0, 70), (70, 75), (75, 78))],
        segment_parent=np.array([-1, 0, 0], np.int32),
        segment_start=np.array([0, 70, 70], np.int32),
        branch_segment=np.array([1, 2], np.int32),
        branch_query_start=np.array([72, 72], np.int32),
        branch_num_queries=np.array([3, 1], np.int32),
    )
    heads, kv_heads, dim, scale = 4, 2, 64, 64**-0.5
    noise = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(4, n, dim, generator=noise) for n in (heads, kv_heads, kv_heads))
    held = [torch.randn(78, kv_heads, dim, generator=noise) for _ in range(2)]
    plan = plan_attention(
        batch, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, device=device,
        library=native_library(),
    )  # fmt: skip
    layer = LayerKV(*(each.to(device) for each in held))
    out = attend(q.to(device), k.to(device), v.to(device), layer, plan, AttentionOptions(scale))
    expected = attend_reference(q, layer.k.cpu(), layer.v.cpu(), batch, AttentionOptions(scale))
    return float((out.cpu().double() - expected).abs().max())


def model(name: str | None) -> Iterator[Finding]:
    """The model's file and configuration; its weights are not loaded.

    Raises:
        ModelNotFoundError, ModelFormatError: it is missing, or its file is damaged.
    """
    path = locate(name)
    yield Finding("model", "ok", f"{path.name}, {_size(path) / 1e6:,.0f} MB")
    if path.is_file():
        config = gguf_config(GgufFile(path), dtype="float32", context_length=None)
        yield Finding("", "ok", f"{config.family}, {config.num_layers} layers, a context of "
                      f"{config.context_length:,} tokens, {config.kv_bytes_per_token / 1e3:,.1f} "
                      "kB of keys and values a token in float32")  # fmt: skip


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
