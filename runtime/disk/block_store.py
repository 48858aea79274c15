"""A folder of blocks: content under a key, checked when read, the least recently used go first.

A block is written under another name and renamed, so a killed process leaves the old file or the
new one. Processes may share a folder: a block says by its key what it holds, and one that another
process has removed is a miss. Any error of the disk is a miss too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger("radixlang.runtime")
MAGIC = b"radixlang block 1\n"
_HEAD = struct.Struct("<IQI")  # tokens, payload bytes, checksum of key, tokens and payload
_SHARE_KEPT = 0.9  # of the bytes allowed, after removing


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Tokens, int32 [n], and the bytes of their keys and values."""

    tokens: NDArray[np.int32]
    payload: bytes


class BlockStore:
    """Blocks in a folder that holds at most `max_bytes`."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._is_broken = False
        self.num_failures = 0
        self._known: set[str] = set()
        self._num_bytes = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._count()
        except OSError as error:
            self._fail(error)

    def has(self, name: str) -> bool:
        """Whether a block was there when it was last looked for."""
        return name in self._known

    def read(self, name: str) -> TokenBlock | None:
        """A block, None if there is none or it is damaged; it becomes the last used."""
        path = self._folder / name
        try:
            data = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            self._known.discard(name)
            return None
        except OSError as error:
            self._fail(error)
            return None
        block = _unpacked(name, data)
        if block is None:
            self._known.discard(name)
            with contextlib.suppress(OSError):
                path.unlink()
        return block

    def write(self, name: str, tokens: NDArray[np.int32], payload: bytes) -> None:
        """Keep a block; an error of the disk only loses it."""
        data = _packed(name, tokens, payload)
        if len(data) > self._max_bytes or self._is_broken:
            return
        part = ""
        try:
            if self._num_bytes + len(data) > self._max_bytes:
                self._make_room(len(data))
            handle, part = tempfile.mkstemp(suffix=".part", dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(part, self._folder / name)
        except OSError as error:
            self._fail(error)
            with contextlib.suppress(OSError):
                os.unlink(part)
            return
        self._known.add(name)
        self._num_bytes += len(data)

    def _count(self) -> list[tuple[float, int, str]]:
        """Age, size and name of every file; what is there now is known."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    about = entry.stat()
                    found.append((about.st_mtime, about.st_size, entry.name))
        self._known = {name for _, _, name in found}
        self._num_bytes = sum(size for _, size, _ in found)
        return found

    def _make_room(self, num_bytes: int) -> None:
        allowed = self._max_bytes * _SHARE_KEPT - num_bytes
        for _, size, name in sorted(self._count()):
            if self._num_bytes <= allowed:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder / name)
            self._known.discard(name)
            self._num_bytes -= size

    def _fail(self, error: OSError) -> None:
        """Count an error, and say the first in the log."""
        self.num_failures += 1
        if self.num_failures == 1:
            log.warning("the disk tier in %s fails: %s", self._folder, error)


def _packed(name: str, tokens: NDArray[np.int32], payload: bytes) -> bytes:
    edge = tokens.astype(np.int32).tobytes()
    checksum = zlib.crc32(payload, zlib.crc32(name.encode() + edge))
    return MAGIC + _HEAD.pack(len(tokens), len(payload), checksum) + edge + payload


def _unpacked(name: str, data: bytes) -> TokenBlock | None:
    start = len(MAGIC) + _HEAD.size
    if not data.startswith(MAGIC) or len(data) < start:
        return None
    num_tokens, num_bytes, checksum = _HEAD.unpack(data[len(MAGIC) : start])
    edge, payload = data[start : start + 4 * num_tokens], data[start + 4 * num_tokens :]
    if len(edge) != 4 * num_tokens or len(payload) != num_bytes:
        return None
    if zlib.crc32(payload, zlib.crc32(name.encode() + edge)) != checksum:
        return None
    return TokenBlock(np.frombuffer(edge, np.int32), payload)
