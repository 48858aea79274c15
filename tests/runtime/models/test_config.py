"""Reading configurations: contexts, rotary kinds, and refusals that name what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from radixlang.errors import ModelFormatError
from radixlang.runtime.models.config import RopeConfig, activation_of, as_ids, from_transformers
from radixlang.runtime.models.layers.rotary import Rotary, interleave_rows, rotate


def llama(**options: Any) -> Any:
    return transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=512, **options,
    )  # fmt: skip


def test_context_is_the_models_own_or_what_was_asked() -> None:
    assert from_transformers(llama(), name="m", dtype="float32").context_length == 512
    short = from_transformers(llama(), name="m", dtype="float32", context_length=100)
    assert short.context_length == 100


def test_dynamic_rope_is_served_up_to_its_trained_context_without_scaling() -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4,
            "original_max_position_embeddings": 128}  # fmt: skip
    config = from_transformers(llama(rope_parameters=rope), name="m", dtype="float32")
    assert config.context_length == 128
    assert config.ropes[0].kind == "default"


def test_unknown_rope_names_itself_and_what_is_supported() -> None:
    config = llama()
    config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    with pytest.raises(ModelFormatError, match=r"m: rotary scaling 'spiral'.*llama3, yarn"):
        from_transformers(config, name="m", dtype="float32")


def test_unknown_activation_names_itself() -> None:
    with pytest.raises(ModelFormatError, match="activation 'relu6'"):
        activation_of("relu6", "m")


@pytest.mark.parametrize(("given", "expected"), [(None, ()), (3, (3,)), ([1, 2], (1, 2))])
def test_ids_come_in_many_shapes(given: Any, expected: tuple[int, ...]) -> None:
    assert as_ids(given) == expected


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    rotary = Rotary(RopeConfig(theta=1e4, rotary_dim=16), 16, torch.device("cpu"))
    q, k = torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def turned(x: torch.Tensor, position: int) -> torch.Tensor:
        return rotate(x, rotary.at(torch.tensor([position])))

    torch.testing.assert_close(turned(q, 9).norm(), q.norm())
    near = (turned(q, 9) * turned(k, 4)).sum()
    far = (turned(q, 109) * turned(k, 104)).sum()
    torch.testing.assert_close(near, far, atol=1e-4, rtol=1e-4)


def test_interleaving_pairs_halves_and_leaves_the_rest() -> None:
    rows = torch.arange(12.0)[:, None]  # two heads of 6, of which 4 turn
    paired = interleave_rows(rows, 2, 4)[:, 0].tolist()
    assert paired == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
