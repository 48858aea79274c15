"""Prebuilt prefixes of a runtime: computed once, saved, loaded and pinned at the next start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from radixlang.errors import ParameterError
from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.radix_tree import Namespace
from radixlang.runtime.disk.fingerprint import fingerprint_of
from radixlang.runtime.requests.prefill_request import prefill
from radixlang.runtime.runtime import Runtime
from radixlang.runtime.saved_prefixes.file_format import (
    Loaded,
    load_prefixes,
    read_head,
    read_record_head,
    save_prefixes,
)


@dataclass(frozen=True, slots=True)
class SavedPrefix:
    """The content of a file, read only from its heads."""

    path: Path
    num_tokens: int
    num_bytes: int
    fingerprint: dict[str, object]


def save_prefix(
    runtime: Runtime, token_ids: Sequence[int], path: str | os.PathLike[str]
) -> SavedPrefix:
    """Compute a prefix, if it is not cached, and save it to a file.

    Raises:
        ParameterError: there are no tokens.
        PromptTooLongError, PoolExhaustedError: it does not fit.
    """
    if not len(token_ids):
        raise ParameterError("the prefix is empty; give text that all runs begin with")
    _compute(runtime, token_ids)
    namespace = Namespace("")
    fingerprint = fingerprint_of(runtime.loaded, namespace)
    memory = runtime.core.memory

    def write() -> None:
        found = memory.tree.match(namespace, np.asarray(token_ids, np.int32), exact=True)
        lease = memory.tree.lease(found.node, "prefix being saved", exact=True)
        try:
            save_prefixes(path, memory.tree, memory.cache, [found.node], fingerprint)
        finally:
            lease.release()

    runtime.core.call(write)
    return describe(path)


def _compute(runtime: Runtime, token_ids: Sequence[int]) -> None:
    branch = runtime.new_branch()
    try:
        branch.extend(list(token_ids))
        prefill(branch, lambda: runtime.stats().num_prompt_tokens)
    finally:
        branch.release()


def load_prefix(runtime: Runtime, path: str | os.PathLike[str]) -> tuple[Loaded, list[Lease]]:
    """Load a saved prefix into a runtime's cache and pin it; releasing the leases unpins it.

    Raises:
        ParameterError: the file was made with another model, or is not a file of prefixes.
    """
    fingerprint = fingerprint_of(runtime.loaded, Namespace(""))
    memory = runtime.core.memory

    def read() -> tuple[Loaded, list[Lease]]:
        loaded = load_prefixes(path, memory.tree, memory.cache, fingerprint)
        leases = [memory.tree.lease(node, f"prefix {Path(path).name}") for node in loaded.nodes]
        return loaded, leases

    found: tuple[Loaded, list[Lease]] = runtime.core.call(read)
    return found


def describe(path: str | os.PathLike[str]) -> SavedPrefix:
    """Tokens and fingerprint of a file, without its keys and values.

    Raises:
        ParameterError: it is not a file of saved prefixes, or a head in it is damaged.
    """
    with Path(path).open("rb") as file:
        about = read_head(file, path)
        num_tokens = num_records = 0
        end = file.tell()
        while (record := read_record_head(file)) is not None:
            _, count, num_bytes, _ = record
            num_tokens += count
            num_records += 1
            end = file.seek(4 * count + num_bytes, os.SEEK_CUR)
        size = os.fstat(file.fileno()).st_size
    if num_records != about["num_records"] or end != size:
        raise ParameterError(
            f"{path} is damaged after {num_tokens:,} tokens: {num_records} of "
            f"{about['num_records']} records, {size:,} of {end:,} bytes. Loading gives what comes "
            "before the damage; build it again to have the rest"
        )
    fingerprint = about["fingerprint"]
    assert isinstance(fingerprint, dict)  # written by save_prefixes, under a checksum
    return SavedPrefix(Path(path), num_tokens, size, fingerprint)
