"""Penalties of all rows together have the bits of a row alone, and counts those of a recount."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlang.runtime.sampling import sampler
from radixlang.runtime.sampling.penalties import Penalties
from radixlang.runtime.sampling.row import SamplingRow
from radixlang.runtime.sampling.token_counts import SeenTokens, TokenCounts
from radixlang.sampling_params import SamplingParams

VOCAB = 300
KINDS: tuple[dict[str, float], ...] = (
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "presence_penalty": 0.3},
    {},
    {"frequency_penalty": 0.7, "presence_penalty": -0.4},
    {"repetition_penalty": 1.1, "frequency_penalty": 0.1},
)


def rows(num: int) -> list[SamplingRow]:
    rng = np.random.default_rng(3)
    return [
        SamplingRow(
            SamplingParams(temperature=0.0, **KINDS[place % len(KINDS)]), seed=0, index=place,
            prompt_ids=rng.integers(0, VOCAB + 20, 7 * place).astype(np.int32),
            generated_ids=rng.integers(0, VOCAB, 5 * place).astype(np.int32),
        )
        for place in range(num)
    ]  # fmt: skip


def alone(logit: Tensor, row: SamplingRow) -> None:
    """One row's penalties, as their definition has it."""
    params = row.params
    if params.repetition_penalty != 1.0:
        both = np.unique(np.concatenate((row.prompt_ids, row.generated_ids)))
        for token_id in both[both < VOCAB].tolist():
            value = logit[token_id].clone()
            penalty = params.repetition_penalty
            logit[token_id] = value / penalty if value > 0 else value * penalty
    for token_id, count in zip(*np.unique(row.generated_ids, return_counts=True), strict=True):
        times = torch.tensor(float(count))
        logit[token_id] -= params.frequency_penalty * times + params.presence_penalty


def test_rows_together_have_the_bits_of_each_alone() -> None:
    given = rows(11)
    logits = 4 * torch.randn(11, VOCAB, generator=torch.Generator().manual_seed(0))
    expected = logits.clone()
    for logit, row in zip(expected, given, strict=True):
        alone(logit, row)
    sampler._apply_penalties(logits, given)
    assert torch.equal(logits, expected)


def test_columns_name_each_pair_once_and_none_of_the_padding() -> None:
    given = rows(11)
    found = Penalties.of(given, VOCAB)
    for pairs, sizes in ((found.seen, found.sizes[0]), (found.counted, found.sizes[1])):
        assert len(set(zip(*pairs.tolist(), strict=True))) == pairs.shape[1]
        assert pairs[1].max() < VOCAB
        assert np.bincount(pairs[0], minlength=len(given)).tolist() == sizes.tolist()
    assert found.charges.dtype == np.float32


def test_counts_follow_the_tokens() -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 90, 40).astype(np.int32)
    generated = rng.integers(0, 500, 900).astype(np.int32)
    counts = TokenCounts(prompt)
    for stop in (0, 1, 2, 70, 71, 900):
        counts.count(generated[:stop])
        found, expected = counts.seen, SeenTokens.of(prompt, generated[:stop])
        order = np.argsort(found.generated_ids)
        assert found.generated_ids[order].tolist() == expected.generated_ids.tolist()
        assert found.counts[order].tolist() == expected.counts.tolist()
        assert sorted(found.all_ids.tolist()) == expected.all_ids.tolist()


@pytest.mark.parametrize("draft_tokens", [0, 8])
def test_generations_with_penalties_count_from_step_to_step(
    make_runtime: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, draft_tokens: int
) -> None:
    """With counts that are kept, and with tokens counted anew at every step."""
    params = SamplingParams(
        max_tokens=40, temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.2,
        ignore_eos=True, seed=4,
    )  # fmt: skip

    def texts() -> list[str]:
        runtime = make_runtime(draft_tokens=draft_tokens)
        branches = [runtime.new_branch() for _ in range(3)]
        for index, branch in enumerate(branches):
            branch.extend(f"{index} one two one two one two ")
        return [future.result(60).text for future in
                [branch.generate(params) for branch in branches]]  # fmt: skip

    kept = texts()
    monkeypatch.setattr(SamplingRow, "seen", property(
        lambda row: SeenTokens.of(row.prompt_ids, row.generated_ids)))  # fmt: skip
    assert texts() == kept
