"""Adapters on 8-bit weights: as near to float32 as the weights themselves, and one answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlang.protocol import AdapterUse
from radixlang.runtime.models.config import from_transformers
from radixlang.runtime.models.int8.build import build_int8_decoder
from radixlang.runtime.models.model import LoadedModel
from radixlang.runtime.models.weights import StateDictWeights
from radixlang.runtime.process.native_library import native_library
from radixlang.sampling_params import SamplingParams
from tests.runtime.adapters.conftest import our_model, reference_model, save_adapter

TIMEOUT = 60
PROMPT = [5, 40, 77, 300, 21, 9, 150, 33, 60, 2, 411, 87]
PARAMS = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, logprobs=True)
USES = [None, AdapterUse("a"), AdapterUse("b"), AdapterUse("a", 0.5, layers=(0, 2))]


def eight_bits(family: str, tiny: Any, *, native: bool) -> LoadedModel:
    reference = reference_model(family)
    config = from_transformers(reference.config, name=f"tiny {family}", dtype="float32")
    source = StateDictWeights(reference.state_dict(), "memory", post_norms=config.post_norms)
    model = build_int8_decoder(config, source, None, native_library() if native else None)
    return LoadedModel(model, tiny.tokenizer, config)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    home = tmp_path_factory.mktemp("adapters")

    def make(family: str) -> dict[str, Path]:
        return {
            name: save_adapter(family, home / family / name, seed=seed, r=rank)
            for name, seed, rank in (("a", 1, 4), ("b", 2, 19))
        }

    return make


@pytest.fixture
def serve(
    make_runtime: Callable[..., Any], folders: Callable[[str], dict[str, Path]]
) -> Callable[..., Any]:
    def make(model: LoadedModel, family: str, **options: Any) -> Any:
        runtime = make_runtime(model, **options)
        for name, folder in folders(family).items():
            runtime.load_adapter(name, folder)
        return runtime

    return make


def distribution(runtime: Any, use: AdapterUse | None) -> torch.Tensor:
    """Log-probabilities [vocab] after the prompt, the whole computed with an adapter."""
    branch = runtime.new_branch()
    branch.use_adapter(use)
    branch.extend(PROMPT)
    found = branch.next_token(top=413).result(TIMEOUT)
    values = torch.zeros(413, dtype=torch.float64)
    values[list(found.token_ids)] = torch.tensor(found.logprobs, dtype=torch.float64)
    return values


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "phi3"])
def test_they_add_what_they_add_to_float32(
    family: str, native: bool, serve: Callable[..., Any], tiny_model: Any
) -> None:
    exact = serve(our_model(family, tiny_model), family)
    rounded = serve(eight_bits(family, tiny_model, native=native), family)
    base = distribution(exact, None)
    for use in USES[1:]:
        wanted, found = distribution(exact, use), distribution(rounded, use)
        error = float((wanted.exp() * (wanted - found)).sum())
        effect = float((wanted.exp() * (wanted - base)).sum())
        assert error < 1e-3
        assert error < effect / 20


def test_one_answer_alone_in_company_drafted_and_warm(
    serve: Callable[..., Any], tiny_model: Any
) -> None:
    """Equal tokens and equal bits of their log-probabilities, on both kinds of weights."""
    for model in (eight_bits("qwen3", tiny_model, native=True), our_model("qwen3", tiny_model)):
        alone = [_answers(serve(model, "qwen3", draft_tokens=0), [use])[0] for use in USES]
        served = serve(model, "qwen3", num_pages=400)
        for _ in range(2):
            together = _answers(served, USES * 8)
            assert [each.token_ids for each in together] == [each.token_ids for each in alone * 8]
            assert [each.logprobs for each in together] == [each.logprobs for each in alone * 8]


def _answers(runtime: Any, uses: list[AdapterUse | None]) -> list[Any]:
    root = runtime.new_branch()
    root.extend(PROMPT)
    branches = root.fork(len(uses))
    for branch, use in zip(branches, uses, strict=True):
        branch.use_adapter(use)
    return [each.result(TIMEOUT) for each in [branch.generate(PARAMS) for branch in branches]]
