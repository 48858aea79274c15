"""Attention of packed rows over stretches of the tree: partials for decode, one pass for extend.

A unit is (a chunk of one node's keys, a block of the rows below that node). Rows of one key head
are packed as row * GROUP + head, so any group size fills the same tiles. The online softmax is
FlashAttention's (Dao et al., 2022), in base 2; a row that sees nothing is (0, -inf), never a
finite sentinel, and what is masked is loaded as 0 so that an unowned slot's NaN stays out.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (the arguments of jitted functions are pointers and tiles, which Python has no types for)
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from radixlang.kernels.options import AttentionOptions

UNIT_FIELDS = tl.constexpr(8)  # slot index, keys, position, first row, rows, rank, base, branch
LOG2E = tl.constexpr(1.4426950408889634)


def option_arguments(options: AttentionOptions, *, unused: Tensor) -> dict[str, object]:
    """A layer's options as arguments of both kernels, with what they ignore in place of None."""
    return {
        "scale": options.scale,
        "soft_cap": options.soft_cap or 1.0,
        "window": options.window or 0,
        "sinks_ptr": unused if options.sinks is None else options.sinks,
        "SOFT_CAP": options.soft_cap is not None,
        "WINDOW": options.window is not None,
        "SINKS": options.sinks is not None,
    }


@triton.jit
def soft_cap_scores(scores, cap):
    """cap * tanh(scores / cap): by one exponential, and by Lambert's fraction near zero, where
    that exponential would cancel. Beyond 20 the result is the cap, and nothing may overflow."""
    x = tl.maximum(tl.minimum(scores / cap, 20.0), -20.0)
    square = x * x
    near = (945.0 + square * (105.0 + square)) / (945.0 + square * (420.0 + 15.0 * square))
    far = 1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * LOG2E)))
    return cap * tl.where(square < 0.36, x * near, far)


