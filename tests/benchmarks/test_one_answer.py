"""The same prompts give the same bits under every condition: a short form of the benchmark."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from benchmarks import conditions as asking
from benchmarks import one_answer
from benchmarks.conditions import CONDITIONS, Answer, Differing, NotTestedError, Questions
from benchmarks.one_answer import WEIGHTS, loaded, sets_below
from benchmarks.random_model import Shape, write
from radixlang.kernels.native.library import VARIABLE
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.model import LoadedModel
from radixlang.runtime.process.native_library import native_library

QUESTIONS, FEW = Questions.of(5, 5), Questions.of(5, 3)
SMALL = Shape(2, 256, 512, 4, 2, 64, tied=True, vocab_size=49152)
KINDS = [(kind, "q4_k_m") for kind in WEIGHTS] + [("file", "q4_0")]
# what every instruction set below the greatest is asked beside the answers alone
ON_EVERY_SET = ("batch", "chunks", "small pool")


@pytest.fixture(scope="module", autouse=True)
def has_library() -> None:
    if native_library() is None:
        pytest.skip("there is no C++ compiler, or RADIXLANG_NATIVE is empty")


@functools.cache
def default_model(weights: str) -> LoadedModel:
    return loaded(weights)


@functools.cache
def expected_of_default(weights: str) -> list[Answer]:
    return asking.alone(default_model(weights), QUESTIONS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small models of random weights, by the block types of their files."""
    folder = tmp_path_factory.mktemp("random")
    found = {kind: folder / f"{kind}.gguf" for kind in ("q4_0", "q4_k_m")}
    for kind, path in found.items():
        write(path, SMALL, kind)
    return found


@pytest.mark.model
@pytest.mark.parametrize("condition", CONDITIONS)
def test_nothing_differs_with_the_default_model(condition: str) -> None:
    expected = expected_of_default("int8")
    assert len({tuple(each.token_ids) for each in expected}) > 5
    found = CONDITIONS[condition](default_model("int8"), QUESTIONS, expected)
    assert found == Differing(0, 0, found.answers)


@pytest.mark.model
@pytest.mark.parametrize("weights", ["file", "float32"])
def test_nothing_differs_with_other_weights_of_it(weights: str) -> None:
    expected = expected_of_default(weights)
    for condition in ("batch", "small pool", "from disk"):
        found = CONDITIONS[condition](default_model(weights), QUESTIONS, expected)
        assert found == Differing(0, 0, found.answers), condition


@pytest.mark.parametrize(("weights", "file"), KINDS)
def test_nothing_differs_on_any_instruction_set(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, weights: str, file: str
) -> None:
    model = loaded(weights, str(files[file]))
    expected = asking.alone(model, FEW)
    assert len({tuple(each.token_ids) for each in expected}) > 5
    assert {len(each.logprobs) for each in expected} == {3}
    for name, condition in CONDITIONS.items():
        found = condition(model, FEW, expected)
        assert found == Differing(0, 0, found.answers), name
    for isa in sets_below():
        monkeypatch.setenv(VARIABLE, isa)
        lower = loaded(weights, str(files[file]))
        monkeypatch.delenv(VARIABLE)
        assert lower.model.library is not None
        assert lower.model.library.isa() == isa
        assert asking.alone_again(lower, FEW, expected) == Differing(0, 0, len(expected)), isa
        for name in ON_EVERY_SET:
            found = CONDITIONS[name](lower, FEW, expected)
            assert found == Differing(0, 0, found.answers), (isa, name)


def test_differences_are_counted_in_texts_and_in_bits() -> None:
    a, b, c = (Answer([1], [-0.5], [-0.25]), Answer([2], [-0.5], [-0.25]), Answer([1], [-0.5], [0]))
    assert Differing.of([a, a, a], [a, b, c]) == Differing(1, 1, 3)


def test_a_condition_that_did_not_take_place_is_no_success(files: dict[str, Path]) -> None:
    model = loaded("file", str(files["q4_0"]))
    one = Questions.of(1, 1)
    with pytest.raises(NotTestedError, match="eviction"):
        CONDITIONS["small pool"](model, one, asking.alone(model, one))


@pytest.mark.model
@pytest.mark.parametrize("quantization", ["int8", None])
def test_plain_torch_gives_one_answer_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, quantization: str | None
) -> None:
    monkeypatch.setenv("RADIXLANG_NATIVE", "")
    plain, few = load_model(quantization=quantization), Questions.of(2, 3)
    with asking.Runtime(plain, seed=0, num_pages=4096, deterministic=True) as runtime:
        alone = asking.one_by_one(runtime, few)
        assert Differing.of(asking.together(runtime, few), alone) == Differing(0, 0, len(alone))


def test_nothing_differs_without_a_compiler(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no g++, no clang++
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("RADIXLANG_NATIVE", str(tmp_path / "native"))
    model, few = loaded("int8", str(files["q4_k_m"])), Questions.of(5, 2)
    assert model.model.library is None
    assert model.model.batch_invariant
    expected = asking.alone(model, few)
    for name, condition in CONDITIONS.items():
        found = condition(model, few, expected)
        assert found == Differing(0, 0, found.answers), name


def test_the_command_prints_a_line_a_condition_and_set(
    files: dict[str, Path], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sys.argv",
        ["one_answer", "--model", str(files["q4_0"]), "--weights", "file", "--prompts", "2",
         "--tokens", "2", "--condition", "batch"],
    )  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        one_answer.main()
    assert ended.value.code == 0
    lines = capfd.readouterr().out.splitlines()
    library = native_library()
    assert library is not None
    assert lines[2:3] == [f"| file | {library.isa()} | batch | 0 | 0 | 4 |"]
    for isa in sets_below():
        assert f"| file | {isa} | alone | 0 | 0 | 4 |" in lines
        assert f"| file | {isa} | batch | 0 | 0 | 4 |" in lines
