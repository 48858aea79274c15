"""Prebuilt prefixes: computed once, pinned, saved to disk, and loaded at the next start.

A file has records, each with a node's tokens and its keys and values, parents before children. A
record's head and its content have checksums. The file is written under another name and renamed, so
a crash leaves the old file or the new one. If a file is truncated or damaged all the same, the
records before the damage are a valid set of prefixes, and are loaded.

The head has a fingerprint. Keys and values of other weights, other rotary settings or another
tokenizer are never loaded.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from radixlang.errors import ParameterError
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.node import token_ids
from radixlang.runtime.cache.pages.page_pool import PoolFull
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree, Tokens
from radixlang.runtime.disk.fingerprint import Fingerprint

MAGIC = b"radixlang prefixes 2\n"
HEADER = struct.Struct("<II")  # length of the JSON head, its checksum
RECORD = struct.Struct("<iII")  # parent record (-1: root), tokens, payload bytes
CHECKSUMS = struct.Struct("<II")  # of the record's head, and of its tokens and payload after it
ABANDONED_AFTER_S = 3600.0
_PART = ".part"
_ADVICE = "build the prefixes again and save them over it"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of loading: nodes that end the prefixes, tokens, and whether all was intact."""

    nodes: tuple[RadixNode, ...]
    num_tokens: int
    is_complete: bool


