"""Write new tokens' keys and values into the pool, exactly or as int8 with a scale a head."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (the arguments of jitted functions are pointers and tiles, which Python has no types for)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def append_kv(
    k_ptr, v_ptr, slots_ptr, pool_k_ptr, pool_v_ptr, k_scale_ptr, v_scale_ptr,
    k_stride, v_stride, slot_stride, num_heads,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, QUANT: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, key heads). k and v [tokens, key heads, HEAD_DIM]; a negative slot is padding.

    With QUANT the pool is int8 and the scale of a token's head is its largest magnitude / 127.
    """
    token = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot < 0:
        return
    d = tl.arange(0, BLOCK_D)
    d_ok = d < HEAD_DIM
    source = token.to(tl.int64)
    k = tl.load(k_ptr + source * k_stride + head * HEAD_DIM + d, mask=d_ok, other=0.0)
    v = tl.load(v_ptr + source * v_stride + head * HEAD_DIM + d, mask=d_ok, other=0.0)
    target = slot * slot_stride + head * HEAD_DIM + d
    if QUANT:
        _store_int8(k.to(tl.float32), pool_k_ptr + target, k_scale_ptr + slot * num_heads + head,
                    d_ok)  # fmt: skip
        _store_int8(v.to(tl.float32), pool_v_ptr + target, v_scale_ptr + slot * num_heads + head,
                    d_ok)  # fmt: skip
    else:
        tl.store(pool_k_ptr + target, k.to(pool_k_ptr.dtype.element_ty), mask=d_ok)
        tl.store(pool_v_ptr + target, v.to(pool_v_ptr.dtype.element_ty), mask=d_ok)


@triton.jit
def _store_int8(x, target, scale_ptr, d_ok):
    scale = int8_scale(tl.abs(x))
    tl.store(target, to_int8(x, scale), mask=d_ok)
    tl.store(scale_ptr, scale)


@triton.jit
def int8_scale(magnitudes):
    """The scale of a head: its largest magnitude is 127 steps."""
    return tl.max(magnitudes, 0) / 127.0


@triton.jit
def to_int8(x, scale):
    """Round half away from zero, which torch's reference does too."""
    y = x / tl.where(scale == 0.0, 1.0, scale)
    return tl.where(y < 0.0, y - 0.5, y + 0.5).to(tl.int8)
