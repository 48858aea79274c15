"""Choose a token a row under a bit mask, with temperature, top-p and min-p, in one launch.

One program a row passes over its logits from the cache: the maximum, the mass, then rounds of
(draw, mass of what is likelier). A drawn token is inside the nucleus when what is likelier has
less than top_p of the mass; if not, it and all that is no likelier are out and the next round
draws from the rest, so there is no sort and few rounds. (After FlashInfer, Ye et al. 2025.)
Random numbers are SplitMix64 of (seed, counter + round), as the CPU's sampler makes them.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (the arguments of jitted functions are pointers and tiles, which Python has no types for)
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192  # logits read together: smaller blocks spill on some target
ROUND_SHIFT = tl.constexpr(33)  # a round is this far up in the counter


@triton.jit
def sample_tokens(
    logits_ptr, mask_ptr, mask_rows_ptr, temperature_ptr, top_p_ptr, min_p_ptr, seeds_ptr,
    counters_ptr,
    ids_ptr, allowed_ptr, logit_stride, mask_stride, vocab_size,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows). logits float32; masks int32 words, bit set: allowed, and the mask of each row,
    -1 without one. Temperature 0 takes the likeliest, the first of equals. `allowed` is 0 where the
    mask leaves nothing."""
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * logit_stride
    mask = mask_ptr
    is_masked = False
    if MASKED:
        which = tl.load(mask_rows_ptr + row)
        mask = mask_ptr + which.to(tl.int64) * mask_stride
        is_masked = which >= 0
    best = float("-inf")
    token = 0
    for begin in range(0, vocab_size, BLOCK):
        x = _logits(logits, mask, is_masked, begin, vocab_size, MASKED, BLOCK)
        here = tl.max(x, 0)
        token = tl.where(here > best, begin + tl.argmax(x, 0), token)
        best = tl.maximum(here, best)
    temperature = tl.load(temperature_ptr + row)
    tl.store(allowed_ptr + row, tl.where(best > float("-inf"), 1, 0))
    if (temperature == 0.0) | (best == float("-inf")):
        tl.store(ids_ptr + row, token)
        return
    mass = tl.full((), 0.0, tl.float64)  # of everything, then of what may be drawn
    drawable = tl.full((), 0.0, tl.float64)
    least = tl.load(min_p_ptr + row)
    for begin in range(0, vocab_size, BLOCK):
        x = _logits(logits, mask, is_masked, begin, vocab_size, MASKED, BLOCK)
        w = tl.exp((x - best) / temperature)
        mass += tl.sum(w, 0).to(tl.float64)
        drawable += tl.sum(tl.where(w >= least, w, 0.0), 0).to(tl.float64)
    top_p = tl.load(top_p_ptr + row).to(tl.float64)
    bound = tl.where(top_p < 1.0, top_p * mass, float("inf"))
    state = _mix(tl.load(seeds_ptr + row).to(tl.uint64))
    counter = tl.load(counters_ptr + row).to(tl.uint64)
    below = tl.full((), 0.0, tl.float32)  # weights up to here are out
    open_ = tl.full((), 1, tl.int32)
    while open_ > 0:
        target = _uniform(state, counter) * drawable
        counter += tl.full((), 1, tl.uint64) << ROUND_SHIFT
        place = tl.full((), 0, tl.int32)  # the block that the running sum passes the target in
        before = tl.full((), 0.0, tl.float64)
        running = tl.full((), 0.0, tl.float64)
        for begin in range(0, vocab_size, BLOCK):
            x = _logits(logits, mask, is_masked, begin, vocab_size, MASKED, BLOCK)
            w = tl.exp((x - best) / temperature)
            block = tl.sum(tl.where((w >= least) & (w > below), w, 0.0), 0).to(tl.float64)
            inside = (block > 0.0) & (running <= target)
            place = tl.where(inside, begin, place)
            before = tl.where(inside, running, before)
            running += block
        x = _logits(logits, mask, is_masked, place, vocab_size, MASKED, BLOCK)
        w = tl.exp((x - best) / temperature)
        w = tl.where((w >= least) & (w > below), w, 0.0)
        passed = tl.cumsum(w, 0).to(tl.float64) + before > target
        at = tl.arange(0, BLOCK)
        first = tl.min(tl.where(passed & (w > 0.0), at, BLOCK), 0)
        last = tl.max(tl.where(w > 0.0, at, 0), 0)
        chosen = tl.minimum(first, last)
        weight = tl.sum(tl.where(at == chosen, w, 0.0), 0)
        drawable = tl.full((), 0.0, tl.float64)  # of what is likelier
        for begin in range(0, vocab_size, BLOCK):
            x = _logits(logits, mask, is_masked, begin, vocab_size, MASKED, BLOCK)
            w = tl.exp((x - best) / temperature)
            drawable += tl.sum(tl.where((w >= least) & (w > weight), w, 0.0), 0).to(tl.float64)
        token = place + chosen
        below = weight
        open_ = (drawable >= bound).to(tl.int32)
    tl.store(ids_ptr + row, token)


@triton.jit
def _logits(
    logits, mask, is_masked, begin, vocab_size, MASKED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    at = begin + tl.arange(0, BLOCK)
    ok = at < vocab_size
    if MASKED:
        word = tl.load(mask + at // 32, mask=ok & is_masked, other=-1)
        ok = ok & (((word >> (at % 32)) & 1) == 1)
    return tl.load(logits + at, mask=ok, other=float("-inf"))


@triton.jit
def _uniform(state, counter):
    """SplitMix64's number of a counter in [0, 1) (Steele, Lea and Flood 2014)."""
    golden = tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    mixed = _mix(state + (counter + 1) * golden)
    return (mixed >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _mix(x):
    x = x + tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


def sample(
    logits: Tensor,
    masks: Tensor,
    mask_rows: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    counters: Tensor,
) -> tuple[Tensor, Tensor]:
    """Tokens [rows] int64 and whether there was any to choose [rows] bool.

    logits float32 [rows, vocab_size], contiguous in the last dimension; masks int32
    [num_masks, ceil(vocab_size / 32)] and mask_rows int32 [rows], -1 without; temperature, top_p
    (1: everything) and min_p (0: everything) float32 [rows]; seeds and counters int64 [rows], the
    bits of the CPU's uint64.
    """
    num_rows, vocab_size = logits.shape
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError(f"logits are {logits.dtype} with strides {logits.stride()}; "
                         "sampling reads float32, contiguous in the last dimension")  # fmt: skip
    words = -(-vocab_size // 32)
    if masks.shape[1:] != (words,) or len(mask_rows) != num_rows:
        raise ValueError(f"masks are {tuple(masks.shape)} for {len(mask_rows)} rows; "
                         f"{num_rows} rows of logits need masks of {words} words")  # fmt: skip
    ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    allowed = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    sample_tokens[(num_rows,)](
        logits, masks, mask_rows, temperature, top_p, min_p, seeds, counters, ids, allowed,
        logits.stride(0), masks.stride(0), vocab_size,
        MASKED=len(masks) > 0, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
    return ids, allowed.bool()
