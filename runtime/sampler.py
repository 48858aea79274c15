"""From logits to tokens, for all rows of a step at once.

Greedy rows cost one argmax. Everything else (masks, penalties, temperature, truncation) touches
only the rows that ask for it. A row's draw depends on its own logits, seed and position alone, so
it is the same in any batch. Log-probabilities are those of the model's own distribution: neither
temperature, nor masks, nor penalties are in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.params import SamplingParams
from radixlang.protocol import TokenLogprob
from radixlang.runtime.keyed_random import uniform

NO_IDS: NDArray[np.int32] = np.empty(0, np.int32)
_HEALING = 2**32  # counter of the draw that heals a prompt, beyond any token's
_FIRST_CANDIDATES = 64  # candidates sorted at first; more where a row's top_p needs them


@dataclass(slots=True)
class SamplingRow:
    """What the sampler must know of one row.

    `index` counts the tokens the generation has so far; with `seed` it keys the random number.
    `held_back` are end tokens that must not come yet; `bitmask` int32 [ceil(vocab / 32)] has a
    bit for every allowed token, None allows all. `prompt_ids` and `generated_ids` are read only
    where penalties are on.
    """

    params: SamplingParams
    seed: int
    index: int
    held_back: tuple[int, ...] = ()
    bitmask: NDArray[np.int32] | None = None
    prompt_ids: NDArray[np.int32] = field(default_factory=lambda: NO_IDS)
    generated_ids: NDArray[np.int32] = field(default_factory=lambda: NO_IDS)

    @property
    def has_penalty(self) -> bool:
        """True where earlier tokens change the logits."""
        p = self.params
        return bool(p.frequency_penalty or p.presence_penalty) or p.repetition_penalty != 1.0

    @property
    def is_plain(self) -> bool:
        """True where the likeliest token is the answer."""
        return not (
            self.params.temperature or self.held_back or self.has_penalty
            or self.bitmask is not None
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token a row; `is_finite` is False where the logits were NaN or infinite, `is_allowed`
    False where masks left no token at all: such a row's token means nothing."""

    token_ids: list[int]
    is_finite: list[bool]
    is_allowed: list[bool]
    logprobs: list[TokenLogprob | None]


def sample(logits: Tensor, rows: Sequence[SamplingRow], vocab_size: int) -> Sampled:
    """Choose one token a row.

    Args:
        logits: float32 [num_rows, width]; columns from `vocab_size` on are padding.
        rows: one for each row.
        vocab_size: ids that a token may have.
    """
    usable = logits[:, :vocab_size]
    best, token_ids = usable.max(dim=1)  # a NaN anywhere in the row comes out as the maximum
    is_finite = best.isfinite()
    is_allowed = torch.ones_like(is_finite)
    special = [i for i, row in enumerate(rows) if not row.is_plain]
    if special:
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
        rows: int64 [m], the row that each target is looked up in.
        target_ids: int64 [m].
    """
    normaliser, best = logits.logsumexp(dim=1), logits.argmax(dim=1)
    return logits[rows, target_ids] - normaliser[rows], target_ids == best[rows]


def row_logprob(logits: Tensor, token_id: int, num_top: int, vocab_size: int) -> TokenLogprob:
    """The record of one token under one row of logits [width]."""
    normaliser = logits.logsumexp(dim=0)
    top: tuple[tuple[int, float], ...] = ()
    if num_top:
        values, ids = logits[:vocab_size].topk(min(num_top, vocab_size))
        top = tuple(zip(ids.tolist(), (values - normaliser).tolist(), strict=True))
    return TokenLogprob(token_id, float(logits[token_id] - normaliser), top)


def choose_among(
    logits: Tensor, candidate_ids: NDArray[np.int64], params: SamplingParams, seed: int
) -> int:
    """One of the candidates under a row of logits [width]: the likeliest, or drawn by key."""
    ids = torch.from_numpy(candidate_ids).to(logits.device)
    scores = logits[ids]
    if params.temperature == 0:
        return int(ids[scores.argmax()])
    weight = ((scores - scores.max()) / params.temperature).exp().unsqueeze(0)
    number = torch.from_numpy(uniform([seed], [_HEALING])).to(weight.device, _wide(weight))
    return int(ids[_invert(weight, number.unsqueeze(0))[0]])


def _choose(logits: Tensor, rows: list[SamplingRow]) -> tuple[Tensor, Tensor]:
    """Tokens of rows that are not plain; `logits` [n, vocab_size] is a copy and gets edited."""
    _apply_penalties(logits, rows)
    _apply_masks(logits, rows)
    _hold_back(logits, rows)
    best, token_ids = logits.max(dim=1)
    drawn = [i for i, row in enumerate(rows) if row.params.temperature > 0]
    if drawn:
        index = torch.tensor(drawn, device=logits.device)
        token_ids[index] = _draw(logits[index], best[index], [rows[i] for i in drawn])
    return token_ids, best > -torch.inf


def _apply_penalties(logits: Tensor, rows: list[SamplingRow]) -> None:
    for logit, row in zip(logits, rows, strict=True):
        if not row.has_penalty:
            continue
        params = row.params
        if params.repetition_penalty != 1.0:
            seen = _index(np.unique(np.concatenate((row.prompt_ids, row.generated_ids))), logits)
            value, penalty = logit[seen], params.repetition_penalty
            logit[seen] = torch.where(value > 0, value / penalty, value * penalty)
        ids, counts = np.unique(row.generated_ids, return_counts=True)
        times = torch.from_numpy(counts).to(logits)
        logit[_index(ids, logits)] -= (
            params.frequency_penalty * times + params.presence_penalty
        )  # fmt: skip


def _apply_masks(logits: Tensor, rows: list[SamplingRow]) -> None:
    masked = [i for i, row in enumerate(rows) if row.bitmask is not None]
    if not masked:
        return
    packed = np.stack([row.bitmask for row in rows if row.bitmask is not None]).view(np.uint8)
    allowed = np.unpackbits(packed, axis=1, bitorder="little", count=logits.shape[1])
    banned = torch.from_numpy(allowed == 0).to(logits.device)
    if len(masked) == len(rows):
        logits.masked_fill_(banned, -torch.inf)
    else:
        index = torch.tensor(masked, device=logits.device)
        logits[index] = logits[index].masked_fill_(banned, -torch.inf)


def _hold_back(logits: Tensor, rows: list[SamplingRow]) -> None:
    """Ban end tokens, unless a constraint leaves nothing else."""
    for logit, row in zip(logits, rows, strict=True):
        if row.held_back:
            ids = [i for i in row.held_back if i < len(logit)]
            before = logit[ids].clone()
            logit[ids] = -torch.inf
            if row.bitmask is not None and logit.max() == -torch.inf:
                logit[ids] = before


def _draw(logits: Tensor, best: Tensor, rows: list[SamplingRow]) -> Tensor:
    """Draw by inverse transform. `best` is each row's largest logit."""
    temperature = _column([row.params.temperature for row in rows], logits)
    scaled = (logits - best.unsqueeze(1)) / temperature
    numbers = uniform([row.seed for row in rows], [row.index for row in rows])
    number = torch.from_numpy(numbers).to(logits.device, _wide(logits)).unsqueeze(1)
    min_p = _column([row.params.min_p for row in rows], logits)
    cut = [row.params.top_k is not None or row.params.top_p < 1 for row in rows]
    token_ids = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    for wanted, draw in ((False, _draw_full), (True, _draw_cut)):
        here = [i for i, is_cut in enumerate(cut) if is_cut == wanted]
        if here:
            index = torch.tensor(here, device=logits.device)
            part = [rows[i] for i in here]
            token_ids[index] = draw(scaled[index], number[index], min_p[index], part)
    return token_ids


