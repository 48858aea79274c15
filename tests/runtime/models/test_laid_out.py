"""Laid-out blocks are mapped from the disk as they were made, and made again where they may not."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from radixlang.kernels.native.grouped import BLOCKS, GroupedWeight, StoredRows
from radixlang.kernels.native.library import Library
from radixlang.runtime.models import kept_weights
from radixlang.runtime.models.gguf.laid_out import LaidOutStore
from radixlang.runtime.models.kept_weights import folder_of, kept_bytes, make_room
from radixlang.runtime.process.native_library import native_library

WIDTH = 256
SHAPES = [(2, 19, WIDTH), (14, 3, WIDTH)]


def library() -> Library:
    found = native_library()
    assert found is not None
    return found


def stored() -> list[StoredRows]:
    source, parts = np.random.default_rng(0), []
    for kind, rows, width in SHAPES:
        size, num_bytes = BLOCKS[kind]
        blocks = source.integers(0, 60, (rows, width // size * num_bytes), np.uint8)
        parts.append(StoredRows(kind, blocks, source.permutation(rows)))
    return parts


def never() -> list[StoredRows]:
    raise AssertionError("laid out again")


def ask(model: Path, read: Callable[[], list[StoredRows]] = stored) -> GroupedWeight:
    return LaidOutStore.of(model, library()).weight("layers.0.q", SHAPES, read)


def test_a_mapped_weight_multiplies_as_the_one_that_was_laid_out(folder: Path, model: Path) -> None:
    x = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(0))
    direct = GroupedWeight(library(), stored())
    assert LaidOutStore.of(model, library()).is_empty
    first, later = ask(model), ask(model, never)
    assert [file.name for file in folder.glob("*/*")] == ["layers.0.q.blocks"]
    assert not LaidOutStore.of(model, library()).is_empty
    assert direct.checksum == first.checksum == later.checksum
    assert torch.equal(direct(x), first(x))
    assert torch.equal(direct(x), later(x))
    assert later.num_bytes == direct.num_bytes


def test_what_is_mapped_outlives_its_file_and_cannot_be_written(folder: Path, model: Path) -> None:
    ask(model)
    weight = ask(model, never)
    before = weight.checksum
    [file] = folder.glob("*/*.blocks")
    file.unlink()
    assert weight.checksum == before
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    assert [line.split()[1] for line in lines if file.name in line] == ["r--s"]
    del weight
    assert file.name not in Path("/proc/self/maps").read_text("utf-8")


def test_a_flipped_bit_anywhere_is_made_again_and_said(
    folder: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    right = ask(model).checksum
    [file] = folder.glob("*/*.blocks")
    whole = file.read_bytes()
    told = whole[:4096].rstrip()
    for at in (*range(len(told)), *range(4096, len(whole), 37)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        file.write_bytes(damaged)
        caplog.clear()
        assert ask(model).checksum == right
        if caplog.messages:  # else the bit was one of the padding between
            assert "is not used but made again: it is damaged" in caplog.messages[0]
            assert file.read_bytes() == whole
        else:
            assert bytes(damaged[4096:]) != whole[4096:]
        file.write_bytes(whole)


@pytest.mark.parametrize("keep", [0, 7, 4096, 5000])
def test_a_file_cut_off_is_made_again(folder: Path, model: Path, keep: int) -> None:
    right = ask(model).checksum
    [file] = folder.glob("*/*.blocks")
    file.write_bytes(file.read_bytes()[:keep])
    assert ask(model).checksum == right
    ask(model, never)


def test_other_shapes_are_another_weight(folder: Path, model: Path) -> None:
    ask(model)
    store = LaidOutStore.of(model, library())
    changed = [(2, 19, WIDTH), (14, 4, WIDTH)]
    with pytest.raises(AssertionError, match="laid out again"):
        store.weight("layers.0.q", changed, never)


@pytest.mark.parametrize("place", ["file", "folder"])
def test_what_others_may_write_to_is_not_mapped(
    folder: Path, model: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask(model)
    [file] = folder.glob("*/*.blocks")
    (file if place == "file" else file.parent).chmod(0o777)
    with pytest.raises(AssertionError, match="laid out again"):
        ask(model, never)
    assert "others may write to it" in caplog.text


def test_nothing_is_kept_where_nothing_can_be(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = GroupedWeight(library(), stored()).checksum
    monkeypatch.setenv("RADIXLANG_WEIGHTS", "")
    assert ask(model).checksum == right
    monkeypatch.setenv("RADIXLANG_WEIGHTS", str(model / "below a file"))
    assert ask(model).checksum == right
    assert "weights are not kept" in caplog.text
    monkeypatch.setenv("RADIXLANG_WEIGHTS", str(tmp_path / "full"))
    monkeypatch.setattr(kept_weights, "SPARE_BYTES", 1 << 62)
    assert ask(model).checksum == right
    assert "too little room on the disk" in caplog.text
    assert not list((tmp_path / "full").glob("*/*"))


def test_the_least_recently_used_models_make_room(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [tmp_path / f"{name}.gguf" for name in "abc"]
    for age, path in zip((20, 10, 30), models, strict=True):
        path.write_bytes(b"x")
        ask(path)
        kept = folder_of(path)
        assert kept is not None
        os.utime(kept, (time.time() - age, time.time() - age))
    (folder / "not-ours").mkdir()
    one = kept_bytes(folder) // 3
    monkeypatch.setattr(kept_weights.shutil, "disk_usage", _disk(total=16 * one, free=1 << 62))
    new = folder / f"{'0' * 20}-{'0' * 20}"
    assert make_room(new, 2 * one)  # a quarter of the disk is four: c, which is oldest, goes
    kept = [path for path in models if _is_kept(path)]
    assert kept == models[:2]
    assert not make_room(new, 5 * one)
    assert (folder / "not-ours").is_dir()


def test_what_was_not_used_in_a_month_goes(folder: Path, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"x")
    ask(other)
    [kept] = folder.iterdir()
    old = time.time() - kept_weights.UNUSED_S - 60
    os.utime(kept, (old, old))
    ask(model)
    assert kept not in folder.iterdir()
    [kept] = folder.iterdir()
    os.utime(kept, (old, old))
    ask(model, never)  # asking for it is a use
    assert kept.stat().st_mtime > old + 60


def test_a_file_that_another_process_removes_meanwhile_is_made_again(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ask(model).checksum
    [file] = folder.glob("*/*.blocks")
    seen = Path.exists

    def exists(path: Path) -> bool:
        found = seen(path)
        if path == file:
            shutil.rmtree(file.parent)
        return found

    monkeypatch.setattr(Path, "exists", exists)
    assert ask(model).checksum == right
    assert kept_bytes(folder / "gone") == 0


def _is_kept(model: Path) -> bool:
    found = folder_of(model)
    return found is not None and found.is_dir()


def _disk(total: int, free: int) -> Callable[[Path], SimpleNamespace]:
    return lambda path: SimpleNamespace(total=total, free=free)
