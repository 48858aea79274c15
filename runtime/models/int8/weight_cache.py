"""8-bit weights on disk: folded and rounded once, read at every later start.

Making them takes most of the time of loading a small model, and they depend on the model's files
and on this package's code alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from radixlang.runtime.models.int8.linear import Int8Rows
from radixlang.runtime.process.disk_cache import digest, drop_older, kept_root

SPARE_BYTES = 1 << 30  # left free on the disk


class RowStore:
    """The weights of one model, a file each.

    Args:
        folder: where they are; None keeps and finds nothing. Files appear in it whole or not at
            all. What cannot be read is made anew, what cannot be written is not kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @classmethod
    def of(cls, model: Path) -> RowStore:
        """The store of a model's folder or GGUF file, in `weights_folder()`.

        It is another one when the model's files, radixlang or torch change; those that were made
        of the same model before are removed.
        """
        root = weights_folder()
        if root is None:
            return cls(None)
        name = digest([str(model.resolve())])
        folder = root / f"{name}-{digest(_made_from(model))}"
        drop_older(folder)
        return cls(folder)

    def rows(self, name: str, make: Callable[[], Int8Rows]) -> Int8Rows:
        """The weight of that name, from the store or from `make`."""
        if self._folder is None:
            return make()
        path = self._folder / f"{name}.safetensors"
        found = _read(path)
        if found is None:
            found = make()
            _write(path, found)
        return found


def weights_folder() -> Path | None:
    """$RADIXLANG_WEIGHTS, or a folder in `home()`; None where the variable is empty."""
    return kept_root("RADIXLANG_WEIGHTS", "weights")


def _made_from(model: Path) -> Iterator[str]:
    """All that the weights hang on: the model's files, and the code."""
    yield torch.__version__
    for file in sorted(model.iterdir()) if model.is_dir() else [model]:
        if file.suffix in (".safetensors", ".json", ".gguf"):
            status = file.stat()
            yield f"{file.name} {status.st_size} {status.st_mtime_ns}"
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        yield source.read_text("utf-8")


def _read(path: Path) -> Int8Rows | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return Int8Rows(file.get_tensor("levels"), file.get_tensor("scale"))
    except (OSError, SafetensorError):  # not there, or cut off
        return None


def _write(path: Path, rows: Int8Rows) -> None:
    """Keep a weight, where that can be."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with contextlib.suppress(OSError, SafetensorError):  # a full disk is the latter
        path.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(path.parent).free < rows.levels.nbytes + SPARE_BYTES:
            return
        number, unfinished = tempfile.mkstemp(".unfinished", dir=path.parent)
        os.close(number)
        try:
            save_file({"levels": rows.levels, "scale": rows.scale}, unfinished)
            os.replace(unfinished, path)
        finally:
            Path(unfinished).unlink(missing_ok=True)
