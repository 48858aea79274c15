"""Sampling: distributions, truncation, penalties, masks, keyed randomness, log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from radixlang.runtime.sampling.counter_rng import SeedSource, uniform
from radixlang.runtime.sampling.row import GREEDY, SamplingRow
from radixlang.runtime.sampling.sampler import (
    choose_among,
    row_logprob,
    sample,
    target_logprobs,
)
from radixlang.runtime.sampling.wide_rows import likeliest
from radixlang.sampling_params import SamplingParams


def row(index: int = 0, seed: int = 0, **params: Any) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), seed, index)


def logits_of(probabilities: list[float], num_rows: int) -> torch.Tensor:
    return torch.tensor(probabilities).log().expand(num_rows, -1).contiguous()


def frequencies(probabilities: list[float], num: int = 4000, **params: Any) -> np.ndarray:
    rows = [row(index, seed=5, **params) for index in range(num)]
    ids = sample(logits_of(probabilities, num), rows, len(probabilities)).token_ids
    return np.bincount(ids, minlength=len(probabilities)) / num


def bits(allowed: list[int], num_words: int = 2) -> np.ndarray:
    mask = np.zeros(num_words, np.uint32)
    for token_id in allowed:
        mask[token_id // 32] |= np.uint32(1 << (token_id % 32))
    return mask.view(np.int32)


def test_greedy_is_the_likeliest() -> None:
    logits = torch.randn(50, 37, generator=torch.Generator().manual_seed(0))
    got = sample(logits, [row(temperature=0.0)] * 50, 37)
    assert got.token_ids == logits.argmax(dim=1).tolist()
    assert all(got.is_finite)
    assert all(got.is_allowed)


@pytest.mark.parametrize("width", [1, 255, 256, 300, 5000])
def test_likeliest_is_the_first_maximum(width: int) -> None:
    logits = torch.randint(
        0, 9, (40, width), generator=torch.Generator().manual_seed(width)
    ).float()
    logits[3] = -torch.inf
    logits[4, width // 2] = torch.nan
    best, ids = likeliest(logits)
    assert ids.tolist() == logits.argmax(dim=1).tolist()
    np.testing.assert_array_equal(best, logits.amax(dim=1))


def test_draws_follow_the_distribution() -> None:
    expected = [0.5, 0.3, 0.15, 0.05]
    np.testing.assert_allclose(frequencies(expected), expected, atol=0.03)


def test_temperature_sharpens() -> None:
    got = frequencies([0.5, 0.3, 0.2], temperature=0.5)
    expected = np.array([0.25, 0.09, 0.04]) / 0.38
    np.testing.assert_allclose(got, expected, atol=0.03)


def test_tiny_temperature_is_greedy_and_finite() -> None:
    got = sample(logits_of([0.2, 0.5, 0.3], 4), [row(i, temperature=1e-30) for i in range(4)], 3)
    assert got.token_ids == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 1}, [0]),
        ({"top_p": 0.75}, [0, 1]),
        ({"top_p": 0.81}, [0, 1, 2]),
        ({"top_p": 1e-9}, [0]),
        ({"min_p": 0.35}, [0, 1]),
        ({"min_p": 1.0}, [0]),
        ({"top_k": 3, "top_p": 0.6}, [0, 1]),
        ({"top_k": 3, "min_p": 0.35}, [0, 1]),
    ],
)
def test_truncation_keeps_what_it_should(params: dict[str, Any], kept: list[int]) -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    expected = np.where(np.isin(range(4), kept), probabilities, 0)
    got = frequencies(probabilities.tolist(), **params)
    np.testing.assert_allclose(got, expected / expected.sum(), atol=0.03)
    assert got[expected == 0].sum() == 0


def test_top_p_over_a_flat_vocabulary_needs_many_candidates() -> None:
    logits = torch.rand(300, 40_000, generator=torch.Generator().manual_seed(4)) / 1000
    ids = sample(logits, [row(i, top_p=0.9) for i in range(300)], 40_000).token_ids
    assert len(set(ids)) > 250  # far beyond the first candidates that were sorted


def test_mixed_rows_do_not_disturb_each_other() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    kinds = [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.2},
             {"temperature": 2.0, "top_k": 40, "top_p": 0.9}]  # fmt: skip
    rows = [row(i, seed=i, **kind) for i, kind in enumerate(kinds)]
    together = sample(logits.clone(), rows, 50).token_ids
    alone = [sample(logits[i : i + 1].clone(), [rows[i]], 50).token_ids[0] for i in range(6)]
    assert together == alone
    assert together[0] == int(logits[0].argmax())
    backwards = sample(logits.flip(0), rows[::-1], 50).token_ids
    assert backwards == together[::-1]


def test_padding_is_never_chosen() -> None:
    logits = torch.zeros(20, 64)
    logits[:, 60:] = 100.0
    rows = [row(i, temperature=float(i % 2)) for i in range(20)]
    assert max(sample(logits, rows, 60).token_ids) < 60


def test_masks_allow_only_their_bits() -> None:
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(2))
    rows = [row(0, temperature=0.0), row(1), row(2, top_k=3), row(3, temperature=0.0)]
    for each in rows[:3]:
        each.bitmask = bits([3, 31, 33])
    ids = sample(logits.clone(), rows, 40).token_ids
    assert set(ids[:3]) <= {3, 31, 33}
    assert ids[0] == max((3, 31, 33), key=lambda i: float(logits[0, i]))
    assert ids[3] == int(logits[3].argmax())


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_p": 0.5}, {"top_k": 3}])
def test_empty_mask_is_reported(params: dict[str, Any]) -> None:
    masked = row(**params)
    masked.bitmask = bits([])
    got = sample(torch.randn(2, 40), [masked, row()], 40)
    assert got.is_allowed == [False, True]


def test_held_back_tokens_do_not_come_unless_nothing_else_may() -> None:
    logits = torch.zeros(2, 40)
    logits[:, 7] = 50.0
    free, bound = row(temperature=0.0), row(temperature=0.0)
    free.held_back = bound.held_back = (7,)
    bound.bitmask = bits([7])
    ids = sample(logits, [free, bound], 40).token_ids
    assert ids[0] != 7
    assert ids[1] == 7


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_logits_are_reported_by_row(value: float) -> None:
    logits = torch.zeros(3, 10)
    logits[1, 4] = value
    for kind in ({"temperature": 0.0}, {}, {"top_p": 0.5}, {"min_p": 0.1, "top_k": 2}):
        got = sample(logits.clone(), [row(), row(**kind), row(temperature=0.0)], 10)
        assert got.is_finite == [True, False, True]


def test_rows_that_want_the_likeliest_alone_are_as_any_other_greedy_row() -> None:
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(3))
    logits[1, 4] = torch.nan
    short, long = (sample(logits.clone(), [kind] * 3, 690) for kind in (GREEDY, row(temperature=0)))
    assert short == long
    assert short.is_finite == [True, False, True]


def test_penalties_as_defined() -> None:
    logits = torch.tensor([[2.0, 1.5, -1.0, 0.5]])

    def best(**params: Any) -> int:
        each = row(temperature=0.0, **params)
        each.prompt_ids = np.array([1], np.int32)
        each.generated_ids = np.array([0, 0], np.int32)
        return sample(logits.clone(), [each], 4).token_ids[0]

    assert best() == 0
    assert best(frequency_penalty=0.2) == 0  # 2.0 - 0.4
    assert best(frequency_penalty=0.3) == 1  # 2.0 - 0.6 < 1.5
    assert best(presence_penalty=0.6) == 1
    assert best(repetition_penalty=1.1) == 0  # 1.82 against 1.36
    assert best(repetition_penalty=5.0) == 3  # 0.4 and 0.3 against 0.5


def test_a_penalty_passes_over_prompt_tokens_that_cannot_be_generated() -> None:
    penalised = row(temperature=0.0, repetition_penalty=5.0)
    penalised.prompt_ids = np.array([0, 5], np.int32)  # of a vocabulary of 4, padded to 8
    assert sample(torch.tensor([[2.0, 1.0, 0, 0, 0, 0, 0, 0]]), [penalised], 4).token_ids == [1]


def test_numbers_are_keyed_and_uniform() -> None:
    numbers = uniform([9] * 5000, list(range(5000)))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.05
    neighbours = uniform(list(range(5000)), [0] * 5000)
    assert abs(np.corrcoef(neighbours[1:], neighbours[:-1])[0, 1]) < 0.05
    assert uniform([2**64 - 1, 9], [3, 17])[1] == numbers[17]


def test_seed_source_repeats_and_does_not_collide() -> None:
    first, second = SeedSource(1), SeedSource(1)
    seeds = [first.next() for _ in range(1000)]
    assert seeds == [second.next() for _ in range(1000)]
    assert len(set(seeds)) == 1000
    assert SeedSource(2).next() not in seeds


def test_logprobs_are_those_of_the_model_itself() -> None:
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(3))
    rows = [row(i, temperature=0.3, top_k=2, logprobs=True, top_logprobs=i) for i in range(3)]
    got = sample(logits, rows, 28)
    expected = logits.log_softmax(dim=1)
    for i, (token_id, record) in enumerate(zip(got.token_ids, got.logprobs, strict=True)):
        assert record is not None
        assert record.logprob == pytest.approx(float(expected[i, token_id]), abs=1e-5)
        assert len(record.top) == i
        assert record == row_logprob(logits[i], token_id, i, 28) or record.top == pytest.approx(
            row_logprob(logits[i], token_id, i, 28).top
        )
    values, is_greedy = target_logprobs(logits, torch.tensor([0, 2, 2]), torch.tensor([5, 6, 7]))
    np.testing.assert_allclose(values, expected[[0, 2, 2], [5, 6, 7]], atol=1e-5)
    assert is_greedy.tolist() == [int(logits[r].argmax()) == t for r, t in ((0, 5), (2, 6), (2, 7))]


def test_choice_among_candidates() -> None:
    logits = torch.tensor([0.0, 5.0, 1.0, 4.0])
    candidates = np.array([0, 2, 3])
    assert choose_among(logits, candidates, SamplingParams(temperature=0.0), 0) == 3
    drawn = {choose_among(logits, candidates, SamplingParams(), seed) for seed in range(200)}
    assert drawn == {0, 2, 3}