def _draw_full(scaled: Tensor, number: Tensor, min_p: Tensor, rows: list[SamplingRow]) -> Tensor:
    """Over the whole vocabulary in id order: no sort is needed."""
    weight = scaled.exp()
    return _invert(weight.masked_fill_(weight < min_p, 0.0), number)


def _draw_cut(scaled: Tensor, number: Tensor, min_p: Tensor, rows: list[SamplingRow]) -> Tensor:
    """Over the likeliest tokens: top_k, then the smallest set with top_p of what that leaves."""
    vocab_size = scaled.shape[1]
    limits = [min(row.params.top_k or vocab_size, vocab_size) for row in rows]
    top_k = torch.tensor(limits, device=scaled.device).unsqueeze(1)
    top_p = _column([row.params.top_p for row in rows], scaled)
    whole = scaled.exp().sum(dim=1, keepdim=True)
    num = min(vocab_size, _FIRST_CANDIDATES)
    while True:
        values, ids = scaled.topk(num, dim=1)
        in_k = torch.arange(num, device=scaled.device) < top_k
        weight = values.exp() * in_k
        running = weight.cumsum(dim=1)
        mass = torch.where(top_k <= num, running[:, -1:], whole)
        enough = (top_k <= num) | ((top_k >= vocab_size) & (running[:, -1:] >= top_p * mass))
        if num == vocab_size or bool(enough.all()):
            break
        num = min(vocab_size, num * 8)
    keep = (running - weight < top_p * mass) & (weight >= min_p)
    place = _invert(weight * keep, number)
    return ids.gather(1, place.unsqueeze(1)).squeeze(1)


def _invert(weight: Tensor, number: Tensor) -> Tensor:
    """Index at which the running sum of weights passes number times their total."""
    running = weight.cumsum(dim=1, dtype=_wide(weight))
    total = running[:, -1:]
    place = torch.searchsorted(running, number * total, right=True)
    last = torch.searchsorted(running, total.contiguous())  # last index with any weight
    return torch.minimum(place, last).squeeze(1)


def _logprobs(
    logits: Tensor, vocab_size: int, token_ids: Tensor, rows: Sequence[SamplingRow]
) -> list[TokenLogprob | None]:
    """Records of the rows that ask for them."""
    records: list[TokenLogprob | None] = [None] * len(rows)
    asked = [i for i, row in enumerate(rows) if row.params.logprobs or row.params.top_logprobs]
    if not asked:
        return records
    index = torch.tensor(asked, device=logits.device)
    part, ids = logits[index], token_ids[index]
    normaliser = part.logsumexp(dim=1, keepdim=True)
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


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)


def _index(ids: NDArray[np.int32], like: Tensor) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64)).to(like.device)


def _wide(like: Tensor) -> torch.dtype:
    return torch.float64 if like.device.type != "mps" else torch.float32