@triton.jit
def _block(
    q, m, denom, acc, key, num_keys, base, slots_ptr, first_pos, pos,
    k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, slot_stride, head, num_heads, d, d_ok,
    scale, soft_cap, window,
    BLOCK_N: tl.constexpr, SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr,
    QUANT: tl.constexpr, MASKED: tl.constexpr, RUN: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of keys folded into the running (maximum, sum, output) of a tile of rows.

    With RUN the slots are one run from `base` on and their addresses are known at once, so the
    loads of later blocks overlap with this one; else each is read from its list first.
    """
    n = key + tl.arange(0, BLOCK_N)
    n_ok = n < num_keys
    if RUN:
        slot = (base + n).to(tl.int64)
    else:
        slot = tl.load(slots_ptr + n, mask=n_ok, other=0).to(tl.int64)
    offset = slot * slot_stride
    k = tl.load(
        k_ptr + (offset[None, :] + d[:, None]), mask=n_ok[None, :] & d_ok[:, None], other=0.0
    )
    v = tl.load(
        v_ptr + (offset[:, None] + d[None, :]), mask=n_ok[:, None] & d_ok[None, :], other=0.0
    )
    if UPCAST:
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    elif QUANT:
        k = k.to(q.dtype)
        v = v.to(q.dtype)
    s = tl.dot(q, k, input_precision=PRECISION)
    if QUANT:
        scale_at = slot * num_heads + head
        s *= tl.load(k_scale_ptr + scale_at, mask=n_ok, other=0.0)[None, :]
    if SOFT_CAP:
        s = soft_cap_scores(s * scale, soft_cap) * LOG2E
    else:
        s *= scale * LOG2E
    visible = n_ok[None, :]
    if MASKED:
        at = first_pos + n
        visible = visible & (at[None, :] <= pos[:, None])
        if WINDOW:
            visible = visible & (at[None, :] > pos[:, None] - window)
    s = tl.where(visible, s, float("-inf"))
    m_new = tl.maximum(m, tl.max(s, 1))
    m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(s - m_safe[:, None])
    alpha = tl.exp2(m - m_safe)
    denom = denom * alpha + tl.sum(p, 1)
    if QUANT:
        p *= tl.load(v_scale_ptr + scale_at, mask=n_ok, other=0.0)[None, :]
    acc = acc * alpha[:, None]
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return m_new, denom, acc


@triton.jit
def _rows(
    q_ptr, row_token_ptr, row_pos_ptr, fields, q_stride, head, d, d_ok,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The packed rows of a unit: which they are, and their queries. Rows that are none: pos -1."""
    first_row = tl.load(fields + 3)
    num_rows = tl.load(fields + 4)
    packed = tl.arange(0, BLOCK_M)
    row = first_row + packed // GROUP
    row_ok = packed < num_rows * GROUP
    token = tl.load(row_token_ptr + row, mask=row_ok, other=0).to(tl.int64)
    pos = tl.load(row_pos_ptr + row, mask=row_ok, other=-1)
    q_head = head * GROUP + packed % GROUP
    q = tl.load(
        q_ptr + ((token * q_stride + q_head * HEAD_DIM)[:, None] + d[None, :]),
        mask=row_ok[:, None] & d_ok[None, :], other=0.0,
    )  # fmt: skip
    if UPCAST:
        q = q.to(tl.float32)
    return row, row_ok, token, pos, q_head, q


@triton.jit
def _normalised(m, denom, acc):
    """Output and base-2 log-sum-exp; (0, -inf) for rows that saw nothing."""
    safe = tl.where(denom == 0.0, 1.0, denom)
    return acc / safe[:, None], tl.where(denom == 0.0, float("-inf"), m + tl.log2(safe))


@triton.jit
def _share_beside_sink(sinks_ptr, q_head, row_ok, lse):
    """What is left of a row's weight when its head's sink has taken its own."""
    sink = tl.load(sinks_ptr + q_head, mask=row_ok, other=0.0).to(tl.float32) * LOG2E
    return 1.0 / (1.0 + tl.exp2(sink - lse))


@triton.jit
def tree_attn_partial(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, out_ptr, part_out_ptr, part_lse_ptr,
    lse_ptr, slots_ptr, units_ptr, num_units_ptr,
    row_token_ptr, row_pos_ptr, row_first_ptr, row_part_ptr, row_count_ptr,
    q_stride, slot_stride, num_heads, scale, soft_cap, window, sinks_ptr,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr,
    QUANT: tl.constexpr, MASKED: tl.constexpr, SINKS: tl.constexpr, WITH_LSE: tl.constexpr,
    RUN_STAGES: tl.constexpr, LIST_STAGES: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows of a block over one chunk: a normalised float32 partial and its base-2 log-sum-exp.

    Grid (capacity of units, key heads). q and out [tokens, key heads * GROUP, HEAD_DIM]; partials
    [parts, key heads * GROUP, HEAD_DIM]. A row with a single part writes its output itself.
    """
    unit = tl.program_id(0)
    head = tl.program_id(1)
    if unit >= tl.load(num_units_ptr):
        return
    fields = units_ptr + unit * UNIT_FIELDS
    slot_index = tl.load(fields)
    num_keys = tl.load(fields + 1)
    first_pos = tl.load(fields + 2)
    rank = tl.load(fields + 5)
    base = tl.load(fields + 6)
    d = tl.arange(0, BLOCK_D)
    d_ok = d < HEAD_DIM
    row, row_ok, token, pos, q_head, q = _rows(
        q_ptr, row_token_ptr, row_pos_ptr, fields, q_stride, head, d, d_ok,
        GROUP, HEAD_DIM, BLOCK_M, UPCAST,
    )  # fmt: skip
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    denom = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    begin = 0
    if WINDOW:
        lowest = tl.min(tl.where(row_ok, pos, 2147483647)) - window + 1 - first_pos
        begin = tl.maximum(lowest, 0) // BLOCK_N * BLOCK_N
    end = tl.minimum(num_keys, tl.max(pos) + 1 - first_pos)
    if base >= 0:
        for key in tl.range(begin, end, BLOCK_N, num_stages=RUN_STAGES):
            m, denom, acc = _block(
                q, m, denom, acc, key, num_keys, base, slots_ptr + slot_index, first_pos, pos,
                k_ptr + head * HEAD_DIM, v_ptr + head * HEAD_DIM, k_scale_ptr, v_scale_ptr,
                slot_stride, head, num_heads, d, d_ok, scale, soft_cap, window,
                BLOCK_N, SOFT_CAP, WINDOW, QUANT, MASKED, True, UPCAST, PRECISION,
            )  # fmt: skip
    else:
        for key in tl.range(begin, end, BLOCK_N, num_stages=LIST_STAGES):
            m, denom, acc = _block(
                q, m, denom, acc, key, num_keys, base, slots_ptr + slot_index, first_pos, pos,
                k_ptr + head * HEAD_DIM, v_ptr + head * HEAD_DIM, k_scale_ptr, v_scale_ptr,
                slot_stride, head, num_heads, d, d_ok, scale, soft_cap, window,
                BLOCK_N, SOFT_CAP, WINDOW, QUANT, MASKED, False, UPCAST, PRECISION,
            )  # fmt: skip
    o, lse = _normalised(m, denom, acc)
    all_heads = num_heads * GROUP
    first = tl.load(row_first_ptr + row, mask=row_ok, other=0)
    count = tl.load(row_count_ptr + row, mask=row_ok, other=0)
    part = tl.load(row_part_ptr + row, mask=row_ok, other=0) + rank - first
    kept = row_ok & (rank >= first)
    to_part = kept & (count > 1)
    where = part.to(tl.int64) * all_heads + q_head
    tl.store(part_lse_ptr + where, lse, mask=to_part)
    tl.store(
        part_out_ptr + (where[:, None] * HEAD_DIM + d[None, :]), o,
        mask=to_part[:, None] & d_ok[None, :],
    )  # fmt: skip
    to_out = kept & (count == 1)
    if SINKS:
        o *= _share_beside_sink(sinks_ptr, q_head, row_ok, lse)[:, None]
    at = token * all_heads + q_head
    tl.store(
        out_ptr + (at[:, None] * HEAD_DIM + d[None, :]), o.to(out_ptr.dtype.element_ty),
        mask=to_out[:, None] & d_ok[None, :],
    )  # fmt: skip
    if WITH_LSE:
        tl.store(lse_ptr + at, lse / LOG2E, mask=to_out)


@triton.jit
def extend_attn(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, slots_ptr, units_ptr, num_units_ptr,
    row_token_ptr, row_pos_ptr,
    q_stride, slot_stride, num_heads, scale, soft_cap, window, sinks_ptr,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, WITH_LSE: tl.constexpr, RUN: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Many new tokens of one branch over its whole path in one pass: no partials, no merge.

    A unit is (the path's slots, a block of the branch's rows). Keys that every row of the block
    sees go through a loop without a mask; only the diagonal and a window's edge pay for one.
    """
    unit = tl.program_id(0)
    head = tl.program_id(1)
    if unit >= tl.load(num_units_ptr):
        return
    fields = units_ptr + unit * UNIT_FIELDS
    slot_index = tl.load(fields)
    num_keys = tl.load(fields + 1)
    first_pos = tl.load(fields + 2)
    base = tl.load(fields + 6)
    d = tl.arange(0, BLOCK_D)
    d_ok = d < HEAD_DIM
    _row, row_ok, token, pos, q_head, q = _rows(
        q_ptr, row_token_ptr, row_pos_ptr, fields, q_stride, head, d, d_ok,
        GROUP, HEAD_DIM, BLOCK_M, UPCAST,
    )  # fmt: skip
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    denom = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    lowest = tl.min(tl.where(row_ok, pos, 2147483647))
    highest = tl.max(pos)
    begin = 0
    open_from = 0  # from here on, every row sees every key up to the diagonal
    if WINDOW:
        begin = tl.maximum(lowest - window + 1 - first_pos, 0) // BLOCK_N * BLOCK_N
        open_from = tl.cdiv(tl.maximum(highest - window + 1 - first_pos, 0), BLOCK_N) * BLOCK_N
    diagonal = tl.maximum(lowest + 1 - first_pos, 0) // BLOCK_N * BLOCK_N
    open_from = tl.minimum(open_from, diagonal)
    end = tl.minimum(num_keys, highest + 1 - first_pos)
    if WINDOW:
        for key in tl.range(begin, open_from, BLOCK_N):
            m, denom, acc = _block(
                q, m, denom, acc, key, num_keys, base, slots_ptr + slot_index, first_pos, pos,
                k_ptr + head * HEAD_DIM, v_ptr + head * HEAD_DIM, k_ptr, v_ptr,
                slot_stride, head, num_heads, d, d_ok, scale, soft_cap, window,
                BLOCK_N, SOFT_CAP, WINDOW, False, True, RUN, UPCAST, PRECISION,
            )  # fmt: skip
    for key in tl.range(open_from, diagonal, BLOCK_N):
        m, denom, acc = _block(
            q, m, denom, acc, key, num_keys, base, slots_ptr + slot_index, first_pos, pos,
            k_ptr + head * HEAD_DIM, v_ptr + head * HEAD_DIM, k_ptr, v_ptr,
            slot_stride, head, num_heads, d, d_ok, scale, soft_cap, window,
            BLOCK_N, SOFT_CAP, WINDOW, False, False, RUN, UPCAST, PRECISION,
        )  # fmt: skip
    for key in tl.range(diagonal, end, BLOCK_N):
        m, denom, acc = _block(
            q, m, denom, acc, key, num_keys, base, slots_ptr + slot_index, first_pos, pos,
            k_ptr + head * HEAD_DIM, v_ptr + head * HEAD_DIM, k_ptr, v_ptr,
            slot_stride, head, num_heads, d, d_ok, scale, soft_cap, window,
            BLOCK_N, SOFT_CAP, WINDOW, False, True, RUN, UPCAST, PRECISION,
        )  # fmt: skip
    o, lse = _normalised(m, denom, acc)
    if SINKS:
        o *= _share_beside_sink(sinks_ptr, q_head, row_ok, lse)[:, None]
    at = token * (num_heads * GROUP) + q_head
    tl.store(
        out_ptr + (at[:, None] * HEAD_DIM + d[None, :]),
        o.to(out_ptr.dtype.element_ty),
        mask=row_ok[:, None] & d_ok[None, :],
    )
    if WITH_LSE:
        tl.store(lse_ptr + at, lse / LOG2E, mask=row_ok)
