"""Caches on disk between starts: their folder, their names, and how stale entries are deleted."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from radixlang.cache_dir import home


def kept_root(variable: str, name: str) -> Path | None:
    """The folder that an environment variable names, or one in `home()`; None if it is empty."""
    given = os.environ.get(variable)
    if given is None:
        return home() / name
    return Path(given) if given else None


def digest(texts: Iterable[str]) -> str:
    """20 hexadecimal digits that differ if a text does."""
    state = hashlib.blake2b(digest_size=10)
    for text in texts:
        state.update(f"{len(text)} {text}".encode())
    return state.hexdigest()


def drop_older(folder: Path) -> None:
    """Delete stale entries of the same source: folders with the same name up to the first dash."""
    for old in folder.parent.glob(f"{folder.name.split('-')[0]}-*"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
