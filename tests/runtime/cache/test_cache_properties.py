"""Random lives of a cache against a naive model, with every invariant checked after each step.

The model is a dictionary from every cached prefix to the time of its last use. With pages of one
token and LRU it predicts every eviction token by token; elsewhere it checks what was evicted.
Slots hold numbers made from the prefix they stand for, and free slots hold NaN, so a slot that is
moved, freed or shared wrongly shows in the numbers.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radixlang.runtime.cache.compaction import Compactor
from radixlang.runtime.cache.eviction import NEVER
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.pages.page_pool import NO_SLOTS, PagePool, PoolFull, Slots
from radixlang.runtime.cache.pins import ProgramPins
from radixlang.runtime.cache.quantized_tier import ColdTier
from radixlang.runtime.cache.radix_tree import Namespace, RadixNode, RadixTree
from radixlang.runtime.cache.snapshot import draw, take_snapshot
from radixlang.runtime.diagnostics import invariants as checks
from radixlang.runtime.diagnostics.leaks import find_leaks
from radixlang.runtime.saved_prefixes.file_format import Fingerprint, load_prefixes, save_prefixes

NUM_SLOTS = 48
HEAD_DIM = 4
Key = tuple[Namespace, tuple[int, ...]]

tokens_of = st.lists(st.integers(0, 2), min_size=1, max_size=12)
namespaces = st.sampled_from([Namespace(), Namespace("tenant"), Namespace("", 1)])
picks = st.integers(0, 2**16)


def values_of(namespace: Namespace, tokens: tuple[int, ...]) -> torch.Tensor:
    """The numbers that stand for the keys and values of a prefix's last token."""
    digest = hashlib.blake2b(repr((namespace, tokens)).encode(), digest_size=HEAD_DIM).digest()
    return torch.tensor([byte / 128 - 1 for byte in digest])


@dataclass(eq=False)
class FakeBranch:
    """What the engine keeps for a branch: a lease, and slots of tokens that are not committed."""

    name: str
    lease: Lease
    exact: bool
    tokens: list[int] = field(default_factory=list)  # beyond the lease
    slots: Slots = field(default_factory=lambda: NO_SLOTS)
    prompt: list[int] = field(default_factory=list)


