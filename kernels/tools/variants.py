"""Every shape of kernel that ships, and how each is compiled without a device."""

from __future__ import annotations

from dataclasses import dataclass

from radixlang.kernels.gpu.plan.tiles import CDNA3, Tile, block_d, pick_tile
from radixlang.kernels.gpu.sample_tokens import BLOCK as SAMPLE_BLOCK

HEAD_DIMS = (64, 80, 96, 128, 192, 256)
PACKED_ROWS = (16, 32, 64, 128)
TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942")
NEARLY_ALIKE = ("sm_86", "sm_89", "sm_120")  # to sm_80, but for their shared memory
WIDEST = "sm_90"  # the target with every choice; the others have those that are closest to a gate


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """One compiled kernel: which, over what types, with which choices."""

    kernel: str  # a name of compiled.KERNELS
    dtype: str = "bf16"
    head_dim: int = 128
    group: int = 4
    packed_rows: int = 16
    quantized: bool = False
    soft_cap: bool = False
    window: bool = False
    sinks: bool = False
    halves: bool = False
    masked: bool = False  # attention: a causal mask; sampling: a mask of tokens
    run: bool = False  # extend: slots are one run

    def tile(self, target: str) -> Tile:
        """The tile that a device of this kind is given."""
        return pick_tile(
            self.packed_rows,
            self.head_dim,
            self.group,
            itemsize=4 if self.dtype == "fp32" else 2,
            quantized=self.quantized,
            arch=arch_of(target),
        )

    @property
    def is_attention(self) -> bool:
        return self.kernel in ("tree_attn_partial", "extend_attn")

    @property
    def stores(self) -> bool:
        """Whether keys and values come from the model and go to the pool."""
        return self.kernel in ("append_kv", "rotary_append")

    def name(self, target: str) -> str:
        """A stable key for the committed table."""
        parts = [target, self.kernel, self.dtype, f"d{self.head_dim}"]
        if self.is_attention:
            tile = self.tile(target)
            parts.append(f"g{self.group}-m{tile.block_m}n{tile.block_n}w{tile.num_warps}")
        flags = ("quantized", "soft_cap", "window", "sinks", "halves", "masked", "run")
        return "-".join(parts + [flag for flag in flags if getattr(self, flag)])


def arch_of(target: str) -> int:
    """The `arch` of `pick_tile` for a target's name."""
    return CDNA3 if target.startswith("gfx") else int(target.removeprefix("sm_"))


def shipped(target: str) -> list[KernelVariant]:
    """Every variant of the table for one target, without repeats."""
    partial, extend = "tree_attn_partial", "extend_attn"
    variants = [
        KernelVariant(partial, head_dim=d, packed_rows=m) for d in (64, 128, 256) for m in (16, 64)
    ]
    variants += [KernelVariant(partial, packed_rows=m, quantized=True) for m in (16, 64)]
    variants += [KernelVariant(partial, group=group) for group in (1, 16)]
    variants.append(KernelVariant(extend, packed_rows=128, run=True))
    variants += [KernelVariant("sample_tokens", "fp32", masked=masked) for masked in (False, True)]
    if target == WIDEST:
        variants += _wide()
    if target in NEARLY_ALIKE:
        return variants
    variants += [KernelVariant("tree_merge", head_dim=d) for d in (64, 80, 96, 128, 256)]
    variants += [KernelVariant("append_kv", head_dim=d, quantized=q)
                 for d in (64, 128) for q in (False, True)]  # fmt: skip
    variants += [KernelVariant("rotary_append", head_dim=d, quantized=q)
                 for d in (64, 128) for q in (False, True)]  # fmt: skip
    variants += [KernelVariant("rotary_append", dtype) for dtype in ("fp16", "fp32")]
    variants.append(KernelVariant("rotary_append", head_dim=96, halves=True))
    variants.append(KernelVariant("advance_tails"))
    return list({variant.name(target): variant for variant in variants}.values())


