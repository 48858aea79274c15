"""Sampling in one launch, against plain torch by a sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlang.kernels.gpu.sample_tokens import sample
from radixlang.kernels.reference.fused import sample_reference, uniform_reference
from radixlang.runtime.sampling.counter_rng import uniform

ROWS = 12


def inputs(vocab_size: int, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    words = rng.integers(-(2**31), 2**31, (ROWS, -(-vocab_size // 32))).astype(np.int32)
    return {
        "logits": torch.from_numpy(rng.normal(0, 3, (ROWS, vocab_size)).astype(np.float32)),
        "masks": torch.from_numpy(words),
        "mask_rows": torch.arange(ROWS, dtype=torch.int32),
        "temperature": torch.from_numpy(rng.choice([0.0, 0.7, 1.0, 1.6], ROWS).astype(np.float32)),
        "top_p": torch.from_numpy(rng.choice([0.1, 0.5, 0.9, 1.0], ROWS).astype(np.float32)),
        "min_p": torch.from_numpy(rng.choice([0.0, 0.0, 0.05], ROWS).astype(np.float32)),
        "seeds": torch.from_numpy(rng.integers(-(2**63), 2**63, ROWS)),
        "counters": torch.from_numpy(rng.integers(0, 4000, ROWS)),
    }


@pytest.mark.parametrize("vocab_size", [5, 33, 1000, 8192, 8193])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_the_reference(vocab_size: int, masked: bool) -> None:
    given = inputs(vocab_size, vocab_size)
    if not masked:
        given["masks"] = given["masks"][:0]
        given["mask_rows"].fill_(-1)
    ids, allowed = sample(**given)
    masks, _ = given.pop("masks"), given.pop("mask_rows")
    mask = masks if masked else None
    expected, was_allowed = sample_reference(given.pop("logits"), mask, **given)
    assert torch.equal(allowed, was_allowed)
    assert torch.equal(ids[allowed], expected[allowed])


def test_rows_share_masks_and_some_have_none() -> None:
    given = inputs(300)
    given["mask_rows"] = torch.tensor([0, -1, 5, 0, 0, -1, 2, 1, 2, -1, 3, 0], dtype=torch.int32)
    ids, _ = sample(**given)
    masks, rows = given.pop("masks"), given.pop("mask_rows")
    own = torch.where((rows < 0)[:, None], -1, masks[rows.clamp_min(0).long()])
    expected, _ = sample_reference(given.pop("logits"), own, **given)
    assert torch.equal(ids, expected)


def test_a_mask_that_leaves_nothing_is_told_and_one_that_leaves_one_is_obeyed() -> None:
    given = inputs(100)
    given["masks"].zero_()
    given["masks"][1:, 2] = 1 << 5
    given["logits"][:, 69] = -40.0
    ids, allowed = sample(**given)
    assert allowed.tolist() == [False] + [True] * (ROWS - 1)
    assert ids[1:].tolist() == [69] * (ROWS - 1)


def test_what_padding_holds_is_never_chosen() -> None:
    given = inputs(100)
    wide = torch.full((ROWS, 128), 99.0)
    wide[:, :100] = given.pop("logits")
    ids, _ = sample(wide[:, :100], **given)
    assert int(ids.max()) < 100


def test_tokens_come_as_often_as_their_nucleus_says() -> None:
    num = 300
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(num, -1).contiguous()
    ones, keys = torch.ones(num), torch.arange(num)
    none = torch.empty((0, 1), dtype=torch.int32), torch.full((num,), -1, dtype=torch.int32)
    ids, _ = sample(logits, *none, ones, ones * 0.65, ones * 0, keys, keys * 0)
    counts = torch.bincount(ids, minlength=4) / num
    assert counts[2:].tolist() == [0.0, 0.0]
    assert abs(float(counts[0]) - 4 / 7) < 0.08


@pytest.mark.parametrize(("seed", "counter"), [(0, 0), (2**64 - 1, 3), (12345, (7 << 33) + 11)])
def test_the_reference_has_the_numbers_of_the_runtime(seed: int, counter: int) -> None:
    assert uniform_reference(seed, counter) == float(uniform([seed], [counter])[0])


def test_logits_must_be_float32_and_the_mask_as_wide() -> None:
    given = inputs(100)
    with pytest.raises(ValueError, match="sampling reads float32"):
        sample(**{**given, "logits": given["logits"].half()})
    with pytest.raises(ValueError, match="masks are"):
        sample(**{**given, "masks": given["masks"][:, 1:]})