class CacheMachine(RuleBasedStateMachine):
    """Operations of an engine in any order."""

    @initialize(
        page_size=st.sampled_from([1, 1, 3, 8]),
        policy=st.sampled_from(["lru", "lru", "slru", "lookahead"]),
        num_cold=st.sampled_from([0, 24]),
    )
    def build(self, page_size: int, policy: str, num_cold: int) -> None:
        cold_pool = PagePool(num_cold // page_size, page_size) if num_cold else None
        self.pool = PagePool(NUM_SLOTS // page_size, page_size, track_holders=True)
        self.tree = RadixTree(self.pool, policy=policy, cold_pool=cold_pool)
        self.cache = KVCache(
            self.pool.num_slots, 1, 1, HEAD_DIM,
            num_cold_slots=cold_pool.num_slots if cold_pool else 0,
        )  # fmt: skip
        self.now = 0.0
        self.cold = ColdTier(self.tree, self.cache, idle_s=2, clock=lambda: self.now)
        self.compactor = Compactor(self.tree, self.cache, max_tokens=40)
        self.pins = ProgramPins(self.tree, max_tokens=16)
        self.branches: list[FakeBranch] = []
        self.last_use: dict[Key, int] = {}
        self.predicts = page_size == 1 and policy == "lru" and not num_cold
        self.num_names = 0
        self.is_computed = np.zeros(self.pool.num_slots, bool)
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for branch in list(self.branches):
            self.cancel_branch(branch)
        self.pins.release_all()
        assert not checks.idle_is_empty(self.tree, self.pool, {})
        self.tree.clear()
        assert self.pool.num_free_pages == self.pool.num_pages
        assert self.pool.num_free_runs == 1
        self.folder.cleanup()

    # ---- the model

    def keys(self, namespace: Namespace, tokens: list[int]) -> list[Key]:
        return [(namespace, tuple(tokens[:n])) for n in range(1, len(tokens) + 1)]

    def naive_match(self, namespace: Namespace, tokens: list[int]) -> int:
        return sum(key in self.last_use for key in self.keys(namespace, tokens))

    def naive_touch(self, namespace: Namespace, tokens: list[int]) -> None:
        for key in self.keys(namespace, tokens):
            self.last_use[key] = self.tree.num_uses

    def naive_evict(self, num_tokens: int) -> None:
        leased = {key for lease in self.tree.leases for key in self.keys_of(lease.node)}
        for _ in range(num_tokens):
            parents = {(space, tokens[:-1]) for space, tokens in self.last_use}
            free = [key for key in self.last_use if key not in parents and key not in leased]
            if free:
                del self.last_use[min(free, key=self.last_use.__getitem__)]

    def keys_of(self, node: RadixNode) -> list[Key]:
        return self.keys(node.namespace, self.tree.tokens(node).tolist())

    def cached_keys(self) -> set[Key]:
        return {
            key for node in self.tree.nodes() for key in self.keys_of(node)[node.start : node.end]
        }

    def resync(self) -> None:
        """Take over what was evicted, after checking that nothing else changed."""
        cached = self.cached_keys()
        assert cached <= set(self.last_use)
        leased = {key for lease in self.tree.leases for key in self.keys_of(lease.node)}
        assert leased <= cached
        self.last_use = {key: self.last_use[key] for key in cached}

    # ---- helpers that do what an engine does

    def pick(self, items: list, number: int):  # type: ignore[no-untyped-def, type-arg]
        return items[number % len(items)]

    def make_room(self, num_tokens: int, after: int | None) -> None:
        missing = self.pool.num_pages_for(num_tokens, after) - self.pool.num_free_pages
        if missing > 0:
            missing -= self.cold.make_room(missing) if self.tree.cold_pool else 0
        if missing > 0:
            if self.predicts:
                self.naive_evict(missing)
            self.tree.evict(missing)
        if not self.predicts:
            self.resync()

    def compute(self, namespace: Namespace, tokens: list[int], slots: Slots) -> None:
        """Write the numbers of the last len(slots) tokens."""
        for i, slot in enumerate(slots.tolist()):
            prefix = tuple(tokens[: len(tokens) - len(slots) + i + 1])
            value = values_of(namespace, prefix)
            self.cache[0].k[slot] = value
            self.cache[0].v[slot] = -value
            self.is_computed[slot] = True

    def extend_branch(self, branch: FakeBranch, tokens: list[int]) -> bool:
        node = branch.lease.node
        tail = branch.slots if len(branch.slots) else node.slots
        is_cold_tail = node.quantized and not len(branch.slots)
        after = int(tail[-1]) if len(tail) and not is_cold_tail else None
        self.make_room(len(tokens), after)
        before = checks.totals(self.tree, self.pool)
        try:
            slots = self.pool.alloc(len(tokens), after_slot=after, holder=branch.name)
        except PoolFull:
            after_failure = checks.totals(self.tree, self.pool)
            assert not checks.failed_admission_changes_nothing(before, after_failure)
            return False
        branch.tokens += tokens
        branch.slots = np.concatenate((branch.slots, slots))
        prefix = self.tree.tokens(node).tolist() + branch.tokens
        self.compute(node.namespace, prefix, slots)
        return True

    def commit_branch(self, branch: FakeBranch) -> None:
        node = branch.lease.node
        prefix = self.tree.tokens(node).tolist()
        expected = self.naive_match(node.namespace, prefix + branch.tokens) - len(prefix)
        result = self.tree.insert(node, branch.tokens, branch.slots, exact=branch.exact)
        branch.lease.move(result.node)
        taken = result.num_inserted + result.num_duplicate
        if not branch.exact:
            assert taken == len(branch.tokens)
            assert result.num_duplicate == expected
        self.naive_touch(node.namespace, prefix + branch.tokens[:taken])
        branch.tokens, branch.slots = branch.tokens[taken:], branch.slots[taken:]

    def cancel_branch(self, branch: FakeBranch) -> None:
        self.pool.release(branch.slots)
        branch.lease.release()
        self.branches.remove(branch)

    def open_branch(self, namespace: Namespace, prompt: list[int], exact: bool) -> FakeBranch:
        self.num_names += 1
        expected = self.naive_match(namespace, prompt[:-1])
        peeked = self.tree.peek(namespace, prompt[:-1], exact=exact)
        match = self.tree.match(namespace, prompt[:-1], exact=exact)
        assert match.length == peeked == match.node.end
        assert match.length == expected or (exact and match.length < expected)
        assert not checks.queries_remain({"new": (match.length, len(prompt))})
        self.naive_touch(namespace, prompt[: match.length])
        lease = self.tree.lease(match.node, f"branch {self.num_names}", exact=exact)
        branch = FakeBranch(lease.holder, lease, exact, prompt=prompt)
        self.branches.append(branch)
        return branch

    # ---- operations

    @rule(namespace=namespaces, prompt=tokens_of, exact=st.booleans())
    def start(self, namespace: Namespace, prompt: list[int], exact: bool) -> None:
        branch = self.open_branch(namespace, prompt, exact)
        if not self.extend_branch(branch, prompt[branch.lease.node.end :]):
            self.cancel_branch(branch)

    @precondition(lambda self: self.branches)
    @rule(which=picks, tokens=tokens_of)
    def extend(self, which: int, tokens: list[int]) -> None:
        self.extend_branch(self.pick(self.branches, which), tokens)

    @precondition(lambda self: self.branches)
    @rule(which=picks)
    def commit(self, which: int) -> None:
        self.commit_branch(self.pick(self.branches, which))

    @precondition(lambda self: self.branches)
    @rule(which=picks)
    def fork(self, which: int) -> None:
        branch = self.pick(self.branches, which)
        self.commit_branch(branch)
        if not branch.tokens:
            self.num_names += 1
            lease = branch.lease.fork(f"branch {self.num_names}")
            self.branches.append(FakeBranch(lease.holder, lease, branch.exact))

    @precondition(lambda self: self.branches)
    @rule(which=picks)
    def finish(self, which: int) -> None:
        branch = self.pick(self.branches, which)
        self.commit_branch(branch)
        self.cancel_branch(branch)

    @precondition(lambda self: self.branches)
    @rule(which=picks)
    def cancel(self, which: int) -> None:
        self.cancel_branch(self.pick(self.branches, which))

    @precondition(lambda self: self.branches)
    @rule(which=picks)
    def retract(self, which: int) -> None:
        """Give up a branch's slots and come back for them through the cache."""
        branch = self.pick(self.branches, which)
        node = branch.lease.node
        prompt = [*self.tree.tokens(node).tolist(), *branch.tokens, 0]
        self.cancel_branch(branch)
        again = self.open_branch(node.namespace, prompt, branch.exact)
        if not self.extend_branch(again, prompt[again.lease.node.end :]):
            self.cancel_branch(again)

    @rule(num_pages=st.integers(1, 12))
    def evict(self, num_pages: int) -> None:
        before, evictable = self.pool.num_free_pages, self.tree.num_evictable_pages
        if self.predicts:
            self.naive_evict(num_pages)
        freed = self.tree.evict(num_pages)
        assert freed == self.pool.num_free_pages - before
        assert freed >= min(num_pages, evictable)
        if self.predicts:
            assert set(self.last_use) == self.cached_keys()
        self.resync()

    @rule()
    def merge(self) -> None:
        before = checks.contents(self.tree)
        self.tree.structure.merge_chains()
        assert not checks.matches_are_kept(before, self.tree)

    @precondition(lambda self: self.tree.num_cached_tokens)
    @rule(which=picks, at=picks)
    def split(self, which: int, at: int) -> None:
        nodes = [node for node in self.tree.nodes() if node.length > 1]
        if nodes:
            before = checks.contents(self.tree)
            node = self.pick(nodes, which)
            self.tree.structure.split(node, 1 + at % (node.length - 1))
            assert not checks.matches_are_kept(before, self.tree)

    @rule(skip=picks)
    def compact(self, skip: int) -> None:
        nodes = list(self.tree.nodes())
        in_flight = {node for i, node in enumerate(nodes) if skip >> (i % 16) & 1}
        slots_before = {node: node.slots for node in in_flight}
        keys_before = self.cached_keys()
        moved = self.compactor.compact(in_flight)
        for node in moved:
            self.is_computed[node.slots] = True
        assert not in_flight & set(moved)
        assert all(node.slots is slots_before[node] for node in in_flight)
        assert self.cached_keys() == keys_before

    @precondition(lambda self: self.tree.cold_pool)
    @rule()
    def quantize_idle(self) -> None:
        self.now += 1
        self.cold.quantize_idle()
        self.resync()

    @precondition(lambda self: self.tree.cold_pool and self.tree.num_evictable_tokens)
    @rule(which=picks, and_then=tokens_of)
    def quantize_and_ask_exactly(self, which: int, and_then: list[int]) -> None:
        """An exact request along a path that is in 8 bits: it misses there, and heals it."""
        idle = [node for node in self.tree.nodes() if not node.num_leases]
        node = self.pick(idle, which)
        self.cold.quantize(node)
        self.start(node.namespace, [*self.tree.tokens(node).tolist(), *and_then], True)

    @rule(which=picks, step=st.sampled_from([None, NEVER, 1, 5, 9]), now=st.integers(0, 9))
    def hint(self, which: int, step: float | None, now: int) -> None:
        nodes = list(self.tree.nodes())
        if nodes:
            self.tree.set_next_use(self.pick(nodes, which), step)
        self.tree.advance(now)

    @precondition(lambda self: self.branches)
    @rule(which=picks)
    def pin(self, which: int) -> None:
        kept = self.pins.pin("program", self.pick(self.branches, which).lease.node)
        assert kept or self.pins.num_pinned_tokens <= self.pins.max_tokens
        assert self.pins.num_pinned_tokens <= self.pins.max_tokens

    @rule()
    def unpin(self) -> None:
        self.pins.release("program")

    @rule(namespace=namespaces)
    def retire(self, namespace: Namespace) -> None:
        """New weights: what nobody leases is gone at once, in this namespace only."""
        others = {key for key in self.last_use if key[0] != namespace}
        self.tree.retire(namespace)
        assert {key for key in self.cached_keys() if key[0] != namespace} == others
        self.tree.retired.discard(namespace)
        self.resync()

    @rule(namespace=namespaces)
    def save_and_load(self, namespace: Namespace) -> None:
        nodes = [node for node in self.tree.nodes() if node.namespace == namespace]
        fingerprint = Fingerprint("w", "t", "r", "a", "float32", 1, 1, HEAD_DIM, namespace)
        path = Path(self.folder.name) / "prefixes"
        saved = save_prefixes(path, self.tree, self.cache, nodes, fingerprint)
        before = self.cached_keys()
        self.tree.clear()
        loaded = load_prefixes(path, self.tree, self.cache, fingerprint)
        self.is_computed[self.pool.owned_slots()] = True
        assert loaded.num_tokens <= saved
        assert self.cached_keys() <= before
        self.last_use = dict.fromkeys(self.cached_keys(), 0)
        for node in self.tree.nodes():
            for key in self.keys_of(node)[node.start : node.end]:
                self.last_use[key] = node.last_use

    # ---- what must hold after each

    @invariant()
    def audit_is_clean(self) -> None:
        private = {branch.name: branch.slots for branch in self.branches}
        found = checks.audit(self.tree, self.pool, private)
        found += checks.only_computed_is_cached(self.tree, self.is_computed)
        found += checks.tables_follow_tree(
            self.tree,
            {it.name: (it.lease, np.concatenate((self.tree.slots(it.lease.node), it.slots)))
             for it in self.branches},
        )  # fmt: skip
        found += checks.commits_fit(
            {it.name: (len(it.tokens), len(it.slots)) for it in self.branches}
        )
        names = [*(branch.name for branch in self.branches), "pin of program"]
        assert not found
        assert not find_leaks(self.tree, self.pool, private, names)

    @invariant()
    def model_agrees(self) -> None:
        assert set(self.last_use) == self.cached_keys()
        for node in self.tree.nodes():
            keys = self.keys_of(node)[node.start : node.end]
            assert {self.last_use[key] for key in keys} == {node.last_use}

    @invariant()
    def numbers_are_those_of_their_prefix(self) -> None:
        free = np.setdiff1d(np.arange(self.pool.num_slots), self.pool.owned_slots())
        self.cache.poison(free)
        self.is_computed[free] = False
        layer = self.cache[0]
        for node in self.tree.nodes():
            keys = self.keys_of(node)[node.start : node.end]
            expected = torch.stack([values_of(*key) for key in keys])[:, None]
            index = torch.from_numpy(node.slots.astype(np.int64))
            if not node.quantized:
                assert torch.equal(layer.k[index], expected)
                assert torch.equal(layer.v[index], -expected)
            else:
                assert layer.k_int8 is not None
                assert layer.k_scale is not None
                stored = layer.k_int8[index].float() * layer.k_scale[index][..., None]
                assert torch.allclose(stored, expected, atol=1 / 127)

    @invariant()
    def a_drawing_can_be_made(self) -> None:
        snapshot = take_snapshot(self.tree)
        assert draw(snapshot).count("\n") >= snapshot.num_nodes


IS_LONG = settings.default is not None and settings.default.max_examples > 1000
TestCache = CacheMachine.TestCase
TestCache.settings = (
    settings()
    if IS_LONG
    else settings(
        max_examples=300,
        stateful_step_count=50,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
)
