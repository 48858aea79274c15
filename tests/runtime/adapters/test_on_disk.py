"""Adapters and the disk tier: what one process has computed with an adapter another reads, by what
the adapter computes with and not by its name."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixlang.errors import ParameterError
from radixlang.protocol import AdapterUse
from radixlang.sampling_params import SamplingParams
from tests.runtime.adapters.conftest import our_model, save_adapter

TIMEOUT = 60
PARAMS = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
PROMPT = [(7 * i + 5) % 400 for i in range(150)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("adapters")
    return {
        name: save_adapter("llama", home / name, seed=seed) for seed, name in enumerate("ab", 1)
    }


@pytest.fixture
def start(make_runtime: Callable[..., Any], tiny_model: Any, tmp_path: Path) -> Callable[..., Any]:
    """Starts a runtime on the test's folder, with adapters under the names given."""

    def make(**adapters: Path) -> Any:
        made = make_runtime(our_model("llama", tiny_model), disk=tmp_path / "disk")
        for name, folder in adapters.items():
            made.load_adapter(name, folder)
        return made

    return make


def answer(runtime: Any, *uses: AdapterUse | None) -> Any:
    """What follows the prompt, of which each use computes a part of the same length."""
    branch, length = runtime.new_branch(), len(PROMPT) // len(uses)
    for index, use in enumerate(uses):
        branch.use_adapter(use)
        branch.extend(PROMPT[index * length : (index + 1) * length])
    done = branch.generate(PARAMS).result(TIMEOUT)
    branch.release()
    return done


USES = [
    (AdapterUse("x"),),
    (None, AdapterUse("x")),
    (AdapterUse("x"), AdapterUse("x", scale=0.5), AdapterUse("x", layers=(1,))),
    (AdapterUse("x"), None),
]


@pytest.mark.parametrize("uses", USES, ids=["all", "half", "three", "before"])
def test_the_same_adapter_under_any_name_reads_what_it_computed(
    start: Callable[..., Any], folders: dict[str, Path], uses: tuple[AdapterUse | None, ...]
) -> None:
    first = start(other=folders["b"], x=folders["a"])
    expected = answer(first, *uses)
    first.close()
    again = start(x=folders["a"])
    warm = answer(again, *uses)
    assert warm.token_ids == expected.token_ids
    assert warm.usage.num_cached_tokens == len(PROMPT) // len(uses) * len(uses) - 1
    assert warm.usage.num_computed_tokens == 1


def test_another_adapter_of_the_same_name_reads_nothing_of_it(
    start: Callable[..., Any], folders: dict[str, Path]
) -> None:
    first = start(x=folders["a"])
    answer(first, AdapterUse("x"))
    first.close()
    other = start(x=folders["b"])
    cold = answer(other, AdapterUse("x"))
    assert cold.usage.num_cached_tokens == 0
    assert answer(other, None).usage.num_cached_tokens == 0
    other.load_adapter("x", folders["a"])
    assert answer(other, AdapterUse("x")).usage.num_cached_tokens == len(PROMPT) - 1
    other.load_adapter("x", folders["b"])
    assert answer(other, AdapterUse("x")).token_ids == cold.token_ids


def test_what_is_before_an_adapter_is_shared_with_the_model(
    start: Callable[..., Any], folders: dict[str, Path]
) -> None:
    first = start()
    answer(first, None)
    first.close()
    half = answer(start(x=folders["a"]), None, AdapterUse("x"))
    assert half.usage.num_cached_tokens == len(PROMPT) // 2


def test_an_unloaded_adapter_is_freed_with_the_last_branch_that_uses_it(
    make_runtime: Callable[..., Any], tiny_model: Any, folders: dict[str, Path]
) -> None:
    runtime = make_runtime(our_model("llama", tiny_model))
    adapter = weakref.ref(runtime.load_adapter("x", folders["a"]))
    branch = runtime.new_branch()
    branch.extend(PROMPT)
    branch.use_adapter(AdapterUse("x"))
    branch.generate(PARAMS).result(TIMEOUT)
    child = branch.fork(1)[0]
    branch.release()
    runtime.unload_adapter("x")
    runtime.core.call(gc.collect)
    assert adapter() is not None
    child.extend([3, 4])
    assert len(child.generate(PARAMS).result(TIMEOUT).token_ids) == PARAMS.max_tokens
    child.release()
    runtime.core.call(gc.collect)
    assert adapter() is None
    assert "adapter 'x'" in runtime.tree_text()  # what is cached of it still has a name
    with pytest.raises(ParameterError, match="no adapter 'x'"):
        answer(runtime, AdapterUse("x"))
