"""KV memory of the RadixAttention article's cases: unshared, shared, and shared with 8-bit nodes.

    python benchmarks/memory.py
    python benchmarks/memory.py --layers 30 --kv-heads 3 --head-dim 64 --kv-bytes 4

Tokens run through the real tree and pools; bytes follow from the model's shape, by default
LLaMA-7B in 16 bits. `saved` is against unshared. With 8 bits, what no branch is using is
quantised (one byte a number, and a 4-byte scale for each token and head), as after the idle time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.radix_tree import RadixTree

Tokens = np.ndarray
CAPACITY = 4_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences alive at once (running or cached), and how many of the last are running."""

    name: str
    sequences: list[Tokens]
    num_running: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=32)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--kv-bytes", type=int, default=2, help="bytes a number")
    parser.add_argument("--page-size", type=int, default=1)
    args = parser.parse_args()
    heads = 2 * args.layers * args.kv_heads
    exact, cold = heads * args.head_dim * args.kv_bytes, heads * (args.head_dim + 4)
    print(f"{exact:,} bytes a token, {cold:,} in 8 bits; page size {args.page_size}")
    print(f"{'case':<44}{'unshared':>12}{'shared':>12}{'saved':>8}{'8-bit too':>12}{'saved':>8}")
    for case in cases(np.random.default_rng(0)):
        report(case, exact, cold, args.page_size)


def report(case: Case, exact_bytes: int, cold_bytes: int, page_size: int) -> None:
    tree, leases = fill(case, page_size)
    unshared = sum(-(-len(tokens) // page_size) for tokens in case.sequences) * page_size
    shared = (tree.pool.num_pages - tree.pool.num_free_pages) * page_size
    idle = tree.num_evictable_tokens
    mixed = (shared - idle) * exact_bytes + idle * cold_bytes
    for lease in leases:
        lease.release()
    sizes = unshared * exact_bytes, shared * exact_bytes, mixed
    print(f"{case.name:<44}{gib(sizes[0]):>12}{gib(sizes[1]):>12}", end="")
    print(f"{1 - sizes[1] / sizes[0]:>8.1%}{gib(sizes[2]):>12}{1 - sizes[2] / sizes[0]:>8.1%}")


def fill(case: Case, page_size: int) -> tuple[RadixTree, list[Lease]]:
    """Serve every sequence; the last num_running stay leased."""
    tree = RadixTree(PagePool(CAPACITY // page_size, page_size))
    leases = []
    for i, tokens in enumerate(case.sequences):
        match = tree.match("", tokens[:-1])
        lease = tree.lease(match.node)
        after = int(match.node.slots[-1]) if match.length else None
        slots = tree.pool.alloc(len(tokens) - match.length, after_slot=after)
        lease.move(tree.insert(match.node, tokens[match.length :], slots).node)
        if len(case.sequences) - i <= case.num_running:
            leases.append(lease)
        else:
            lease.release()
    return tree, leases


def cases(rng: np.random.Generator) -> Iterator[Case]:
    def text(num_tokens: int) -> Tokens:
        return rng.integers(0, 2**31 - 1, num_tokens).astype(np.int32)

    system = text(1024)
    yield Case(
        "system prompt 1,024, 64 requests of 256",
        [np.concatenate((system, text(256))) for _ in range(64)],
        num_running=16,
    )
    templates = [text(768) for _ in range(8)]
    yield Case(
        "8 templates of 768, 25 fillings of 96 each",
        [np.concatenate((template, text(96))) for template in templates for _ in range(25)],
        num_running=25,
    )
    dialogue = text(32_768)
    yield Case(
        "dialogue to 32K in 16 turns, every turn kept",
        [dialogue[:end] for end in range(2048, 32_769, 2048)],
        num_running=1,
    )
    yield Case(
        "the same with 2 drafts of 256 at every turn",
        [
            np.concatenate((dialogue[:end], text(256)))
            for end in range(2048, 32_769, 2048)
            for _ in range(2)
        ],
        num_running=2,
    )
    prefix = text(4096)
    yield Case(
        "64 branches of 256 on 4,096",
        [np.concatenate((prefix, text(256))) for _ in range(64)],
        num_running=64,
    )
    yield Case(
        "nothing shared: 64 requests of 1,024",
        [text(1024) for _ in range(64)],
        num_running=16,
    )


def gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"


if __name__ == "__main__":
    main()
