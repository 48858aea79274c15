"""Turn queries and keys by their positions and store keys and values, in one launch a layer.

Apart, the rotation reads and writes every query and key once more, and costs a launch in addition
to that of `append_kv`. Su et al. 2021 (RoFormer) for the rotation.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (the arguments of jitted functions are pointers and tiles, which Python has no types for)
from __future__ import annotations

import triton
import triton.language as tl

from radixlang.kernels.gpu.append_kv import int8_scale, to_int8


@triton.jit
def rotary_append(
    q_ptr, k_ptr, v_ptr, rotations_ptr, slots_ptr, out_ptr, pool_k_ptr, pool_v_ptr,
    k_scale_ptr, v_scale_ptr,
    q_stride, k_stride, v_stride, rotation_stride, slot_stride, num_heads, num_kv_heads,
    HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, BLOCK_P: tl.constexpr,
    HALVES: tl.constexpr, QUANT: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, query heads + key heads): one head of one token a program.

    q [tokens, num_heads, HEAD_DIM] goes rotated to `out` (contiguous); k rotated and v as it is
    to their slot, as int8 with a scale a head where QUANT. A negative slot is padding: nothing is
    stored for it. rotations [tokens, ROTARY_DIM / 2, 2] are cosines and sines; a pair is
    (2p, 2p + 1), with HALVES (p, p + ROTARY_DIM / 2); dimensions from ROTARY_DIM on stay.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    p = tl.arange(0, BLOCK_P)
    ok = p < HEAD_DIM // 2
    rotated = p < ROTARY_DIM // 2
    if HALVES:
        a = tl.where(rotated, p, 2 * p)
        b = tl.where(rotated, p + ROTARY_DIM // 2, 2 * p + 1)
    else:
        a = 2 * p
        b = 2 * p + 1
    rotation = rotations_ptr + token * rotation_stride + 2 * p
    cosine = tl.load(rotation, mask=rotated, other=1.0)
    sine = tl.load(rotation + 1, mask=rotated, other=0.0)
    if head < num_heads:
        x, y = _rotated(q_ptr + token * q_stride + head * HEAD_DIM, a, b, ok, cosine, sine)
        target = out_ptr + (token * num_heads + head) * HEAD_DIM
        tl.store(target + a, x.to(out_ptr.dtype.element_ty), mask=ok)
        tl.store(target + b, y.to(out_ptr.dtype.element_ty), mask=ok)
        return
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot < 0:
        return
    head -= num_heads
    x, y = _rotated(k_ptr + token * k_stride + head * HEAD_DIM, a, b, ok, cosine, sine)
    x = x.to(k_ptr.dtype.element_ty)  # as if the rotated key had been written and read
    y = y.to(k_ptr.dtype.element_ty)
    source = v_ptr + token * v_stride + head * HEAD_DIM
    value_x = tl.load(source + a, mask=ok, other=0.0)
    value_y = tl.load(source + b, mask=ok, other=0.0)
    target = slot * slot_stride + head * HEAD_DIM
    scale = slot * num_kv_heads + head
    _store(x, y, pool_k_ptr + target, k_scale_ptr + scale, a, b, ok, QUANT)
    _store(value_x, value_y, pool_v_ptr + target, v_scale_ptr + scale, a, b, ok, QUANT)


@triton.jit
def _rotated(source, a, b, ok, cosine, sine):
    x = tl.load(source + a, mask=ok, other=0.0).to(tl.float32)
    y = tl.load(source + b, mask=ok, other=0.0).to(tl.float32)
    return x * cosine - y * sine, x * sine + y * cosine


@triton.jit
def _store(x, y, target, scale_ptr, a, b, ok, QUANT: tl.constexpr):
    if QUANT:
        x = x.to(tl.float32)
        y = y.to(tl.float32)
        scale = int8_scale(tl.maximum(tl.abs(x), tl.abs(y)))
        tl.store(target + a, to_int8(x, scale), mask=ok)
        tl.store(target + b, to_int8(y, scale), mask=ok)
        tl.store(scale_ptr, scale)
    else:
        tl.store(target + a, x.to(target.dtype.element_ty), mask=ok)
        tl.store(target + b, y.to(target.dtype.element_ty), mask=ok)
