"""How often a decode step crosses between host and device: three times, whatever its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from radixlang.constraints.specs import Regex
from radixlang.runtime.engine.step import Step
from radixlang.runtime.models.assemble import build_decoder
from radixlang.runtime.models.model import LoadedModel
from radixlang.runtime.models.transformers_model import wrap
from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams
from tests.conftest import _RandomWeights, _tiny_config, _tiny_tokenizer
from tests.runtime.gpu.meta_device import Crossings, meta_engine

THREE = {"upload": 2, "download": 1}  # the step's rows; the sampler's table; the tokens
NUM_STEPS = 8
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "nucleus": {"temperature": 0.7, "top_p": 0.9},
    "top_k": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    "repetition_penalty": {"temperature": 0.7, "repetition_penalty": 1.05},
    "frequency_penalty": {"temperature": 0.7, "frequency_penalty": 0.3},
    "min_tokens": {"temperature": 0.7, "min_tokens": 60, "ignore_eos": False},
    "top_logprobs": {"temperature": 0.7, "top_logprobs": 5},
    "logit_bias": {"temperature": 0.7, "logit_bias": {9: 2.0}},
}


@pytest.fixture
def crossings() -> Iterator[Crossings]:
    with meta_engine() as found:
        yield found


def meta_model(windows: tuple[int | None, int | None] = (None, None)) -> LoadedModel:
    config = replace(_tiny_config(2048), windows=windows)
    model = build_decoder(
        config, _RandomWeights(config, 0), dtype=torch.float32, device=torch.device("meta")
    )
    return LoadedModel(model, _tiny_tokenizer(), config)


def meta_transformers_model() -> LoadedModel:
    """An architecture that runs through transformers' own classes."""
    config = transformers.GPTNeoXConfig(
        vocab_size=480, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=2048, dtype="float32",
    )  # fmt: skip
    model = wrap(transformers.AutoModelForCausalLM.from_config(config), "tiny")
    model._model.to("meta")  # type: ignore[arg-type]
    return LoadedModel(model, _tiny_tokenizer(), model.config)


def decode(
    crossings: Crossings, monkeypatch: pytest.MonkeyPatch, num_rows: int,
    params: Callable[[int], SamplingParams], *, spec: Any = None, windows: Any = (None, None),
    model: LoadedModel | None = None, **options: Any,
) -> list[Counter[str]]:  # fmt: skip
    """Crossings of each decode step of branches below one prompt that all run from start to end."""
    steps: list[tuple[int, Counter[str]]] = []
    whole = Step.run

    def counted(step: Step) -> None:
        crossings.counts.clear()
        whole(step)
        steps.append((step.num_rows, Counter(crossings.counts)))

    monkeypatch.setattr(Step, "run", counted)
    options = {"seed": 0, "compaction": False, "warm_up": False, **options}
    with Runtime(model or meta_model(windows), num_pages=20_000, **options) as runtime:
        runtime.core.call(crossings.__enter__)
        root = runtime.new_branch()
        root.extend(list(range(10, 60)))
        branches = root.fork(num_rows)
        constraint = None if spec is None else runtime.compile_constraint(spec)
        futures = []
        for index, branch in enumerate(branches):
            branch.extend([7, 3 + index % 400])
            futures.append(branch.generate(params(index), constraint))
        for future in futures:
            future.result(120)
        runtime.core.call(lambda: crossings.__exit__(None, None, None))
    return [counts for rows, counts in steps if rows == num_rows][1:]


def made(name: str) -> Callable[[int], SamplingParams]:
    options = {"ignore_eos": True, "heal": False, "max_tokens": NUM_STEPS, **PARAMS[name]}
    options["max_tokens"] = min(NUM_STEPS, options["max_tokens"])
    options["min_tokens"] = min(NUM_STEPS, options.get("min_tokens", 0))
    return lambda index: SamplingParams(seed=index, **options)


@pytest.mark.parametrize("num_rows", [1, 24])
@pytest.mark.parametrize("name", PARAMS)
def test_a_decode_step_crosses_three_times(
    crossings: Crossings, monkeypatch: pytest.MonkeyPatch, name: str, num_rows: int
) -> None:
    steps = decode(crossings, monkeypatch, num_rows, made(name))
    assert len(steps) >= NUM_STEPS - 3
    assert steps == [THREE] * len(steps)
    assert crossings.num_launches["attend_triton"] > 0


def test_rows_of_every_kind_and_more_than_one_part_of_logits(
    crossings: Crossings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from radixlang.runtime.engine import assemble

    monkeypatch.setattr(assemble, "max_logit_rows_for", lambda *_: 10)
    kinds = [made(name) for name in PARAMS]
    steps = decode(crossings, monkeypatch, 28, lambda index: kinds[index % len(kinds)](index))
    assert steps == [THREE] * len(steps)
    assert len(steps) >= NUM_STEPS - 3


@pytest.mark.parametrize("num_rows", [1, 24])
def test_models_of_transformers_cross_as_often(
    crossings: Crossings, monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    model = meta_transformers_model()
    steps = decode(crossings, monkeypatch, num_rows, made("nucleus"), model=model)
    assert len(steps) >= NUM_STEPS - 3
    assert steps == [THREE] * len(steps)


def test_masks_add_nothing(crossings: Crossings, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Regex(rf"[!-~]{{{NUM_STEPS}}}")  # the fives are a character each
    steps = decode(crossings, monkeypatch, 6, made("nucleus"), spec=spec)
    assert len(steps) >= NUM_STEPS - 3
    assert steps == [THREE] * len(steps)


def test_without_graphs_it_is_as_many(
    crossings: Crossings, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = decode(crossings, monkeypatch, 5, made("nucleus"), cuda_graphs=False)
    assert steps[1:] == [THREE] * len(steps[1:])  # the first one brings the units


def test_layers_with_and_without_a_window(
    crossings: Crossings, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = decode(crossings, monkeypatch, 5, made("greedy"), windows=(None, 32))
    assert steps == [THREE] * len(steps)
    assert len(steps) >= NUM_STEPS - 3


def test_no_operation_mixes_devices(crossings: Crossings) -> None:
    with crossings, pytest.raises(AssertionError, match="mixes"):
        torch.ones(3) + torch.ones(3, device="meta")
