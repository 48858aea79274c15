"""Move a decode plan on by one token where it lies, in device memory, between graph replays."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (the arguments of jitted functions are pointers and tiles, which Python has no types for)
from __future__ import annotations

import triton
import triton.language as tl

UNIT_FIELDS = tl.constexpr(8)


@triton.jit
def advance_tails(
    new_slots_ptr, slots_ptr, units_ptr, row_token_ptr, row_pos_ptr, tail_unit_ptr, num_rows_ptr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Every row's tail unit takes one more key and every row one more position.

    `new_slots` [tokens] int32 in flat order. A tail read without its list of slots goes back to
    the list when the new slot does not continue its run.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = row < tl.load(num_rows_ptr)
    token = tl.load(row_token_ptr + row, mask=ok, other=0)
    slot = tl.load(new_slots_ptr + token, mask=ok, other=0).to(tl.int32)
    fields = units_ptr + tl.load(tail_unit_ptr + row, mask=ok, other=0) * UNIT_FIELDS
    num_keys = tl.load(fields + 1, mask=ok, other=0)
    base = tl.load(fields + 6, mask=ok, other=-1)
    tl.store(slots_ptr + tl.load(fields, mask=ok, other=0) + num_keys, slot, mask=ok)
    tl.store(fields + 1, num_keys + 1, mask=ok)
    tl.store(fields + 6, tl.where(base + num_keys == slot, base, -1), mask=ok & (base >= 0))
    pos = tl.load(row_pos_ptr + row, mask=ok, other=0)
    tl.store(row_pos_ptr + row, pos + 1, mask=ok)
