"""8-bit weights on disk: folded and rounded once, read at every later start.

Making them takes most of the time of loading a small model, and they depend on the model's files
and on this package's code alone.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from pathlib import Path

import torch

from radixlang.runtime.models.int8.linear import Int8Rows
from radixlang.runtime.models.kept_weights import folder_of, new_file, why_foreign

log = logging.getLogger("radixlang.runtime")


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

        It is another one when the model's files, radixlang or torch change.
        """
        return cls(folder_of(model))

    def rows(self, name: str, make: Callable[[], Int8Rows]) -> Int8Rows:
        """The weight of that name, from the store or from `make`."""
        if self._folder is None:
            return make()
        path = self._folder / f"{name}.safetensors"
        if not path.exists():
            return _made(path, make)
        problem = why_foreign(path)
        if problem is None:
            try:
                return _read(path)
            except (OSError, ValueError) as error:
                problem = f"it is damaged ({error})"
        log.warning("%s is not used but made again: %s", path, problem)
        return _made(path, make)


def _made(path: Path, make: Callable[[], Int8Rows]) -> Int8Rows:
    rows = make()
    _write(path, rows)
    return rows


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

    try:
        with new_file(path, rows.quantized.nbytes) as unfinished:
            tensors = {"quantized": rows.quantized, "scale": rows.scale}
            save_file(tensors, unfinished, {"checksum": _checksum(rows)})
    except (OSError, SafetensorError) as error:  # a full disk is the latter
        log.info("%s is not kept: %s", path, error)
