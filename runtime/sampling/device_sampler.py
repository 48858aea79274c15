"""From logits to tokens on a device: one upload and one download a step, whatever its rows.

The same results as `sampler.sample`, by torch operations and one kernel that never wait for the
host: rows are not sorted into kinds there, and no size depends on a value on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.protocol import TokenLogprob
from radixlang.runtime.sampling.normaliser import log_normaliser
from radixlang.runtime.sampling.row import GREEDY, SamplingRow
from radixlang.runtime.sampling.row_table import RowTable, send_table
from radixlang.runtime.sampling.sampler import Sampled
from radixlang.runtime.sampling.wide_rows import invert
from radixlang.sampling_params import SamplingParams

# Parameters that this module handles as the general sampler does.
HANDLED = frozenset({"temperature", "top_k", "top_p", "min_p", "seed", "frequency_penalty",
                     "presence_penalty", "repetition_penalty", "logit_bias", "logprobs",
                     "top_logprobs"})  # fmt: skip
# Parameters that choose no token: the request handles them.
ELSEWHERE = frozenset({"max_tokens", "min_tokens", "stop", "stop_regex", "stop_token_ids",
                       "ignore_eos", "heal", "attention"})  # fmt: skip


def is_known(params: SamplingParams) -> bool:
    """Whether every parameter that is set has the same effect here as elsewhere.

    A row that sets another one goes to the general sampler, and so does any new parameter.
    """
    kind: Any = type(params)
    return all(getattr(params, name) == usual for name, usual in _unknown(kind))


@cache
def _unknown(kind: type[SamplingParams]) -> tuple[tuple[str, object], ...]:
    """Parameters of neither list, with their defaults."""
    known = HANDLED | ELSEWHERE
    return tuple((each.name, each.default) for each in fields(kind) if each.name not in known)


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The tokens of a step's sampled rows, and whether each row of the model's output is finite."""

    sampled: Sampled
    is_finite: list[bool]


