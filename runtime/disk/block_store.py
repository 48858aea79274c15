"""A folder of blocks: content under a key, checked when read, the least recently used go first.

A block is written under another name and renamed, so a killed process leaves the old file or the
new one. Processes may share a folder: a block says by its key what it holds, and one that another
process has removed is a miss. Any error of the disk is a miss too.

One thread writes; any may read.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from radixlang.runtime.disk.buffers import Buffers, Bytes

log = logging.getLogger("radixlang.runtime")
MAGIC = b"radixlang block 2\n"
# tokens, bytes of spans, bytes of payload, checksum of the name and of all that follows
_HEAD = struct.Struct("<IIQI")
_ALIGN = 64  # bytes; the payload begins at a multiple
_SHARE_KEPT = 0.9  # of the bytes allowed, after removing
_SHARE_UNSEEN = 1 / 16  # of the bytes allowed: written by this process before it looks again


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Tokens, int32 [n], the bytes of their keys and values, and where adapters begin."""

    tokens: NDArray[np.int32]
    payload: Bytes
    spans: bytes = b""

    @property
    def num_bytes(self) -> int:
        """Bytes of its file, but for the head."""
        return self.tokens.nbytes + self.payload.nbytes + len(self.spans)


class BlockStore:
    """Blocks in a folder that holds at most `max_bytes`; payloads are read into `buffers`."""

    def __init__(self, folder: Path, max_bytes: int, buffers: Buffers | None = None) -> None:
        self._folder = folder
        self._buffers = buffers or Buffers(0, 1)
        self._max_bytes = max_bytes
        self.num_failures = 0
        self._known: set[str] = set()
        self._num_bytes = 0
        self._num_unseen = 0  # bytes written since the folder was looked at
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
            block = self._read(path, name)
            os.utime(path)
        except FileNotFoundError:
            self._known.discard(name)
            return None
        except OSError as error:
            self._fail(error)
            return None
        if block is None:
            self._known.discard(name)
            with contextlib.suppress(OSError):
                path.unlink()
        return block

    def _read(self, path: Path, name: str) -> TokenBlock | None:
        """The block of a file; None unless every byte is as it was written."""
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(len(MAGIC) + _HEAD.size)
            if not head.startswith(MAGIC) or len(head) < len(MAGIC) + _HEAD.size:
                return None
            num_tokens, num_spans, num_bytes, checksum = _HEAD.unpack(head[len(MAGIC) :])
            num_rest = size - len(head) - num_bytes
            if num_rest != _padded(4 * num_tokens + num_spans):
                return None
            rest, payload = file.read(num_rest), self._buffers.take(num_bytes)
            if len(rest) != num_rest or not _fill(file, payload):
                return None
        if zlib.crc32(payload.data, zlib.crc32(name.encode() + rest)) != checksum:
            return None
        tokens = np.frombuffer(rest, np.int32, num_tokens)
        return TokenBlock(tokens, payload, rest[4 * num_tokens : 4 * num_tokens + num_spans])

    def write(self, name: str, block: TokenBlock) -> None:
        """Keep a block; an error of the disk only loses it."""
        head = _head(name, block)
        num_bytes = len(head) + block.payload.nbytes
        if num_bytes > self._max_bytes:
            return
        part = ""
        try:
            if self._is_due(num_bytes):
                self._make_room(num_bytes)
            handle, part = tempfile.mkstemp(suffix=".part", dir=self._folder)
            with os.fdopen(handle, "wb", buffering=0) as file:
                _write_all(file.fileno(), head, block.payload.data)
            os.replace(part, self._folder / name)
        except OSError as error:
            self._fail(error)
            with contextlib.suppress(OSError):
                os.unlink(part)
            return
        self._known.add(name)
        self._num_bytes += num_bytes
        self._num_unseen += num_bytes

    def _is_due(self, num_bytes: int) -> bool:
        """Whether to look at the folder: it may be full, of what other processes wrote too."""
        is_full = self._num_bytes + num_bytes > self._max_bytes
        return is_full or self._num_unseen > self._max_bytes * _SHARE_UNSEEN

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
        self._num_unseen = 0
        return found

    def _make_room(self, num_bytes: int) -> None:
        found = self._count()
        if self._num_bytes + num_bytes <= self._max_bytes:
            return
        allowed = self._max_bytes * _SHARE_KEPT - num_bytes
        for _, size, name in sorted(found):
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


def _write_all(handle: int, *parts: bytes | memoryview) -> None:
    """Write parts one after the other; a system may take less of one than was offered."""
    for part in parts:
        left = memoryview(part)
        while left:
            left = left[os.write(handle, left) :]


def _fill(file: io.FileIO, payload: Bytes) -> bool:
    """Read a whole payload; False if the file ends before."""
    at = 0
    while at < len(payload) and (num := file.readinto(payload.data[at:])):
        at += num
    return at == len(payload)


def _padded(num_bytes: int) -> int:
    """Bytes of tokens and spans with the zeros after which the payload begins."""
    begin = len(MAGIC) + _HEAD.size
    return num_bytes + -(begin + num_bytes) % _ALIGN


def _head(name: str, block: TokenBlock) -> bytes:
    """All of a file before its payload."""
    rest = block.tokens.astype(np.int32).tobytes() + block.spans
    rest = rest.ljust(_padded(len(rest)), b"\0")
    checksum = zlib.crc32(block.payload.data, zlib.crc32(name.encode() + rest))
    sizes = (len(block.tokens), len(block.spans), block.payload.nbytes, checksum)
    return MAGIC + _HEAD.pack(*sizes) + rest
