"""Compile a variant for a device that is not here, and read what came out."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from radixlang.kernels.gpu.advance_tails import advance_tails
from radixlang.kernels.gpu.append_kv import append_kv
from radixlang.kernels.gpu.rotary_append import rotary_append
from radixlang.kernels.gpu.sample_tokens import sample_tokens
from radixlang.kernels.gpu.tree_attn import extend_attn, tree_attn_partial
from radixlang.kernels.gpu.tree_merge import tree_merge
from radixlang.kernels.tools.variants import KernelVariant, argument_type, constants

KERNELS = {
    "tree_attn_partial": tree_attn_partial,
    "extend_attn": extend_attn,
    "tree_merge": tree_merge,
    "append_kv": append_kv,
    "rotary_append": rotary_append,
    "sample_tokens": sample_tokens,
    "advance_tails": advance_tails,
}
_ALIGNED = ("q_stride", "slot_stride", "k_stride", "v_stride")


@dataclass(frozen=True, slots=True)
class Report:
    """What a compiled variant needs of a device and which instructions it found."""

    registers: int
    spills: int  # bytes stored and loaded
    shared_bytes: int
    matrix: str  # the matrix instruction, or "-"
    async_copies: int
    narrow_offsets: int  # tensors of addresses made from 32-bit offsets, outside int32 data
    outstanding: int = 0  # copies still on their way while a block is computed, in each loop

    def as_dict(self) -> dict[str, int | str]:
        """Plain values, for the committed table."""
        return asdict(self)


def compile_variant(variant: KernelVariant, target: str) -> Report:
    """Compile for sm_80, sm_90, sm_100 or gfx942. Raises what the compiler raises."""
    kernel = KERNELS[variant.kernel]
    values = constants(variant, target)
    signature = {
        name: "constexpr" if name in values else argument_type(name, variant)
        for name in kernel.arg_names
    }
    attrs = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name in _ALIGNED
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=attrs)
    compiled = triton.compile(source, target=_target(target), options=_options(variant, target))
    return _amd(compiled) if target.startswith("gfx") else _nvidia(compiled, target)


def _target(name: str) -> GPUTarget:
    if name.startswith("gfx"):
        return GPUTarget("hip", name, 64)
    return GPUTarget("cuda", int(name.removeprefix("sm_")), 32)


def _options(variant: KernelVariant, target: str) -> dict[str, int]:
    if variant.is_attention:
        tile = variant.tile(target)
        listed = variant.kernel == "extend_attn" and not variant.run
        stages = tile.list_stages if listed else tile.num_stages
        return {"num_warps": tile.num_warps, "num_stages": stages}
    warps = 1 if variant.stores else 8 if variant.kernel == "sample_tokens" else 4
    return {"num_warps": warps}


def _nvidia(compiled: CompiledKernel, target: str) -> Report:
    ptx = compiled.asm["ptx"]
    registers, spills = _ptxas(ptx, target)
    found = re.findall(r"(wgmma\.mma_async|tcgen05\.mma|mma\.sync)[\w.:]*", ptx)
    return Report(
        registers=registers,
        spills=spills,
        shared_bytes=int(compiled.metadata.shared),
        matrix=found[0] if found else "-",
        async_copies=ptx.count("cp.async.cg"),
        narrow_offsets=narrow_offsets(compiled.asm["ttir"]),
        outstanding=outstanding_copies(compiled.asm["ttgir"]),
    )


def _ptxas(ptx: str, target: str) -> tuple[int, int]:
    """Registers and spilled bytes by the assembler that ships with Triton."""
    arch = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    name = arch.group(1) if arch else target
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [_assembler(target), "-v", f"--gpu-name={name}", str(path)]
        command += ["-o", str(Path(folder) / "kernel.cubin")]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", log)
    spilled = re.findall(r"(\d+) bytes spill", log)
    if registers is None:
        raise RuntimeError(f"ptxas said nothing about registers: {log!r}")
    return int(registers.group(1)), sum(map(int, spilled))


def _assembler(target: str) -> str:
    blackwell = int(target.removeprefix("sm_")) >= 100
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    own = folder / "ptxas-blackwell"
    return str(own if blackwell and own.exists() else folder / "ptxas")


def _amd(compiled: CompiledKernel) -> Report:
    text = compiled.asm["amdgcn"]

    def number(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", text)
        if found is None:
            raise RuntimeError(f"the assembly names no {key}")
        return int(found.group(1))

    found = re.search(r"v_mfma_\w+", text)
    return Report(
        registers=number("vgpr_count"),
        spills=number("vgpr_spill_count") * 4,
        shared_bytes=int(compiled.metadata.shared),
        matrix=found.group(0) if found else "-",
        async_copies=0,
        narrow_offsets=narrow_offsets(compiled.asm["ttir"]),
    )


def narrow_offsets(ttir: str) -> int:
    """Two-dimensional addresses of keys, values, queries or outputs from 32-bit offsets."""
    pattern = r"tt\.addptr [^:]*: tensor<\d+x\d+x!tt\.ptr<\w+>>, tensor<\d+x\d+x(i\d+)>"
    return sum(1 for width in re.findall(pattern, ttir) if width != "i64")


def outstanding_copies(ttgir: str) -> int:
    """The fewest copies that any loop over keys leaves on their way when it waits for its own; 0
    where there is none."""
    fewest = []
    for part in re.split(r"\n[^\n]*scf\.for ", ttgir)[1:]:
        body = part.partition("scf.yield")[0]
        if "async_copy_global_to_local" in body:
            waits = re.findall(r"async_wait[^\n]*num = (\d+)", body)
            fewest.append(max(map(int, waits), default=0))
    return min(fewest, default=0)
