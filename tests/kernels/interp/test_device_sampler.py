"""The sampler of a device against the host's: the same tokens and log-probabilities."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.runtime.sampling.device_sampler import sample_step
from radixlang.runtime.sampling.row import GREEDY, SamplingRow
from radixlang.runtime.sampling.sampler import Sampled, sample
from radixlang.sampling_params import SamplingParams

VOCAB, WIDTH, ROWS = 300, 320, 9
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.3},
    "nucleus": {"temperature": 0.7, "top_p": 0.8, "min_p": 0.02},
    "top_k": {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
    "top_1": {"temperature": 1.0, "top_k": 1},
    "repetition": {"temperature": 0.7, "repetition_penalty": 1.3},
    "frequency": {"temperature": 0.0, "frequency_penalty": 0.7, "presence_penalty": -0.4},
    "logprobs": {"temperature": 1.0, "logprobs": True},
    "top_logprobs": {"temperature": 0.8, "top_logprobs": 3, "repetition_penalty": 1.2},
}


def logits_of(seed: int, num: int) -> torch.Tensor:
    return 4 * torch.randn(num, WIDTH, generator=torch.Generator().manual_seed(seed))


def rows_of(options: dict[str, Any], **more: Any) -> list[SamplingRow]:
    rng = np.random.default_rng(7)
    return [
        SamplingRow(
            SamplingParams(**options), seed=11 * index, index=index,
            prompt_ids=rng.integers(0, WIDTH, 40).astype(np.int32),
            generated_ids=rng.integers(0, VOCAB, 9 * index).astype(np.int32), **more,
        )
        for index in range(ROWS)
    ]  # fmt: skip


def both(rows: list[SamplingRow], seed: int = 3, max_rows: int = 64) -> tuple[Sampled, Sampled]:
    logits = logits_of(seed, len(rows))
    hidden = torch.arange(len(rows))[:, None]
    found = sample_step(
        hidden, range(len(rows)), rows, lambda part: logits[part[:, 0]].clone(),
        torch.ones(len(rows), dtype=torch.bool), VOCAB, max_rows=max_rows,
    )  # fmt: skip
    assert found.is_finite == [True] * len(rows)
    return found.sampled, sample(logits.clone(), rows, VOCAB)


def same(found: Sampled, expected: Sampled) -> None:
    assert found.token_ids == expected.token_ids
    assert found.is_finite == expected.is_finite
    assert found.is_allowed == expected.is_allowed
    for mine, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-5)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]
            assert [value for _, value in mine.top] == pytest.approx(
                [value for _, value in theirs.top], abs=1e-5
            )


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_alone(name: str) -> None:
    same(*both(rows_of(OPTIONS[name])))


def test_biases_come_before_penalties_and_a_ban_counts_where_a_mask_leaves_one_token() -> None:
    bias = (np.array([5, 9, 200]), np.array([3.5, -np.inf, -2.0], np.float32))
    for name in ("greedy", "top_k", "top_logprobs"):
        same(*both(rows_of(OPTIONS[name], bias=bias), max_rows=4))
    two = np.zeros(WIDTH // 32, np.int32)
    two[0] = 1 << 5 | 1 << 9
    found, expected = both(rows_of(OPTIONS["drawn"], bias=bias, bitmask=two, held_back=(5,)))
    same(found, expected)
    assert found.token_ids == [5] * ROWS


def masks(num: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    return rng.integers(-(2**31), 2**31, (num, WIDTH // 32)).astype(np.int32)


def test_rows_of_every_kind_together_and_in_parts() -> None:
    rows = [rows_of(options)[place] for place, options in enumerate(OPTIONS.values())]
    for place, mask in zip((1, 3, 5), masks(3), strict=True):
        rows[place] = dataclasses.replace(rows[place], bitmask=mask)
    rows[2] = dataclasses.replace(rows[2], held_back=(1, 2, 299, 310))
    rows[4] = GREEDY
    for max_rows in (64, 4, 1):
        same(*both(rows, max_rows=max_rows))


def test_all_plain_rows() -> None:
    same(*both([GREEDY] * 5))


@pytest.mark.parametrize("name", ["greedy", "drawn", "top_k"])
def test_held_back_tokens_are_banned_unless_a_mask_leaves_no_other(name: str) -> None:
    only = np.zeros(WIDTH // 32, np.int32)
    only[0] = 1 << 5
    logits_first = (5, 7)
    rows = rows_of(OPTIONS[name], held_back=logits_first, bitmask=only)
    found, expected = both(rows)
    same(found, expected)
    assert found.token_ids == [5] * ROWS
    for mask in (None, np.full(WIDTH // 32, -1, np.int32)):
        found, expected = both(rows_of(OPTIONS[name], held_back=tuple(range(150)), bitmask=mask))
        same(found, expected)
        assert min(found.token_ids) >= 150


def test_a_mask_that_allows_padding_alone_allows_nothing() -> None:
    beyond = np.zeros(WIDTH // 32, np.int32)
    beyond[9] = -(1 << 12)  # tokens 300 to 319
    found, expected = both(rows_of(OPTIONS["drawn"], bitmask=beyond, held_back=(3,)))
    assert found.is_allowed == expected.is_allowed == [False] * ROWS


def test_rows_that_are_not_finite_are_told() -> None:
    rows = rows_of(OPTIONS["drawn"])
    logits = logits_of(0, ROWS)
    logits[2, 17], logits[4, 3] = torch.nan, torch.nan
    found = sample_step(
        torch.arange(ROWS)[:, None], range(ROWS), rows, lambda part: logits[part[:, 0]],
        torch.tensor([True, False]), VOCAB, max_rows=64,
    )  # fmt: skip
    assert found.is_finite == [True, False]
    assert [i for i, ok in enumerate(found.sampled.is_finite) if not ok] == [2, 4]


def test_rows_are_taken_by_their_index() -> None:
    logits = logits_of(1, 12)
    rows = rows_of(OPTIONS["drawn"])[:3]
    found = sample_step(
        torch.arange(12)[:, None], [2, 3, 11], rows, lambda part: logits[part[:, 0]].clone(),
        torch.ones(12, dtype=torch.bool), VOCAB, max_rows=2,
    )  # fmt: skip
    same(found.sampled, sample(logits[[2, 3, 11]], rows, VOCAB))
