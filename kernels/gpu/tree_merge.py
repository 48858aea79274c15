"""Combine the partials of every row: segmented, in position order, in float32."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (the arguments of jitted functions are pointers and tiles, which Python has no types for)
from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def tree_merge(
    part_out_ptr, part_lse_ptr, out_ptr, lse_ptr, sinks_ptr,
    row_token_ptr, row_part_ptr, row_count_ptr, num_rows_ptr, num_tokens_ptr, num_heads,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    SINKS: tl.constexpr, WITH_LSE: tl.constexpr,
):  # fmt: skip
    """Grid (capacity of rows, heads). A row's parts lie together, so the order is fixed.

    Rows with one part were written by the kernel that made it. Padded tokens, which a captured
    graph carries beyond the plan's, get zeros, so that nothing of an older step is read.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    d_ok = d < HEAD_DIM
    if row >= tl.load(num_tokens_ptr):
        at = row.to(tl.int64) * num_heads + head
        zero = tl.zeros([BLOCK_D], out_ptr.dtype.element_ty)
        tl.store(out_ptr + at * HEAD_DIM + d, zero, mask=d_ok)
        if WITH_LSE:
            tl.store(lse_ptr + at, float("-inf"))
        return
    if row >= tl.load(num_rows_ptr):
        return
    count = tl.load(row_count_ptr + row)
    if count == 1:
        return
    first = tl.load(row_part_ptr + row)
    m = float("-inf")
    denom = 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for begin in range(0, count, BLOCK_P):
        p = begin + tl.arange(0, BLOCK_P)
        p_ok = p < count
        where = (first + p).to(tl.int64) * num_heads + head
        lse = tl.load(part_lse_ptr + where, mask=p_ok, other=float("-inf"))
        o = tl.load(
            part_out_ptr + (where[:, None] * HEAD_DIM + d[None, :]),
            mask=p_ok[:, None] & d_ok[None, :], other=0.0,
        )  # fmt: skip
        m_new = tl.maximum(m, tl.max(lse, 0))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        weight = tl.exp2(lse - m_safe)
        alpha = tl.exp2(m - m_safe)
        denom = denom * alpha + tl.sum(weight, 0)
        acc = acc * alpha + tl.sum(o * weight[:, None], 0)
        m = m_new
    l_safe = tl.where(denom == 0.0, 1.0, denom)
    o = acc / l_safe
    lse = tl.where(denom == 0.0, float("-inf"), m + tl.log2(l_safe))
    if SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32) * LOG2E
        o *= 1.0 / (1.0 + tl.exp2(sink - lse))
    at = tl.load(row_token_ptr + row).to(tl.int64) * num_heads + head
    tl.store(out_ptr + at * HEAD_DIM + d, o.to(out_ptr.dtype.element_ty), mask=d_ok)
    if WITH_LSE:
        tl.store(lse_ptr + at, lse / LOG2E)
