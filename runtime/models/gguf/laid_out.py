"""Blocks laid out for products, kept on disk: made once, mapped at every later start.

What is mapped is read-only and shared by the processes that serve a model; the system drops its
pages when memory is short, and reads them again.
"""

from __future__ import annotations

import json
import logging
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from radixlang.kernels.native.grouped import GroupedWeight, LaidOutRows, StoredRows
from radixlang.kernels.native.library import Library
from radixlang.runtime.models.kept_weights import folder_of, make_room, new_file, why_foreign

log = logging.getLogger("radixlang.runtime")
Shape = tuple[int, int, int]  # block type, rows, weights of a row
_HEADER_BYTES = 4096  # a page, so that what follows begins one
_ALIGN = 64


class LaidOutStore:
    """The laid-out weights of one model, a file each.

    Args:
        folder: where they are; None keeps and finds nothing. A file that is damaged, or that
            somebody else may have written, is made again, and that is said.
    """

    def __init__(self, folder: Path | None, library: Library) -> None:
        self._folder = folder
        self._library = library

    @classmethod
    def of(cls, model: Path, library: Library) -> LaidOutStore:
        """The store of a GGUF file; one of nothing where the disk has no room for as much again."""
        folder = folder_of(model)
        found = cls(folder, library)
        if folder is None or not found.is_empty:
            return found
        try:
            has_room = make_room(folder, model.stat().st_size)
        except OSError as error:
            log.warning("%s: weights are not kept: %s", folder, error)
            return cls(None, library)
        if not has_room:
            log.warning("%s: there is too little room on the disk to keep weights", folder)
        return cls(folder if has_room else None, library)

    @property
    def is_empty(self) -> bool:
        """Whether weights are still to be laid out."""
        return self._folder is None or not any(self._folder.glob("*.blocks"))

    def weight(
        self, name: str, shapes: Sequence[Shape], read: Callable[[], list[StoredRows]]
    ) -> GroupedWeight:
        """The weight of that name whose parts have these shapes, from the disk or as read now."""
        if self._folder is None:
            return GroupedWeight(self._library, read())
        path = self._folder / f"{name}.blocks"
        if path.exists():
            problem = why_foreign(path)
            if problem is None:
                try:
                    return self._mapped(path, shapes)
                except (OSError, ValueError) as error:
                    problem = f"it is damaged ({error})"
            log.warning("%s is not used but made again: %s", path, problem)
        return self._kept(path, shapes, GroupedWeight(self._library, read()))

    def _kept(self, path: Path, shapes: Sequence[Shape], made: GroupedWeight) -> GroupedWeight:
        """The weight over a file that was written now; as it was made where that cannot be."""
        try:
            with new_file(path, made.num_bytes) as unfinished:
                _write(unfinished, made)
            return self._mapped(path, shapes)
        except (OSError, ValueError) as error:
            log.warning("%s: the weight is not kept: %s", path, error)
            return made

    def _mapped(self, path: Path, shapes: Sequence[Shape]) -> GroupedWeight:
        """Raises ValueError where the file is not as it was written."""
        with path.open("rb") as file:
            view = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        sizes, checksum = _read_header(view[:_HEADER_BYTES].tobytes(), shapes)
        parts, at = [], _HEADER_BYTES
        for shape, size in zip(shapes, sizes, strict=True):
            parts.append(LaidOutRows(*shape, view[at : at + size]))
            at += _padded(size)
        weight = GroupedWeight(self._library, parts)
        if weight.checksum != checksum:
            raise ValueError("its checksum is another")
        return weight


def _read_header(header: bytes, shapes: Sequence[Shape]) -> tuple[list[int], int]:
    """Bytes of each part, and the checksum; ValueError where the shapes are others."""
    found = json.loads(header)
    try:
        is_same = found["shapes"] == [list(shape) for shape in shapes]
        sizes, checksum = [int(size) for size in found["bytes"]], int(found["checksum"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"its header is {header[:200]!r}") from error
    if not is_same:
        raise ValueError(f"its parts are {found['shapes']}")
    return sizes, checksum


def _write(path: Path, weight: GroupedWeight) -> None:
    parts = weight.laid_out()
    header = {
        "shapes": [(part.kind, part.num_rows, part.width) for part in parts],
        "bytes": [part.memory.nbytes for part in parts],
        "checksum": weight.checksum,
    }
    with path.open("wb") as file:
        file.write(json.dumps(header).encode().ljust(_HEADER_BYTES))
        for part in parts:
            file.write(part.memory.data)
            file.write(bytes(_padded(part.memory.nbytes) - part.memory.nbytes))


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
