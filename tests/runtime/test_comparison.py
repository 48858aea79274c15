"""The probe that holds the cache against an unshared float64 run: it finds what is damaged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.errors import ParameterError
from radixlang.runtime.diagnostics.float64_check import run_alone
from radixlang.runtime.models.float64 import in_float64
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60
EIGHT = SamplingParams(max_tokens=8, min_tokens=8, temperature=0.0, ignore_eos=True)


@pytest.fixture
def runtime(make_runtime: Callable[..., Any]) -> Any:
    return make_runtime(cold_tokens=200)


def fork_of_two(runtime: Any) -> tuple[int, ...]:
    """A shared text, two branches below it; returns the tokens of the second."""
    root = runtime.new_branch()
    root.extend("The theatre in the north of the town")
    pair = root.fork(2)
    for branch, text in zip(pair, (" plays every night", " sleeps in the morning"), strict=True):
        branch.extend(text)
        branch.generate(EIGHT).result(TIMEOUT)
    tokens: tuple[int, ...] = pair[1].tokens().result(TIMEOUT)
    for branch in (root, *pair):
        branch.release()
    return tokens


def damage(runtime: Any, tokens: tuple[int, ...], position: int, value: float) -> None:
    """Change one number of the values of one token in the second layer."""

    def change() -> None:
        tree, cache = runtime.core.memory.tree, runtime.core.memory.cache
        slots = tree.slots(tree.match("", tokens).node)
        cache[1].v[int(slots[position]), 0, 3] += value

    runtime.core.call(change)


def test_a_sound_cache_is_as_its_float64_run(runtime: Any) -> None:
    tokens = fork_of_two(runtime)
    found = runtime.compare_with_float64(tokens)
    assert found.num_tokens == len(tokens)
    assert found.nodes[0].start == 0
    assert len(found.nodes) >= 2
    assert found.nodes[-1].end == len(tokens) - 1  # the last token was sampled, not computed
    assert found.diverged == ()
    assert max(node.error for node in found.nodes) < 1e-4
    assert 0 <= found.kl < 1e-8
    assert found.same_top1


@pytest.mark.parametrize("value", [0.5, math.nan])
def test_a_damaged_row_is_found_and_named(runtime: Any, value: float) -> None:
    tokens = fork_of_two(runtime)
    sound = runtime.compare_with_float64(tokens)
    position = sound.nodes[1].start + 1
    damage(runtime, tokens, position, value)
    found = runtime.compare_with_float64(tokens)
    (node,) = found.diverged
    assert (node.start, node.end) == (sound.nodes[1].start, sound.nodes[1].end)
    assert (node.layer, node.tensor, node.position) == (1, "v", position)
    assert f"v of token {position} in layer 1" in str(found)
    assert not found.kl <= 100 * abs(sound.kl)
    assert (runtime.find_wild_nodes() != []) == math.isnan(value)
    runtime.flush_cache()


def test_text_that_is_cached_in_part_or_not_at_all(runtime: Any) -> None:
    tokens = fork_of_two(runtime)
    longer = runtime.compare_with_float64([*tokens, 5, 6, 7])
    assert longer.nodes[-1].end == len(tokens) - 1
    assert longer.kl < 1e-8
    unknown = runtime.compare_with_float64("Numbers: 0 1 2 3")
    assert unknown.nodes == ()
    assert unknown.kl < 1e-8
    apart = runtime.compare_with_float64(tokens, namespace="other")
    assert apart.nodes == ()


def test_8_bit_nodes_are_off_and_said_to_be_8_bit(runtime: Any) -> None:
    tokens = fork_of_two(runtime)

    def chill() -> None:
        for node in list(runtime.core.memory.tree.nodes()):
            runtime.core.memory.cold.quantize(node)

    runtime.core.call(chill)
    found = runtime.compare_with_float64(tokens)
    assert all(node.quantized and 1e-3 < node.error < 0.1 for node in found.nodes)
    assert "8-bit tokens 0 to" in str(found)
    assert found.diverged == ()


def test_a_model_of_transformers_has_a_float64_twin() -> None:
    import transformers

    from radixlang.runtime.models.transformers_model import wrap

    torch.manual_seed(3)
    config = transformers.GPTNeoXConfig(
        vocab_size=97, hidden_size=64, intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    tokens = np.arange(3, 20, dtype=np.int32)
    with torch.no_grad():
        expected = theirs.double()(input_ids=torch.from_numpy(tokens)[None].long()).logits[0, -1]
    model = wrap(theirs.float(), "neox")
    kv, logits = run_alone(in_float64(model), tokens)
    assert kv.dtype == torch.float64
    assert kv.shape == (2, 2, 17, 4, 16)
    assert torch.allclose(logits.double(), expected, atol=1e-6)


def test_an_unknown_kind_of_model_is_refused() -> None:
    with pytest.raises(ParameterError, match="float64 twin of a object"):
        in_float64(object())  # type: ignore[arg-type]