def save_prefixes(
    path: str | os.PathLike[str],
    tree: RadixTree,
    cache: KVCache,
    nodes: Sequence[RadixNode],
    fingerprint: Fingerprint,
) -> int:
    """Write the paths that end at the nodes; returns the number of tokens written.

    8-bit nodes end a path: only exact keys and values are saved. Nodes must be of the
    fingerprint's namespace.
    """
    for node in nodes:
        if node.namespace != fingerprint.namespace:
            raise ParameterError(f"a node of {node.namespace} is not of {fingerprint.namespace}")
    order = _parents_first(tree, nodes)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _drop_abandoned(target)
    handle, name = tempfile.mkstemp(prefix=target.name, suffix=_PART, dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            _write(file, order, cache, fingerprint)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return sum(node.length for node in order)


def load_prefixes(
    path: str | os.PathLike[str], tree: RadixTree, cache: KVCache, fingerprint: Fingerprint
) -> Loaded:
    """Load the prefixes of a file into tree and cache; nodes that are cached already are kept.

    Loading stops at the first damaged record, or when the pool is full (nothing is evicted);
    `is_complete` is then False.

    Raises:
        ParameterError: it is not such a file, or has another fingerprint.
    """
    with Path(path).open("rb") as file:
        saved = read_head(file, path)
        _compare(saved, fingerprint, path)
        ends: list[RadixNode] = []
        parents: set[int] = set()
        before = tree.num_cached_tokens
        for parent, tokens, payload in _records(file, cache):
            above = ends[parent] if parent >= 0 else tree.root(fingerprint.namespace)
            node = _place(tree, cache, above, tokens, payload)
            if node is None:
                break
            parents.add(parent)
            ends.append(node)
        is_complete = len(ends) == saved["num_records"]
    leaves = tuple(node for i, node in enumerate(ends) if i not in parents)
    return Loaded(leaves, tree.num_cached_tokens - before, is_complete)


# ---- writing


def _drop_abandoned(target: Path) -> None:
    """Remove old unfinished files of killed processes; a young one may still be written."""
    for part in target.parent.glob(f"{glob.escape(target.name)}*{_PART}"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > ABANDONED_AFTER_S:
                part.unlink()


def _parents_first(tree: RadixTree, nodes: Sequence[RadixNode]) -> list[RadixNode]:
    """Exact nodes of all paths, each once, parents before children."""
    order: dict[RadixNode, None] = {}
    for node in nodes:
        for step in tree.path(node):
            if step.quantized:
                break
            order[step] = None
    return list(order)


def _write(
    file: BinaryIO, order: Sequence[RadixNode], cache: KVCache, fingerprint: Fingerprint
) -> None:
    about = {"fingerprint": asdict(fingerprint), "num_records": len(order)}
    text = json.dumps(about).encode()
    file.write(MAGIC + HEADER.pack(len(text), zlib.crc32(text)) + text)
    numbers = {node: i for i, node in enumerate(order)}
    for node in order:
        assert node.parent is not None  # roots are on no path
        payload = _as_bytes(cache.read(node.slots))
        parent = numbers.get(node.parent, -1)
        head = RECORD.pack(parent, node.length, len(payload))
        edge = token_ids(node.key).tobytes()
        file.write(head + CHECKSUMS.pack(zlib.crc32(head), _checksum(head, edge, payload)))
        file.write(edge)
        file.write(payload)


def _as_bytes(data: Tensor) -> bytes:
    flat: bytes = data.contiguous().cpu().view(torch.uint8).numpy().tobytes()
    return flat


# ---- reading


def read_head(file: BinaryIO, path: str | os.PathLike[str]) -> dict[str, object]:
    """The head of the file: the fingerprint and the number of records.

    Raises:
        ParameterError: it is not such a file, or its head is damaged.
    """
    if file.read(len(MAGIC)) != MAGIC:
        raise ParameterError(f"{path} is no file of saved prefixes of this version; {_ADVICE}")
    head = file.read(HEADER.size)
    length, checksum = HEADER.unpack(head) if len(head) == HEADER.size else (0, 1)
    text = file.read(min(length, os.fstat(file.fileno()).st_size))
    if zlib.crc32(text) != checksum:
        raise ParameterError(f"the head of {path} is damaged; {_ADVICE}")
    found: dict[str, object] = json.loads(text)
    return found


def read_record_head(file: BinaryIO) -> tuple[int, int, int, int] | None:
    """Parent, tokens, payload bytes and the content's checksum; None at the end or at damage."""
    head, sums = file.read(RECORD.size), file.read(CHECKSUMS.size)
    if len(sums) < CHECKSUMS.size:
        return None
    of_head, of_rest = CHECKSUMS.unpack(sums)
    if zlib.crc32(head) != of_head:
        return None
    return *RECORD.unpack(head), of_rest


def _checksum(*parts: bytes) -> int:
    total = 0
    for part in parts:
        total = zlib.crc32(part, total)
    return total


def _compare(
    saved: dict[str, object], fingerprint: Fingerprint, path: str | os.PathLike[str]
) -> None:
    theirs, ours = saved["fingerprint"], asdict(fingerprint)
    assert isinstance(theirs, dict)  # written by _write, under a checksum
    unequal = [
        f"{name} {theirs.get(name)!r} (now {value!r})"
        for name, value in ours.items()
        if theirs.get(name) != value
    ]
    if unequal:
        raise ParameterError(
            f"{path} was saved under other settings: {', '.join(unequal)}; "
            "build the prefixes again, or load what they were built with"
        )


def _records(file: BinaryIO, cache: KVCache) -> Iterator[tuple[int, Tokens, Tensor]]:
    """Intact records in order; ends at the first that is truncated or damaged."""
    shape = (len(cache), 2, -1, cache.num_kv_heads, cache.head_dim)
    number = 0
    while (found := read_record_head(file)) is not None:
        parent, num_tokens, num_bytes, checksum = found
        if not -1 <= parent < number or num_bytes != num_tokens * cache.bytes_per_token:
            return
        edge, payload = file.read(4 * num_tokens), file.read(num_bytes)
        head = RECORD.pack(parent, num_tokens, num_bytes)
        if _checksum(head, edge, payload) != checksum or not edge:
            return
        data = torch.frombuffer(bytearray(payload), dtype=cache.dtype).view(shape)
        yield parent, np.frombuffer(edge, np.int32), data
        number += 1


def _place(
    tree: RadixTree, cache: KVCache, parent: RadixNode, tokens: Tokens, data: Tensor
) -> RadixNode | None:
    """Store one record below its parent; None if the pool has no room."""
    after = int(parent.slots[-1]) if parent.length and not parent.quantized else None
    try:
        slots = tree.pool.alloc(len(tokens), after_slot=after, holder="saved prefixes")
    except PoolFull:
        return None
    cache.write(slots, data)
    return tree.insert(parent, tokens, slots).node
