"""From logits to tokens, for all rows of a step at once, on the host; see also device_sampler.py.

Greedy rows cost one argmax. Everything else (masks, penalties, temperature, truncation) touches
only the rows that use it. A row's draw depends only on its logits, seed and position, so it is the
same in any batch. Log-probabilities are those of the model's own distribution, without temperature,
masks or penalties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.protocol import TokenLogprob
from radixlang.runtime.sampling.contrast import drop_implausible, is_contrast_finite
from radixlang.runtime.sampling.counter_rng import uniform
from radixlang.runtime.sampling.logits_functions import apply_functions
from radixlang.runtime.sampling.normaliser import log_normaliser
from radixlang.runtime.sampling.penalties import Penalties
from radixlang.runtime.sampling.row import GREEDY, Bias, SamplingRow
from radixlang.runtime.sampling.wide_rows import invert, likeliest, wide
from radixlang.sampling_params import SamplingParams

_HEALING = 2**32  # counter of the draw of token healing, beyond any token's


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token for each row; `is_finite` is False if its logits were NaN or infinite, `is_allowed`
    is False if masks left no token: such a row's token has no meaning."""

    token_ids: list[int]
    is_finite: list[bool]
    is_allowed: list[bool]
    logprobs: list[TokenLogprob | None]


def sample(logits: Tensor, rows: Sequence[SamplingRow], vocab_size: int) -> Sampled:
    """Choose one token for each row.

    Args:
        logits: float32 [num_rows, width]; columns from `vocab_size` on are padding. The rows may
            be overwritten.
        rows: one for each row.
        vocab_size: ids that a token may have.
    """
    usable = logits[:, :vocab_size]
    best, token_ids = likeliest(usable)  # a NaN anywhere in the row is its maximum
    if all(row is GREEDY for row in rows):
        finite = list(map(math.isfinite, best.tolist()))
        return Sampled(token_ids.tolist(), finite, [True] * len(rows), [None] * len(rows))
    is_finite = best.isfinite()
    for i, row in enumerate(rows):
        if row.other is not None and not is_contrast_finite(row):
            is_finite[i] = False
    apply_functions(usable, rows)
    is_allowed = torch.ones_like(is_finite)
    special = [i for i, row in enumerate(rows) if not row.is_plain]
    if len(special) == len(rows) and not any(row.wants_logprobs for row in rows):
        token_ids, is_allowed = _choose(usable, list(rows))
    elif special:
        index = torch.tensor(special, device=logits.device)
        chosen, allowed = _choose(usable[index], [rows[i] for i in special])
        token_ids[index], is_allowed[index] = chosen, allowed
    ids, finite, allowed_list = torch.stack(
        (token_ids, is_finite.long(), is_allowed.long())
    ).tolist()
    logprobs = _logprobs(logits, vocab_size, token_ids, rows)
    return Sampled(ids, [bool(x) for x in finite], [bool(x) for x in allowed_list], logprobs)