def _wide() -> list[KernelVariant]:
    """Head dims, group sizes, precisions and options of attention."""
    partial, extend = "tree_attn_partial", "extend_attn"
    variants = [KernelVariant(partial, head_dim=d) for d in HEAD_DIMS]
    variants += [KernelVariant(partial, packed_rows=m) for m in PACKED_ROWS]
    variants += [KernelVariant(partial, dtype, packed_rows=16) for dtype in ("fp16", "fp32")]
    variants += [KernelVariant(partial, head_dim=64, group=group) for group in (1, 7, 16)]
    for choice in ("soft_cap", "window", "sinks", "masked"):
        variants.append(KernelVariant(partial, packed_rows=64, **{choice: True}))  # type: ignore[arg-type]
    variants += [KernelVariant(extend, head_dim=d, packed_rows=128, run=True) for d in (64, 256)]
    variants += [
        KernelVariant(extend, packed_rows=128),
        KernelVariant(extend, "fp32", packed_rows=64, run=True),
        KernelVariant(extend, packed_rows=128, window=True),
    ]
    return variants


def constants(variant: KernelVariant, target: str) -> dict[str, object]:
    """Compile-time arguments of a variant."""
    dim = {"HEAD_DIM": variant.head_dim, "BLOCK_D": block_d(variant.head_dim)}
    tile, flags = variant.tile(target), {"SINKS": variant.sinks, "WITH_LSE": False}
    plain = "ieee" if target.startswith("gfx") or variant.dtype != "fp32" else "tf32x3"
    attention = {
        **dim, **flags, "GROUP": variant.group, "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n,
        "SOFT_CAP": variant.soft_cap, "WINDOW": variant.window, "UPCAST": False,
        "PRECISION": plain,
    }  # fmt: skip
    match variant.kernel:
        case "tree_attn_partial":
            stages = {"RUN_STAGES": tile.num_stages, "LIST_STAGES": tile.list_stages}
            masked = variant.masked or variant.window
            return {**attention, **stages, "QUANT": variant.quantized, "MASKED": masked}
        case "extend_attn":
            return {**attention, "RUN": variant.run}
        case "tree_merge":
            return {**dim, **flags, "BLOCK_P": 8}
        case "append_kv":
            return {**dim, "QUANT": variant.quantized}
        case "rotary_append":
            return {"HEAD_DIM": variant.head_dim, "ROTARY_DIM": variant.head_dim,
                    "BLOCK_P": block_d(variant.head_dim) // 2, "HALVES": variant.halves,
                    "QUANT": variant.quantized}  # fmt: skip
        case "sample_tokens":
            return {"MASKED": variant.masked, "BLOCK": SAMPLE_BLOCK}
        case "advance_tails":
            return {"BLOCK": 128}
        case other:
            raise ValueError(f"no kernel is called {other!r}")


def argument_type(name: str, variant: KernelVariant) -> str:
    """Triton's type of an argument, by the naming rules of the kernels."""
    pool = "i8" if variant.quantized else variant.dtype
    match name:
        case "q_ptr" | "out_ptr":
            return f"*{variant.dtype}"
        case "k_ptr" | "v_ptr":
            return f"*{variant.dtype if variant.stores else pool}"
        case "pool_k_ptr" | "pool_v_ptr":
            return f"*{pool}"
        case "scale" | "soft_cap":
            return "fp32"
        case "seeds_ptr" | "counters_ptr" | "ids_ptr":
            return "*i64"
        case "logits_ptr" | "temperature_ptr" | "top_p_ptr" | "min_p_ptr":
            return "*fp32"
        case "lse_ptr" | "sinks_ptr" | "rotations_ptr":
            return "*fp32"
        case "slots_ptr" if variant.stores:
            return "*i64"
    if name.startswith("part_") or name in ("k_scale_ptr", "v_scale_ptr"):
        return "*fp32"
    return "*i32" if name.endswith("_ptr") else "i32"
