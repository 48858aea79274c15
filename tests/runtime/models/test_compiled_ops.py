"""Compiled ops do what the plain ones do, and a row has the same bits in any company."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlang.runtime.models.int8 import compile_worker as compile_ops
from radixlang.runtime.models.int8 import compiled as compiled_ops
from radixlang.runtime.models.int8.ops import Int8Ops, OpsShape, plain_ops
from radixlang.runtime.models.rotary import rotate, rotate_real

SHAPES = {
    "llama": OpsShape(4, 2, 16, 48, 80, "silu", 1e-5, "bfloat16", stream_block=1, inner_block=16),
    "everything": OpsShape(
        4, 1, 32, 96, 160, "gelu_tanh", 1e-6, "float32", stream_block=32, inner_block=32,
        has_gains=True, has_post_norms=True, has_qk_gain=True, has_qkv_bias=True,
        has_write_biases=True, has_gate_up_bias=True,
    ),
}  # fmt: skip
SLICES = [(0, 1), (3, 4), (2, 7), (5, 38), (0, 39)]
Tensors = dict[str, tuple[torch.Tensor | None, ...]]


@pytest.fixture(scope="module", params=SHAPES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Plain and compiled ops of a shape, and what to call them with."""
    if compiled_ops.find_compiler() is None:
        pytest.skip("no C++ compiler on this machine; install g++")
    shape = SHAPES[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RADIXLANG_COMPILED", str(tmp_path_factory.mktemp("compiled")))
        patch.setattr(compiled_ops, "NARROWEST", 0)
        made = compiled_ops.compiled_ops(shape)
        patch.setattr(compile_ops, "NUM_ROWS", 40)
        torch.manual_seed(1)
        tensors = compile_ops.examples(shape)
    for given in tensors.values():
        spread(given)
    return plain_ops(shape), made, tensors


def spread(given: tuple[torch.Tensor | None, ...]) -> None:
    """Rows of very different sizes, one of them zeros."""
    if given[0] is not None:
        given[0][3] *= 100
        given[0][7] = 0


def called(ops: Int8Ops, name: str, given: tuple[Any, ...], rows: slice = slice(None)) -> Any:
    """An op over some of the rows."""
    chosen = [t[rows].contiguous() if t is not None and len(t) == 40 else t for t in given]
    return list(getattr(ops, name)(*chosen))


@pytest.mark.parametrize("shape", SHAPES.values())
def test_no_tensor_of_the_examples_is_given_twice(shape: OpsShape) -> None:
    for given in compile_ops.examples(shape).values():
        there = [tensor for tensor in given if tensor is not None]
        assert len({tensor.data_ptr() for tensor in there}) == len(there)


@pytest.mark.parametrize("name", compiled_ops.NAMES)
@pytest.mark.parametrize("num_rows", [1, 5, 40])
def test_compiled_ops_are_the_plain_ones(pair: Any, name: str, num_rows: int) -> None:
    plain, made, tensors = pair
    assert getattr(made, name) is not getattr(plain, name)
    expected = called(plain, name, tensors[name], slice(num_rows))
    found = called(made, name, tensors[name], slice(num_rows))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if ours.dtype == torch.int8:  # a value between two quantized values may fall to either side
            assert int((ours.int() - theirs.int()).abs().max()) <= 1
            assert float((ours != theirs).float().mean()) < 0.002
        else:
            rtol = 1e-5 if ours.dtype == torch.float32 else 2**-7
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=rtol)


@pytest.mark.parametrize("name", compiled_ops.NAMES)
@pytest.mark.parametrize("which", ["plain", "compiled"])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(pair: Any, name: str, which: str) -> None:
    ops, tensors = pair[which == "compiled"], pair[2]
    whole = called(ops, name, tensors[name])
    for start, stop in SLICES:
        part = called(ops, name, tensors[name], slice(start, stop))
        assert all(torch.equal(a, b[start:stop]) for a, b in zip(part, whole, strict=True))


def test_turning_without_complex_numbers() -> None:
    heads, turns = torch.randn(5, 3, 16), torch.polar(torch.ones(5, 1, 8), torch.randn(5, 1, 8))
    torch.testing.assert_close(rotate_real(heads, torch.view_as_real(turns)), rotate(heads, turns))


@pytest.fixture
def wide_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpsShape:
    """A shape that would be compiled, and an empty folder to keep it in."""
    monkeypatch.setenv("RADIXLANG_COMPILED", str(tmp_path))
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setattr(compiled_ops, "NARROWEST", 0)
    return SHAPES["llama"]


def is_plain(ops: Int8Ops) -> bool:
    return bool(ops.attended.__module__ != compiled_ops.__name__)


def test_a_compiler_that_fails_is_asked_once(
    wide_enough: OpsShape, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    with caplog.at_level(logging.WARNING):
        assert is_plain(compiled_ops.compiled_ops(wide_enough))
    folder = compiled_ops.ops_folder(wide_enough)
    assert folder is not None
    assert "ompil" in (folder / "failed.txt").read_text("utf-8")
    assert str(folder) in caplog.text

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("started once more")

    monkeypatch.setattr(subprocess, "Popen", refused)
    assert is_plain(compiled_ops.compiled_ops(wide_enough))


def test_what_cannot_be_loaded_is_not_used(
    wide_enough: OpsShape, caplog: pytest.LogCaptureFixture
) -> None:
    folder = compiled_ops.ops_folder(wide_enough)
    assert folder is not None
    folder.mkdir()
    for name in compiled_ops.NAMES:
        (folder / f"{name}.so").write_bytes(b"not a library")
    with caplog.at_level(logging.WARNING):
        assert is_plain(compiled_ops.compiled_ops(wide_enough))
    assert "cannot be loaded" in caplog.text


def test_of_one_shape_only_the_newest_are_kept(
    wide_enough: OpsShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(folder: Path, _: OpsShape) -> str:
        (folder / "attended.so").write_bytes(b"")
        return "no more than this"

    monkeypatch.setattr(compiled_ops, "_compile", compiled)
    first = compiled_ops.ops_folder(wide_enough)
    compiled_ops.compiled_ops(wide_enough)
    monkeypatch.setattr(torch, "__version__", "another")
    second = compiled_ops.ops_folder(wide_enough)
    compiled_ops.compiled_ops(wide_enough)
    assert first is not None
    assert second is not None
    assert first != second
    assert not first.exists()
    assert second.is_dir()


@pytest.mark.parametrize("reason", ["nothing kept", "another system", "no compiler", "narrow"])
def test_where_nothing_is_compiled(
    reason: str, wide_enough: OpsShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: dict[str, Callable[[], None]] = {
        "nothing kept": lambda: monkeypatch.setenv("RADIXLANG_COMPILED", ""),
        "another system": lambda: monkeypatch.setattr(compiled_ops.sys, "platform", "darwin"),
        "no compiler": lambda: monkeypatch.setattr(compiled_ops, "find_compiler", lambda: None),
        "narrow": lambda: monkeypatch.setattr(compiled_ops, "NARROWEST", 64),
    }
    reasons[reason]()
    assert compiled_ops.ops_folder(wide_enough) is None
    assert is_plain(compiled_ops.compiled_ops(wide_enough))
