"""Every shape of kernel that ships, and how each is compiled without a device."""

from __future__ import annotations

from dataclasses import dataclass

from radixlang.kernels.gpu.sample_tokens import BLOCK as SAMPLE_BLOCK
from radixlang.kernels.gpu.tiles import CDNA3, Tile, block_d, pick_tile

HEAD_DIMS = (64, 80, 96, 128, 256)
PACKED_ROWS = (16, 32, 64, 128)
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")


@dataclass(frozen=True, slots=True)
class Variant:
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
    masked: bool = False

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
        flags = ("quantized", "soft_cap", "window", "sinks", "halves", "masked")
        return "-".join(parts + [flag for flag in flags if getattr(self, flag)])


def arch_of(target: str) -> int:
    """The `arch` of `pick_tile` for a target's name."""
    return CDNA3 if target.startswith("gfx") else int(target.removeprefix("sm_"))


def shipped(target: str) -> list[Variant]:
    """Every variant of the table for one target, without repeats."""
    partial = "tree_attn_partial"
    variants = [Variant(partial, head_dim=d, packed_rows=m) for d in HEAD_DIMS for m in PACKED_ROWS]
    variants += [Variant(partial, dtype, packed_rows=m)
                 for dtype in ("fp16", "fp32") for m in (16, 64)]  # fmt: skip
    variants += [Variant(partial, packed_rows=m, quantized=True) for m in PACKED_ROWS]
    variants += [Variant(partial, head_dim=64, group=group) for group in (1, 3, 5, 7, 8, 16)]
    for choice in ("soft_cap", "window", "sinks"):
        variants += [Variant(partial, packed_rows=m, **{choice: True}) for m in (16, 64)]  # type: ignore[arg-type]
    variants += [Variant("extend_attn", head_dim=d, packed_rows=m)
                 for d in HEAD_DIMS for m in (64, 128)]  # fmt: skip
    variants += [Variant("extend_attn", "fp32", packed_rows=64),
                 Variant("extend_attn", packed_rows=128, window=True),
                 Variant("extend_attn", packed_rows=128, soft_cap=True)]  # fmt: skip
    variants += [Variant("tree_merge", head_dim=d) for d in HEAD_DIMS]
    variants += [Variant("append_kv", head_dim=d, quantized=q)
                 for d in (64, 128) for q in (False, True)]  # fmt: skip
    variants += [Variant("rotary_append", head_dim=d, quantized=q)
                 for d in (64, 128) for q in (False, True)]  # fmt: skip
    variants += [Variant("rotary_append", dtype) for dtype in ("fp16", "fp32")]
    variants.append(Variant("rotary_append", head_dim=96, halves=True))
    variants += [Variant("sample_tokens", "fp32", masked=masked) for masked in (False, True)]
    variants.append(Variant("advance_tails"))
    return list({variant.name(target): variant for variant in variants}.values())


def constants(variant: Variant, target: str) -> dict[str, object]:
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
            return {**attention, "QUANT": variant.quantized}
        case "extend_attn":
            return attention
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


def argument_type(name: str, variant: Variant) -> str:
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
