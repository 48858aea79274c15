"""What the radix cache costs on one core: match, insert, evict, lease.

    python benchmarks/cache.py

Goals: match and insert at least 5 million tokens a second; at most 60 µs a call of evict with
23,000 leaves. Medians of `--repeats` runs of the whole table, in seconds of this thread's CPU.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import numpy as np

from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.radix_tree import RadixNode, RadixTree

VOCABULARY = 50_000
Row = tuple[str, float, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--page-size", type=int, default=1)
    args = parser.parse_args()
    gc.freeze()
    runs = [table(args.page_size) for _ in range(args.repeats)]
    print(f"page size {args.page_size}, median of {args.repeats}")
    for rows in zip(*runs, strict=True):
        name, _, unit = rows[0]
        median = statistics.median(value for _, value, _ in rows)
        print(f"  {name:<58} {median:>12,.1f} {unit}")


def table(page_size: int) -> list[Row]:
    return [
        *chat_rows(page_size),
        *short_edge_rows(page_size),
        *fan_out_rows(page_size),
        *eviction_rows(page_size),
        *lease_rows(page_size),
    ]


def chat_rows(page_size: int) -> list[Row]:
    """1,000 conversations: 512 shared tokens, then turns of 128."""
    rng = np.random.default_rng(0)
    shared = random_tokens(rng, 512)
    chats = [np.concatenate((shared, random_tokens(rng, 4 * 128))) for _ in range(1000)]
    tree = RadixTree(PagePool(1_048_576 // page_size, page_size))
    seconds = clock(lambda: [grow(tree, chat, turn=128) for chat in chats])
    num_tokens = sum(map(len, chats))
    rows = [
        ("whole turns of 128: match, lease, alloc, insert, release", seconds / 8000 * 1e6, "µs")
    ]
    tree = RadixTree(PagePool(1_048_576 // page_size, page_size))
    turns = [(chat[:512], chat[512:], tree.pool.alloc(1024)) for chat in chats]
    parent = tree.insert(tree.root(""), turns[0][0], turns[0][2][:512]).node
    lease = tree.lease(parent)
    seconds = clock(lambda: [tree.insert(parent, new, slots[512:]) for _, new, slots in turns])
    lease.release()
    rows.append(("insert: 512 new tokens below 512", 512_000 / seconds / 1e6, "M tok/s"))
    tree = RadixTree(PagePool(1_048_576 // page_size, page_size))
    for chat in chats:
        grow(tree, chat, turn=128)
    seconds = clock(lambda: [tree.match("", chat) for chat in chats])
    rows.append(("match: the same chats whole", num_tokens / seconds / 1e6, "M tok/s"))
    return rows


def grow(tree: RadixTree, tokens: np.ndarray, turn: int) -> None:
    """Insert a conversation turn by turn as an engine would: match, lease, insert, release."""
    for end in range(turn, len(tokens) + 1, turn):
        match = tree.match("", tokens[: end - 1])
        with_lease = tree.lease(match.node)
        slots = tree.pool.alloc(end - match.length)
        with_lease.move(tree.insert(match.node, tokens[match.length : end], slots).node)
        with_lease.release()


def short_edge_rows(page_size: int) -> list[Row]:
    """The worst case: a binary tree whose every edge has 8 tokens, depth 12."""
    rng = np.random.default_rng(1)
    paths = rng.integers(0, 2, (4000, 12))
    pieces = random_tokens(rng, 12 * 2 * 8).reshape(12, 2, 8)
    pieces[:, :, 0] = np.arange(24).reshape(12, 2)
    keys = [np.concatenate([pieces[i, bit] for i, bit in enumerate(path)]) for path in paths]
    tree = RadixTree(PagePool(1_048_576 // page_size, page_size))
    for key in keys:
        grow(tree, key, turn=len(key))
    seconds = clock(lambda: [tree.match("", key) for key in keys])
    return [("match: edges of 8 tokens", sum(map(len, keys)) / seconds / 1e6, "M tok/s")]


def fan_out_rows(page_size: int) -> list[Row]:
    """One node with 10 and with 10,000 children."""
    rows = []
    for fan_out in (10, 10_000):
        tree = RadixTree(PagePool(2_097_152 // page_size, page_size))
        rng = np.random.default_rng(2)
        shared = random_tokens(rng, 64)
        keys = [np.concatenate((shared, [i], random_tokens(rng, 31))) for i in range(fan_out)]
        for key in keys:
            grow(tree, key, turn=96)
        probe = keys[:: max(1, fan_out // 10)] * 200
        seconds = clock(lambda: [tree.match("", key) for key in probe])  # noqa: B023
        rows.append((f"match below a fan-out of {fan_out:,}", seconds / len(probe) * 1e6, "µs"))
    return rows


def eviction_rows(page_size: int) -> list[Row]:
    """23,000 leaves of 32 tokens under 23 inner nodes; half of them used again since."""
    rows = []
    for policy in ("lru", "slru", "lookahead"):
        tree, leaves = forest(policy, page_size)
        rng = np.random.default_rng(4)
        for i in rng.permutation(len(leaves))[: len(leaves) // 2]:
            tree.match("", tree.tokens(leaves[i]))
        num_pages = 32 // page_size if page_size <= 32 else 1
        num_calls = 10_000
        seconds = clock(lambda: [tree.evict(num_pages) for _ in range(num_calls)])  # noqa: B023
        name = f"evict({num_pages}), 23,000 leaves, {policy}"
        rows.append((name, seconds / num_calls * 1e6, "µs"))
    tree, _ = forest("lru", page_size)
    seconds = clock(lambda: [tree.evict(1) for _ in range(10_000)])
    rows.append(("evict(1), 23,000 leaves, lru", seconds / 10_000 * 1e6, "µs"))
    return rows


def forest(policy: str, page_size: int) -> tuple[RadixTree, list[RadixNode]]:
    rng = np.random.default_rng(3)
    tree = RadixTree(PagePool(1_048_576 // page_size, page_size), policy=policy)
    leaves = []
    for _ in range(23):
        shared = random_tokens(rng, 64)
        for _ in range(1000):
            key = np.concatenate((shared, random_tokens(rng, 32)))
            grow(tree, key, turn=len(key))
            leaves.append(tree.match("", key).node)
    return tree, leaves


def lease_rows(page_size: int) -> list[Row]:
    """Fork and release on a path of eight nodes, and the first lease of a 1,000-token node."""
    tree = RadixTree(PagePool(65_536 // page_size, page_size))
    key = random_tokens(np.random.default_rng(5), 1000)
    grow(tree, key, turn=125)
    lease = tree.lease(tree.match("", key).node)
    seconds = clock(lambda: [lease.fork().release() for _ in range(10_000)])
    rows = [("fork and release, 8 nodes deep", seconds / 10_000 * 1e6, "µs")]
    lease.release()
    node = tree.match("", key).node
    seconds = clock(lambda: [tree.lease(node).release() for _ in range(1000)])
    rows.append(("lease and release an idle path of 1,000 tokens", seconds / 1000 * 1e6, "µs"))
    pool = tree.pool
    seconds = clock(lambda: [pool.release(pool.alloc(1)) for _ in range(10_000)])
    rows.append(("allocate and release one slot", seconds / 10_000 * 1e6, "µs"))
    return rows


def random_tokens(rng: np.random.Generator, num_tokens: int) -> np.ndarray:
    return rng.integers(100, VOCABULARY, num_tokens).astype(np.int32)


def clock(work: Callable[[], object]) -> float:
    """Seconds that the work takes."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


if __name__ == "__main__":
    main()
