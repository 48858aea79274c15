"""8-bit weights on disk: folded and rounded once, read at every later start.

Making them takes most of the time of loading a small model, and they depend on the model's files
and on this package's code alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from radixlang.kernels.native.ownership import is_own
from radixlang.runtime.models.int8.linear import Int8Rows
from radixlang.runtime.process.disk_cache import digest, drop_older, kept_root

log = logging.getLogger("radixlang.runtime")
SPARE_BYTES = 1 << 30  # left free on the disk


class RowStore:
    """The weights of one model, a file each.

    Args:
        folder: where they are; None keeps and finds nothing. Files appear in it whole or not at
            all. What cannot be read is made again, what cannot be written is not kept. A file that
            is damaged, or that somebody else may have written, is made again, and that is said.
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
        if not path.exists():
            return _made(path, make)
        problem = _foreign(path)
        if problem is None:
            try:
                return _read(path)
            except (OSError, ValueError) as error:
                problem = f"it is damaged ({error})"
        log.warning("%s is not used but made again: %s", path, problem)
        return _made(path, make)


def weights_folder() -> Path | None:
    """$RADIXLANG_WEIGHTS, or a folder in `home()`; None where the variable is empty."""
    return kept_root("RADIXLANG_WEIGHTS", "weights")


def _made_from(model: Path) -> Iterator[str]:
    """The key of cached weights: the model's files, and the code."""
    yield torch.__version__
    for file in sorted(model.iterdir()) if model.is_dir() else [model]:
        if file.suffix in (".safetensors", ".json", ".gguf"):
            status = file.stat()
            yield f"{file.name} {status.st_size} {status.st_mtime_ns}"
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        yield source.read_text("utf-8")


def _made(path: Path, make: Callable[[], Int8Rows]) -> Int8Rows:
    rows = make()
    _write(path, rows)
    return rows


def _foreign(path: Path) -> str | None:
    """Why the file may hold what others wrote; None where only this user can have."""
    for place in (path, path.parent):
        if not is_own(place):
            return f"{place} belongs to another user, or others may write to it"
    return None


def _read(path: Path) -> Int8Rows:
    """Raises ValueError where the file is not as it was written."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            kept = (file.metadata() or {}).get("checksum")
            rows = Int8Rows(file.get_tensor("quantized"), file.get_tensor("scale"))
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    if kept != _checksum(rows):
        raise ValueError("its checksum is another")
    return rows


def _checksum(rows: Int8Rows) -> str:
    """Of the values and of how they are laid out."""
    total = 0
    for tensor in rows:
        total = zlib.crc32(f"{tuple(tensor.shape)} {tensor.dtype}".encode(), total)
        total = zlib.crc32(tensor.contiguous().view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def _write(path: Path, rows: Int8Rows) -> None:
    """Keep a weight, where that can be."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with contextlib.suppress(OSError, SafetensorError):  # a full disk is the latter
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not is_own(path.parent):
            return
        if shutil.disk_usage(path.parent).free < rows.quantized.nbytes + SPARE_BYTES:
            return
        number, unfinished = tempfile.mkstemp(".unfinished", dir=path.parent)
        os.close(number)
        try:
            tensors = {"quantized": rows.quantized, "scale": rows.scale}
            save_file(tensors, unfinished, {"checksum": _checksum(rows)})
            os.replace(unfinished, path)
        finally:
            Path(unfinished).unlink(missing_ok=True)
