"""The folders in which weights are kept between starts, as they were prepared: whose, and how many.

One folder a model. A file appears in it whole or not at all.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from radixlang.kernels.native.build import SOURCES
from radixlang.kernels.native.ownership import is_own
from radixlang.runtime.process.disk_cache import digest, drop_older, kept_root

SPARE_BYTES = 1 << 30  # left free on the disk
SHARE = 4  # kept weights take at most this part of the disk
UNUSED_S = 30 * 24 * 3600.0  # after which a model's are deleted
_OURS = re.compile("[0-9a-f]{20}-[0-9a-f]{20}")
_LAYOUT = ("grouped.h", "grouped_pack.cpp", "weights_kept.cpp")


def weights_folder() -> Path | None:
    """$RADIXLANG_WEIGHTS, or a folder in `home()`; None where the variable is empty."""
    return kept_root("RADIXLANG_WEIGHTS", "weights")


def folder_of(model: Path) -> Path | None:
    """Where the weights of a model's folder or GGUF file are kept, in `weights_folder()`.

    It is another one when the model's files, radixlang or torch change. Those that were made of the
    same model before are removed, and those that were not used in a month.
    """
    root = weights_folder()
    if root is None:
        return None
    name = digest([str(model.resolve())])
    folder = root / f"{name}-{digest(_made_from(model))}"
    drop_older(folder)
    for used_at, other in _by_last_use(root):
        if used_at < time.time() - UNUSED_S and other != folder:
            shutil.rmtree(other, ignore_errors=True)
    with suppress(OSError):  # it is not there yet, or somebody else's
        os.utime(folder)
    return folder


def kept_bytes(root: Path) -> int:
    """Bytes of all weights that are kept below a folder."""
    return sum(_size(folder) for _, folder in _by_last_use(root))


def make_room(folder: Path, num_bytes: int) -> bool:
    """Whether a model's folder may grow by that much; the least recently used of others go first.

    All together take at most a quarter of the disk, and leave a gibibyte of it free.
    """
    root = folder.parent
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    others = [other for _, other in _by_last_use(root) if other != folder]
    while True:
        disk = shutil.disk_usage(root)
        fits = kept_bytes(root) + num_bytes <= disk.total // SHARE
        if fits and disk.free >= num_bytes + SPARE_BYTES:
            return True
        if not others:
            return False
        shutil.rmtree(others.pop(0), ignore_errors=True)


def why_foreign(path: Path) -> str | None:
    """Why a kept file may hold what others wrote; None where only this user can have."""
    for place in (path, path.parent):
        try:
            if not is_own(place):
                return f"{place} belongs to another user, or others may write to it"
        except FileNotFoundError:
            return "another process has just removed it"
    return None


@contextmanager
def new_file(path: Path, num_bytes: int) -> Iterator[Path]:
    """A file of the user's alone to write, which gets its name when the block ends well.

    Raises OSError where there may be none: the folder is somebody else's, or the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not is_own(path.parent):
        raise PermissionError(f"{path.parent} belongs to another user, or others may write to it")
    if shutil.disk_usage(path.parent).free < num_bytes + SPARE_BYTES:
        raise OSError(f"{path.parent}: too little of the disk is free for {num_bytes:,} bytes more")
    number, unfinished = tempfile.mkstemp(".unfinished", dir=path.parent)
    os.close(number)
    try:
        yield Path(unfinished)
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _made_from(model: Path) -> Iterator[str]:
    """The key of kept weights: the model's files, and the code."""
    yield torch.__version__
    for file in sorted(model.iterdir()) if model.is_dir() else [model]:
        if file.suffix in (".safetensors", ".json", ".gguf"):
            status = file.stat()
            yield f"{file.name} {status.st_size} {status.st_mtime_ns}"
    sources = [*sorted(Path(__file__).parent.rglob("*.py")), *(SOURCES / name for name in _LAYOUT)]
    for source in sources:
        yield source.read_text("utf-8")


def _by_last_use(root: Path) -> list[tuple[float, Path]]:
    """When folders of models were used last, and they, the oldest first; what is not ours is not.

    Other processes may remove folders, and files in them, at any time.
    """
    found = []
    with suppress(OSError):  # there is no such folder
        for path in root.iterdir():
            with suppress(OSError):
                if _OURS.fullmatch(path.name) and path.is_dir():
                    found.append((path.stat().st_mtime, path))
    return sorted(found)


def _size(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        for file in folder.iterdir():
            with suppress(OSError):
                total += file.stat().st_size
    return total