def target_logprobs(logits: Tensor, rows: Tensor, target_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of given tokens, and whether each is the likeliest of its row.

    Args:
        logits: float32 [n, width].
        rows: int64 [m], the row of each target.
        target_ids: int64 [m].
    """
    normaliser, best = log_normaliser(logits), logits.argmax(dim=1)
    return logits[rows, target_ids] - normaliser[rows], target_ids == best[rows]


def row_logprob(logits: Tensor, token_id: int, num_top: int, vocab_size: int) -> TokenLogprob:
    """The record of one token under one row of logits [width]."""
    normaliser = log_normaliser(logits[None])[0]
    top = row_tops(logits, num_top, vocab_size) if num_top else ()
    return TokenLogprob(token_id, float(logits[token_id] - normaliser), top)


def row_tops(logits: Tensor, num_top: int, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens of one row of logits [width], as (id, log-probability)."""
    normaliser = log_normaliser(logits[None])[0]
    values, ids = logits[:vocab_size].topk(min(num_top, vocab_size))
    return tuple(zip(ids.tolist(), (values - normaliser).tolist(), strict=True))


def choose_among(
    logits: Tensor, candidate_ids: NDArray[np.int64], params: SamplingParams, seed: int,
    bias: Bias | None = None,
) -> int:  # fmt: skip
    """One of the candidates by a row of logits [width]: the likeliest, or drawn by key."""
    ids = torch.from_numpy(candidate_ids).to(logits.device)
    scores = logits[ids]
    if bias is not None:
        biased = logits.clone()
        _add_bias(biased, bias)
        if bool((biased[ids] > -torch.inf).any()):  # a ban of all leaves the prompt as it is
            scores = biased[ids]
    if params.temperature == 0:
        return int(ids[scores.argmax()])
    weight = ((scores - scores.max()) / params.temperature).exp().unsqueeze(0)
    number = torch.from_numpy(uniform([seed], [_HEALING])).to(weight.device, wide(weight))
    return int(ids[invert(weight, number.unsqueeze(0))[0]])


def _choose(logits: Tensor, rows: list[SamplingRow]) -> tuple[Tensor, Tensor]:
    """Tokens of rows that are not plain, and whether any was allowed; overwrites `logits`."""
    _apply_changes(logits, rows)
    _apply_penalties(logits, rows)
    _apply_masks(logits, rows)
    _hold_back(logits, rows)
    drop_implausible(logits, rows)
    best, token_ids = likeliest(logits)
    drawn = [i for i, row in enumerate(rows) if row.params.temperature > 0]
    if len(drawn) == len(rows):
        token_ids = _draw(logits, best, rows)
    elif drawn:
        index = torch.tensor(drawn, device=logits.device)
        token_ids[index] = _draw(logits[index], best[index], [rows[i] for i in drawn])
    return token_ids, best > -torch.inf


def _apply_changes(logits: Tensor, rows: list[SamplingRow]) -> None:
    """Take the logits of two branches, or those that a function gave, then add biases."""
    for logit, row in zip(logits, rows, strict=True):
        if row.changed is not None:
            logit.copy_(row.changed[: len(logit)])
        if row.bias is not None:
            _add_bias(logit, row.bias)


def _add_bias(logit: Tensor, bias: Bias) -> None:
    ids, values = (torch.from_numpy(part).to(logit.device) for part in bias)
    logit[ids] += values


def _apply_penalties(logits: Tensor, rows: list[SamplingRow]) -> None:
    """Change the logits of tokens that were there before, those of all rows in one operation."""
    if not any(row.has_penalty for row in rows):
        return
    penalties = Penalties.of(rows, logits.shape[1])
    if penalties.seen.shape[1]:
        row, token = _on(logits, penalties.seen)
        each = np.array([row.params.repetition_penalty for row in rows], np.float32)
        value, penalty = logits[row, token], _on(logits, np.repeat(each, penalties.sizes[0]))
        logits[row, token] = torch.where(value > 0, value / penalty, value * penalty)
    if penalties.counted.shape[1]:
        row, token = _on(logits, penalties.counted)
        logits[row, token] -= _on(logits, penalties.charges)


def _on(like: Tensor, values: NDArray[np.generic]) -> Tensor:
    """An array as a tensor where another one is."""
    return torch.from_numpy(values).to(like.device)


def _apply_masks(logits: Tensor, rows: list[SamplingRow]) -> None:
    masked = [i for i, row in enumerate(rows) if row.bitmask is not None]
    if not masked:
        return
    packed = ~np.stack([row.bitmask for row in rows if row.bitmask is not None]).view(np.uint8)
    bits = np.unpackbits(packed, axis=1, bitorder="little", count=logits.shape[1])
    banned = torch.from_numpy(bits.view(np.bool_)).to(logits.device)
    if len(masked) == len(rows):
        logits.masked_fill_(banned, -torch.inf)
    else:
        index = torch.tensor(masked, device=logits.device)
        logits[index] = logits[index].masked_fill_(banned, -torch.inf)


def _hold_back(logits: Tensor, rows: list[SamplingRow]) -> None:
    """Ban end tokens, unless a constraint leaves no other token."""
    for logit, row in zip(logits, rows, strict=True):
        if row.held_back:
            ids = [i for i in row.held_back if i < len(logit)]
            before = logit[ids].clone()
            logit[ids] = -torch.inf
            if row.bitmask is not None and logit.max() == -torch.inf:
                logit[ids] = before


def _draw(logits: Tensor, best: Tensor, rows: list[SamplingRow]) -> Tensor:
    """Draw by inverse transform; overwrites `logits`. `best` is each row's largest logit."""
    weight = logits.sub_(best.unsqueeze(1))
    if any(row.params.temperature != 1 for row in rows):
        weight.div_(_column([row.params.temperature for row in rows], weight))
    weight.exp_()  # 1 for the likeliest token
    has_least = any(row.params.min_p for row in rows)
    least = _column([row.params.min_p for row in rows], weight) if has_least else None
    kinds = [_kind(row.params) for row in rows]
    token_ids = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    for draw in (_draw_full, _draw_nucleus, _draw_top_k):
        here = [i for i, kind in enumerate(kinds) if kind is draw]
        if len(here) == len(rows):
            return draw(weight, least, rows)
        if here:
            index = torch.tensor(here, device=logits.device)
            lower = None if least is None else least[index]
            token_ids[index] = draw(weight[index], lower, [rows[i] for i in here])
    return token_ids


def _kind(params: SamplingParams) -> Callable[..., Tensor]:
    if params.top_k is not None:
        return _draw_top_k
    return _draw_nucleus if params.top_p < 1 else _draw_full


def _draw_full(weight: Tensor, least: Tensor | None, rows: list[SamplingRow]) -> Tensor:
    """Draw from the whole vocabulary in id order, without a sort."""
    if least is not None:
        weight.masked_fill_(weight < least, 0.0)
    return invert(weight, _numbers(rows, weight))


def _draw_nucleus(weight: Tensor, least: Tensor | None, rows: list[SamplingRow]) -> Tensor:
    """Draw from the smallest set with top_p of the mass, by rejection and without a sort.

    A token is in that set if the likelier tokens have less than top_p of the mass; equals at the
    edge are in it. A rejected token excludes all that are not likelier, so few rounds are needed.
    (After the sampling kernels of FlashInfer, Ye et al. 2025.)
    """
    bound = _column([row.params.top_p for row in rows], weight) * weight.sum(dim=1, keepdim=True)
    if least is not None:
        weight.masked_fill_(weight < least, 0.0)
    token_ids = torch.empty(len(rows), dtype=torch.long, device=weight.device)
    open_rows, attempt = torch.arange(len(rows), device=weight.device), 0
    while len(open_rows):
        numbers = _numbers([rows[i] for i in open_rows.tolist()], weight, attempt)
        drawn = invert(weight, numbers)
        token_ids[open_rows] = drawn
        likelier = weight > weight.gather(1, drawn.unsqueeze(1))
        mass = torch.where(likelier, weight, 0.0).sum(dim=1, keepdim=True)
        left = torch.nonzero((mass >= bound).squeeze(1)).squeeze(1)
        weight = weight[left] * likelier[left]
        bound, open_rows, attempt = bound[left], open_rows[left], attempt + 1
    return token_ids


def _draw_top_k(weight: Tensor, least: Tensor | None, rows: list[SamplingRow]) -> Tensor:
    """Draw from the top_k likeliest, of those from the smallest set with top_p of their mass."""
    vocab_size = weight.shape[1]
    limits = [min(row.params.top_k or vocab_size, vocab_size) for row in rows]
    num = max(limits)
    values, ids = weight.topk(num, dim=1)
    values *= torch.arange(num, device=weight.device) < _column(limits, weight)
    running = values.cumsum(dim=1)
    bound = _column([row.params.top_p for row in rows], weight) * running[:, -1:]
    keep = running - values < bound
    if least is not None:
        keep &= values >= least
    place = invert(values * keep, _numbers(rows, weight))
    return ids.gather(1, place.unsqueeze(1)).squeeze(1)


def _numbers(rows: list[SamplingRow], like: Tensor, attempt: int = 0) -> Tensor:
    """Each row's number in [0, 1) for its token, [n, 1]."""
    counters = [row.index + (attempt << 33) for row in rows]
    numbers = uniform([row.seed for row in rows], counters)
    return torch.from_numpy(numbers).to(like.device, wide(like)).unsqueeze(1)


def _logprobs(
    logits: Tensor, vocab_size: int, token_ids: Tensor, rows: Sequence[SamplingRow]
) -> list[TokenLogprob | None]:
    """Log-probability records of the rows that ask for them."""
    records: list[TokenLogprob | None] = [None] * len(rows)
    asked = [i for i, row in enumerate(rows) if row.wants_logprobs]
    if not asked:
        return records
    part, ids = logits, token_ids
    if len(asked) < len(rows):
        index = torch.tensor(asked, device=logits.device)
        part, ids = logits[index], token_ids[index]
    normaliser = log_normaliser(part).unsqueeze(1)
    chosen = (part.gather(1, ids.unsqueeze(1)) - normaliser).squeeze(1).tolist()
    num_top = min(vocab_size, max(rows[i].params.top_logprobs for i in asked))
    tops = _tops(part[:, :vocab_size], normaliser, num_top) if num_top else [()] * len(asked)
    for i, token_id, value, top in zip(asked, ids.tolist(), chosen, tops, strict=True):
        records[i] = TokenLogprob(token_id, value, top[: rows[i].params.top_logprobs])
    return records


def _tops(logits: Tensor, normaliser: Tensor, num: int) -> list[tuple[tuple[int, float], ...]]:
    values, ids = logits.topk(num, dim=1)
    pairs = zip(ids.tolist(), (values - normaliser).tolist(), strict=True)
    return [tuple(zip(*pair, strict=True)) for pair in pairs]


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)