def sample_step(
    hidden: Tensor,
    index: Sequence[int],
    rows: Sequence[SamplingRow],
    logits_of: Callable[[Tensor], Tensor],
    is_finite: Tensor,
    vocab_size: int,
    *,
    max_rows: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> StepTokens:
    """Choose the tokens of some rows of a step's output.

    Args:
        hidden: [num_rows, hidden_size].
        index: the rows of it to sample from, one for each of `rows`.
        logits_of: rows of `hidden` to float32 logits [n, width].
        is_finite: bool [num_tokens], downloaded with the tokens.
        vocab_size: ids that a token may have.
        max_rows: rows of logits in memory at once.
        meanwhile: called when all is launched, before the tokens are waited for.
    """
    where = np.array(index, np.int64)
    is_whole = len(where) == len(hidden) and bool((np.diff(where, prepend=-1) == 1).all())
    table, on_device = send_table(
        rows, vocab_size, hidden.device, np.empty(0, np.int64) if is_whole else where
    )
    num_top = min(vocab_size, max(row.params.top_logprobs for row in rows))
    has_logprobs = any(row.wants_logprobs for row in rows)
    parts = []
    for begin in range(0, len(rows), max_rows):
        end = min(begin + max_rows, len(rows))
        chosen = hidden[begin:end] if is_whole else hidden[on_device[begin:end]]
        logits = logits_of(chosen)
        parts.append(_part(logits, table.part(begin, end), vocab_size, has_logprobs, num_top))
        del logits  # free them before the next part takes as much
    width = parts[0].shape[1]
    words = torch.cat([*(part.reshape(-1) for part in parts), is_finite.to(torch.int32)])
    meanwhile()
    host = words.cpu().numpy()  # the one wait for the device
    flags = host[len(rows) * width :].astype(bool).tolist()
    return StepTokens(_sampled(host[: len(rows) * width].reshape(-1, width), rows, num_top), flags)


def _part(
    logits: Tensor, table: RowTable, vocab_size: int, has_logprobs: bool, num_top: int
) -> Tensor:
    """int32 words [n, 3], or [n, 4 + 2 num_top] with log-probabilities: token, whether its logits
    are finite, whether any was allowed, then bits of log-probabilities and the top ids."""
    usable = logits[:, :vocab_size]
    is_finite = usable.amax(dim=1).isfinite()  # a NaN anywhere in the row is its maximum
    if all(row is GREEDY for row in table.rows):
        token_ids, is_allowed = usable.argmax(dim=1), torch.ones_like(is_finite)
    else:
        changes = any(len(pairs[0]) for pairs in (table.seen, table.counted, table.biased))
        work = usable.clone() if changes and has_logprobs else usable
        token_ids, is_allowed = choose(work, table)
    columns = [token_ids[:, None].int(), is_finite[:, None].int(), is_allowed[:, None].int()]
    if has_logprobs:
        normaliser = log_normaliser(logits)[:, None]
        columns.append((logits.gather(1, token_ids[:, None]) - normaliser).view(torch.int32))
        if num_top:
            values, ids = usable.topk(num_top, dim=1)
            columns += [(values - normaliser).view(torch.int32), ids.int()]
    return torch.cat(columns, dim=1)


def choose(logits: Tensor, table: RowTable) -> tuple[Tensor, Tensor]:
    """Tokens of rows [n, vocab_size] and whether any was allowed; overwrites `logits`."""
    from radixlang.kernels.gpu.sample_tokens import sample  # Triton is there on Linux only

    _change(logits, table)
    token_ids, is_allowed = sample(
        logits, table.masks, table.mask_rows, *table.chances[:3], *table.keys
    )
    rows = table.rows
    top_k = [row.params.top_k is not None and row.params.temperature > 0 for row in rows]
    if any(top_k):
        num = max(row.params.top_k or 0 for row, is_k in zip(rows, top_k, strict=True) if is_k)
        drawn = _draw_top_k(logits, table, min(num, logits.shape[1]))
        is_k = (table.limits < logits.shape[1]) & (table.chances[0] > 0)
        token_ids = torch.where(is_k, drawn, token_ids)
    return token_ids, is_allowed


def _change(logits: Tensor, table: RowTable) -> None:
    """Add biases, then take penalties, as the general sampler does."""
    if table.biased.shape[1]:
        row, token = table.biased
        logits[row, token] += table.biases
    if table.seen.shape[1]:
        row, token = table.seen
        value, penalty = logits[row, token], table.chances[3][row]
        logits[row, token] = torch.where(value > 0, value / penalty, value * penalty)
    if table.counted.shape[1]:
        row, token = table.counted
        logits[row, token] -= table.charges


def _draw_top_k(logits: Tensor, table: RowTable, num: int) -> Tensor:
    """Draw from the top_k likeliest of each row, of those from the smallest set with top_p of
    their mass; what it gives for rows without top_k has no meaning."""
    temperature, top_p, min_p = (chance[:, None] for chance in table.chances[:3])
    allowed = logits.masked_fill(~_bits(table, logits.shape[1]), -torch.inf)
    weight = ((allowed - allowed.amax(dim=1, keepdim=True)) / temperature).exp()
    weight, ids = weight.topk(num, dim=1)
    place = torch.arange(num, device=logits.device)
    weight *= place < table.limits[:, None]
    running = weight.cumsum(dim=1)
    keep = (running - weight < top_p * running[:, -1:]) & (weight >= min_p)
    chosen = invert(weight * keep, table.numbers[:, None])
    token_ids: Tensor = ids.gather(1, chosen[:, None]).squeeze(1)
    return token_ids


def _bits(table: RowTable, vocab_size: int) -> Tensor:
    """Allowed tokens [n, vocab_size] bool."""
    if not len(table.masks):
        return torch.ones((), dtype=torch.bool, device=table.masks.device)
    at = torch.arange(vocab_size, device=table.masks.device)
    words = table.masks[table.mask_rows.clamp_min(0).long()[:, None], at // 32]
    allowed: Tensor = (words >> (at % 32).int()) & 1 == 1
    return allowed.logical_or((table.mask_rows < 0)[:, None])


def _sampled(words: NDArray[np.int32], rows: Sequence[SamplingRow], num_top: int) -> Sampled:
    ids, finite, allowed = words[:, :3].T.tolist()
    records: list[TokenLogprob | None] = [None] * len(rows)
    if words.shape[1] > 3:
        chosen = words[:, 3].view(np.float32) if words.shape[1] == 4 else _floats(words[:, 3])
        values = _floats(words[:, 4 : 4 + num_top])
        top_ids = words[:, 4 + num_top :]
        for place, row in enumerate(rows):
            if row.wants_logprobs:
                num = row.params.top_logprobs
                top = zip(top_ids[place, :num].tolist(), values[place, :num].tolist(), strict=True)
                records[place] = TokenLogprob(ids[place], float(chosen[place]), tuple(top))
    return Sampled(ids, [bool(x) for x in finite], [bool(x) for x in allowed], records)


def _floats(words: NDArray[np.int32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(words).view(np.float32)
