"""8-bit weights come from the disk as they were made, and are made anew where they may not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from radixlang.runtime.models import kept_weights
from radixlang.runtime.models.int8.linear import Int8Rows, quantize_rows
from radixlang.runtime.models.int8.weight_cache import RowStore
from radixlang.runtime.models.kept_weights import weights_folder
from radixlang.runtime.models.loader import load_model

ROWS = quantize_rows(torch.randn(24, 16), (4, 8))


def never() -> Int8Rows:
    raise AssertionError("made anew")


def ask(model: Path, make: Callable[[], Int8Rows] = lambda: ROWS) -> Int8Rows:
    return RowStore.of(model).rows("layers.0.qkv", make)


def test_rows_are_read_as_they_were_written(folder: Path, model: Path) -> None:
    ask(model)
    assert [file.name for file in folder.glob("*/*")] == ["layers.0.qkv.safetensors"]
    found = ask(model, never)
    assert torch.equal(found.quantized, ROWS.quantized)
    assert torch.equal(found.scale, ROWS.scale)


def test_a_changed_model_is_made_anew_and_its_old_rows_go(folder: Path, model: Path) -> None:
    ask(model)
    model.write_bytes(b"other weights")
    other = quantize_rows(torch.ones(2, 16))
    assert torch.equal(ask(model, lambda: other).quantized, other.quantized)
    assert len(list(folder.iterdir())) == 1
    os.utime(model, ns=(0, 0))
    assert torch.equal(ask(model).quantized, ROWS.quantized)


def test_other_models_keep_their_rows(folder: Path, model: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "model.safetensors").write_bytes(b"x")
    ask(model)
    ask(second)
    ask(model, never)
    ask(second, never)


def test_other_code_makes_its_own(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(model)
    monkeypatch.setattr(torch, "__version__", "another")
    with pytest.raises(AssertionError, match="made anew"):
        ask(model, never)


@pytest.mark.parametrize("keep", [0, 7, 100])
def test_a_file_cut_off_is_made_anew(folder: Path, model: Path, keep: int) -> None:
    ask(model)
    [file] = folder.glob("*/*.safetensors")
    file.write_bytes(file.read_bytes()[:keep])
    assert torch.equal(ask(model).quantized, ROWS.quantized)
    ask(model, never)


def test_a_flipped_bit_anywhere_is_made_again_and_said(
    folder: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask(model)
    [file] = folder.glob("*/*.safetensors")
    whole = file.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        file.write_bytes(damaged)
        caplog.clear()
        found = ask(model)
        assert torch.equal(found.quantized, ROWS.quantized)
        assert torch.equal(found.scale, ROWS.scale)
        if caplog.messages:  # else the bit was one of the padding between
            assert "is not used but made again: it is damaged" in caplog.messages[0]
        file.write_bytes(whole)


@pytest.mark.parametrize("place", ["file", "folder"])
def test_what_others_may_write_to_is_not_read(
    folder: Path, model: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask(model)
    [file] = folder.glob("*/*.safetensors")
    (file if place == "file" else file.parent).chmod(0o777)
    other = quantize_rows(torch.ones(2, 16))
    assert torch.equal(ask(model, lambda: other).quantized, other.quantized)
    assert "others may write to it" in caplog.text


def test_kept_weights_are_for_their_user_alone(folder: Path, model: Path) -> None:
    ask(model)
    [file] = folder.glob("*/*.safetensors")
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o077 == 0


def test_nothing_is_kept_where_nothing_can_be(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADIXLANG_WEIGHTS", "")
    assert weights_folder() is None
    assert ask(model) is ROWS
    monkeypatch.setenv("RADIXLANG_WEIGHTS", str(model / "below a file"))
    assert ask(model) is ROWS
    monkeypatch.setenv("RADIXLANG_WEIGHTS", str(tmp_path / "full"))
    monkeypatch.setattr(kept_weights, "SPARE_BYTES", 1 << 62)
    assert ask(model) is ROWS
    assert not list((tmp_path / "full").glob("*/*.safetensors"))


def test_a_disk_that_fills_up_leaves_nothing(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tensors: Any, path: str, metadata: Any) -> None:
        Path(path).write_bytes(b"cut")
        raise SafetensorError("I/O error: no space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    assert ask(model) is ROWS
    assert not list(folder.glob("*/*"))


def test_the_default_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RADIXLANG_WEIGHTS")
    monkeypatch.setenv("RADIXLANG_HOME", "/kept")
    assert weights_folder() == Path("/kept/weights")


@pytest.mark.model
def test_a_model_read_from_the_store_computes_the_same_bits(
    folder: Path, forest: Callable[..., Any]
) -> None:
    made, read = load_model(), load_model()
    assert len(list(folder.glob("*/*.safetensors"))) == 4 * made.config.num_layers + 1
    ids, results = torch.arange(40) + 1000, []
    for loaded in (made, read):
        pool = forest(loaded.config, len(ids))
        slots = pool.alloc(len(ids))
        results.append(pool.logits(loaded.model, ids, pool.plan(slots[:0], [slots], [len(ids)])))
    assert torch.equal(*results)
