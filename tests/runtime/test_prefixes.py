"""Saved prefixes: what comes back, what is refused, and what a crash or damage leaves."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlang.errors import ParameterError
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.radix_tree import Namespace, RadixNode, RadixTree
from radixlang.runtime.diagnostics.invariants import audit
from radixlang.runtime.disk.fingerprint import fingerprint_of
from radixlang.runtime.saved_prefixes.file_format import (
    MAGIC,
    RECORD,
    Fingerprint,
    load_prefixes,
    save_prefixes,
)
from radixlang.runtime.saved_prefixes.store import describe

SPACE = Namespace("tenant", weights_version=3)
PRINT = Fingerprint("weights", "tokenizer", "rotary", "eps 1e-5", "float32", 2, 3, 4, SPACE)
PROMPTS = ([1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8], [1, 2, 3, 7, 9], [5, 5])


class Store:
    """A tree with its tensors, and prompts whose numbers are random."""

    def __init__(self, num_slots: int = 64, page_size: int = 1, dtype=torch.float32) -> None:  # type: ignore[no-untyped-def]
        self.tree = RadixTree(PagePool(num_slots // page_size, page_size))
        self.cache = KVCache(num_slots, 2, 3, 4, dtype=dtype)

    def put(self, tokens: list[int], namespace: Namespace = SPACE) -> RadixNode:
        match = self.tree.match(namespace, tokens)
        new = tokens[match.length :]
        slots = self.tree.pool.alloc(len(new))
        shape = (2, 2, len(new), 3, 4)
        self.cache.write(slots, torch.randn(shape, generator=torch.Generator().manual_seed(1)))
        return self.tree.insert(match.node, new, slots).node

    def numbers(self, tokens: list[int]) -> torch.Tensor:
        match = self.tree.match(SPACE, tokens)
        assert match.length == len(tokens)
        return self.cache.read(self.tree.slots(match.node))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "prefixes.kv"


def save(path: Path, **kwargs: object) -> tuple[Store, int]:
    store = Store(**kwargs)  # type: ignore[arg-type]
    nodes = [store.put(prompt) for prompt in PROMPTS]
    nodes.append(store.put([1, 2, 3], Namespace("other")))
    ours = [node for node in nodes if node.namespace == SPACE]
    return store, save_prefixes(path, store.tree, store.cache, ours, PRINT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("page_size", [1, 16])
def test_what_is_loaded_is_what_was_saved(path: Path, page_size: int, dtype: torch.dtype) -> None:
    saved, num_tokens = save(path, dtype=dtype)
    again = Store(64, page_size, dtype)
    loaded = load_prefixes(path, again.tree, again.cache, PRINT)
    assert loaded.is_complete
    assert loaded.num_tokens == num_tokens == saved.tree.num_cached_tokens - 3
    assert sorted(again.tree.tokens(node).tolist() for node in loaded.nodes) == sorted(PROMPTS)
    for prompt in PROMPTS:
        assert torch.equal(saved.numbers(prompt), again.numbers(prompt))
    assert not audit(again.tree, again.tree.pool)


def test_what_is_cached_already_is_kept(path: Path) -> None:
    save(path)
    again = Store()
    before = again.put([1, 2, 3, 7]).slots.copy()
    loaded = load_prefixes(path, again.tree, again.cache, PRINT)
    assert loaded.is_complete
    assert loaded.num_tokens == 7
    assert list(again.tree.slots(again.tree.match(SPACE, [1, 2, 3, 7]).node)) == list(before)
    assert not audit(again.tree, again.tree.pool)


@pytest.mark.parametrize(
    "other",
    [
        replace(PRINT, weights="others"),
        replace(PRINT, tokenizer="another"),
        replace(PRINT, rotary="theta 1e6"),
        replace(PRINT, arithmetic="eps 1e-6"),
        replace(PRINT, kv_dtype="bfloat16"),
        replace(PRINT, num_layers=3),
        replace(PRINT, namespace=Namespace("tenant", weights_version=4)),
    ],
    ids=["weights", "tokenizer", "rotary", "arithmetic", "kv_dtype", "num_layers", "namespace"],
)
def test_another_fingerprint_is_refused_with_what_differs(path: Path, other: Fingerprint) -> None:
    save(path)
    store = Store()
    name = next(n for n in Fingerprint.__slots__ if getattr(other, n) != getattr(PRINT, n))
    with pytest.raises(ParameterError, match=rf"other settings: {name} .*build the prefixes again"):
        load_prefixes(path, store.tree, store.cache, other)
    assert store.tree.num_cached_tokens == 0


def test_any_cut_file_gives_whole_prefixes_or_a_clear_error(path: Path) -> None:
    saved, _ = save(path)
    whole = path.read_bytes()
    lengths = set()
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        store = Store()
        try:
            loaded = load_prefixes(path, store.tree, store.cache, PRINT)
        except ParameterError as error:
            assert "build the prefixes again" in str(error)  # noqa: PT017
            continue
        assert not loaded.is_complete
        lengths.add(loaded.num_tokens)
        for node in loaded.nodes:
            tokens = store.tree.tokens(node).tolist()
            assert torch.equal(store.numbers(tokens), saved.numbers(tokens))
        assert not audit(store.tree, store.tree.pool)
    assert len(lengths) > 3


def test_damage_in_a_record_ends_the_loading_before_it(path: Path) -> None:
    _, num_tokens = save(path)
    whole = bytearray(path.read_bytes())
    whole[-RECORD.size] ^= 1
    path.write_bytes(whole)
    store = Store()
    loaded = load_prefixes(path, store.tree, store.cache, PRINT)
    assert 0 < loaded.num_tokens < num_tokens
    assert not loaded.is_complete


@pytest.mark.parametrize("bit", [0, 5])
def test_a_flipped_bit_anywhere_gives_no_wrong_token(path: Path, bit: int) -> None:
    saved, num_tokens = save(path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        store = Store()
        try:
            loaded = load_prefixes(path, store.tree, store.cache, PRINT)
        except ParameterError:
            assert store.tree.num_cached_tokens == 0
            continue
        assert not loaded.is_complete
        assert loaded.num_tokens < num_tokens
        for node in loaded.nodes:
            tokens = store.tree.tokens(node).tolist()
            assert any(tokens == prompt[: len(tokens)] for prompt in PROMPTS)
            assert torch.equal(store.numbers(tokens), saved.numbers(tokens))


def test_a_description_is_right_or_a_clear_error_whatever_bit_of_a_head_is_flipped(
    path: Path,
) -> None:
    _, num_tokens = save(path)
    whole = path.read_bytes()
    assert describe(path).num_tokens == num_tokens
    for size in (0, 5, len(MAGIC) + 3, len(whole) // 2, len(whole) - 1, len(whole) + 1):
        path.write_bytes(whole[:size].ljust(size, b"?"))
        with pytest.raises(ParameterError, match="again"):
            describe(path)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        try:
            assert describe(path).num_tokens == num_tokens  # damage to numbers is loading's to find
        except ParameterError as error:
            assert "again" in str(error)  # noqa: PT017


def test_what_a_killed_process_had_begun_is_removed_once_it_is_old(path: Path) -> None:
    path.parent.mkdir()
    old, young = (path.with_name(f"{path.name}{name}.part") for name in ("old", "young"))
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))
    save(path)
    assert not old.exists()
    assert young.exists()


def test_a_crash_while_writing_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = save(path)
    old = path.read_bytes()
    node = store.put([8, 8, 8])

    def crash(fd: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="no space"):
        save_prefixes(path, store.tree, store.cache, [node], PRINT)
    assert path.read_bytes() == old
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_full_pool_takes_what_fits_and_evicts_nothing(path: Path) -> None:
    save(path)
    store = Store(num_slots=8)
    store.put([4, 4])
    loaded = load_prefixes(path, store.tree, store.cache, PRINT)
    assert not loaded.is_complete
    assert 0 < loaded.num_tokens <= 6
    assert store.tree.peek(SPACE, [4, 4]) == 2
    assert not audit(store.tree, store.tree.pool)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    store = Store()
    with pytest.raises(ParameterError, match="no file of saved prefixes"):
        load_prefixes(path, store.tree, store.cache, PRINT)


def test_nodes_of_another_namespace_are_refused(path: Path) -> None:
    store = Store()
    node = store.put([1], Namespace("other"))
    with pytest.raises(ParameterError, match="is not of"):
        save_prefixes(path, store.tree, store.cache, [node], PRINT)
    assert not path.exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [("norm_eps", 1e-3), ("windows", (7, 7)), ("attention_scale", 0.5), ("activation", "gelu_tanh"),
     ("embed_scale", 2.0), ("attention_soft_cap", 30.0), ("norm_offset", 1.0)],
)  # fmt: skip
def test_the_same_weights_under_other_arithmetic_have_another_fingerprint(
    tiny_model: Any, field: str, value: object
) -> None:
    space = Namespace("")
    mine = fingerprint_of(tiny_model, space)
    other = replace(tiny_model, config=replace(tiny_model.config, **{field: value}))
    theirs = fingerprint_of(other, space)
    assert theirs.arithmetic != mine.arithmetic
    assert replace(theirs, arithmetic=mine.arithmetic) == mine


def test_a_name_or_a_longer_context_keeps_the_fingerprint(tiny_model: Any) -> None:
    config = replace(tiny_model.config, name="renamed", context_length=17, eos_token_ids=(3,))
    space = Namespace("")
    renamed = fingerprint_of(replace(tiny_model, config=config), space)
    assert renamed == fingerprint_of(tiny_model, space)
