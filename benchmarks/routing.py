"""Routing simulated: the router of `radixlang.Workers` beside three other rules, without a model.

    python benchmarks/routing.py [--workers 64] [--capacity 20000] [--size 1.0]

Each worker has the real radix tree over a pool of `--capacity` tokens with LRU eviction, and serves
its requests one after another: a prompt's token that is not cached costs 1, a generated one
`--generated`. A session's next request begins when the one before it has ended. Rules:

ours         `radixlang.routing.Router`, told by the trees what they insert and evict
round robin  the next worker
least loaded the worker with the least work left
characters   as SGLang's router: the worker whose approximate tree matches the most of a prompt's
             text if that is more than half of it, else the one with the smallest tree; the shortest
             queue if queues differ by 64 requests and by half (Zheng et al. 2024, and its README)

Workloads follow the SGLang and Preble papers: few-shot prompts with popular and rare headers, trees
of thought, chats, and agents that share a description of tools. Columns: share of prompt tokens
found cached; the busiest worker's work over the mean; the time until all has ended over that of the
best rule; microseconds of the processor for a decision.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from radixlang.routing import Costs, PrefixSummary, Route, RoutedRequest, Router
from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.radix_tree import RadixTree
from radixlang.runtime.cache.tree_changes import TreeChanges

Token = int


@dataclass(frozen=True)
class Ask:
    """A request: its prompt, what it generates, and the requests that begin once it has ended."""

    prompt: list[Token]
    generated: list[Token]
    then: Sequence[Ask] = ()

    @property
    def path(self) -> bytes:
        """The prompt as the router takes it."""
        return array("i", self.prompt).tobytes()


# ---- workloads


class Texts:
    """Token sequences that occur once, and shared ones by name."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._shared: dict[str, list[Token]] = {}

    def new(self, length: int) -> list[Token]:
        """Tokens of half to one and a half times the length."""
        num = self.random.randint(length // 2, length * 3 // 2)
        return [self.random.randrange(1 << 30) for _ in range(num)]

    def shared(self, name: str, length: int) -> list[Token]:
        """The same tokens for a name."""
        if name not in self._shared:
            self._shared[name] = self.new(length)
        return self._shared[name]


def few_shot(texts: Texts, size: int) -> list[Ask]:
    """Questions under headers of about 900 tokens, some of which are far more popular."""
    weights = [1 / (rank + 1) for rank in range(200)]
    ranks = texts.random.choices(range(200), weights, k=size)
    return [Ask(texts.shared(f"header {r}", 900) + texts.new(60), texts.new(16)) for r in ranks]


def tree_of_thought(texts: Texts, size: int) -> list[Ask]:
    """Problems whose thoughts branch by 4 at three depths."""

    def thought(prompt: list[Token], depth: int) -> Ask:
        prompt, generated = prompt + texts.new(20), texts.new(80)
        below = [] if depth == 3 else [thought(prompt + generated, depth + 1) for _ in range(4)]
        return Ask(prompt, generated, below)

    header = texts.shared("instructions", 400)
    return [thought(header + texts.new(200), 0) for _ in range(max(1, size // 85))]


def chat(texts: Texts, size: int) -> list[Ask]:
    """Conversations of eight turns under one system prompt."""

    def turn(prompt: list[Token], left: int) -> Ask:
        prompt, generated = prompt + texts.new(60), texts.new(120)
        return Ask(prompt, generated, [turn(prompt + generated, left - 1)] if left > 1 else [])

    return [turn(texts.shared("system", 300), 8) for _ in range(max(1, size // 8))]


def agents(texts: Texts, size: int) -> list[Ask]:
    """Agents of 12 kinds, each with tools of about 1,500 tokens; ten steps with observations."""

    def step(prompt: list[Token], left: int) -> Ask:
        prompt, generated = prompt + texts.new(150), texts.new(40)
        return Ask(prompt, generated, [step(prompt + generated, left - 1)] if left > 1 else [])

    kinds = [texts.shared(f"tools {k}", 1500) for k in range(12)]
    return [step(kinds[i % 12], 10) for i in range(max(1, size // 10))]


WORKLOADS: dict[str, Callable[[Texts, int], list[Ask]]] = {
    "few-shot": few_shot, "tree of thought": tree_of_thought, "chat": chat, "agents": agents,
}  # fmt: skip


# ---- rules


class Rule(Protocol):
    """Chooses workers."""

    def choose(self, ask: Ask) -> int:
        """The worker of a request that begins now."""
        ...

    def ended(self, ask: Ask, worker: int) -> None:
        """A request has ended there."""
        ...

    def changed(self, worker: int, changes: TreeChanges) -> None:
        """A worker's tree has changed."""
        ...


class Ours:
    """The router of Workers."""

    def __init__(self, num_workers: int, generated: float) -> None:
        self.router = Router(num_workers, Costs(generated=generated))
        self._routes: dict[int, Route] = {}

    def choose(self, ask: Ask) -> int:
        route = self.router.route(RoutedRequest("", ask.path, len(ask.generated)))
        assert route is not None
        self._routes[id(ask)] = route
        return route.worker

    def ended(self, ask: Ask, worker: int) -> None:
        self.router.finished(self._routes.pop(id(ask)), len(ask.generated))

    def changed(self, worker: int, changes: TreeChanges) -> None:
        for each in changes.take():
            if each.num_kept is None:
                self.router.inserted(worker, each.namespace, each.path)
            else:
                self.router.evicted(worker, each.namespace, each.path, each.num_kept)


class Counting:
    """What the other rules count: requests and tokens that have not ended, by worker."""

    def __init__(self, num_workers: int, generated: float) -> None:
        self.queues = [0] * num_workers
        self.work = [0.0] * num_workers
        self._generated = generated

    def begin(self, ask: Ask, worker: int) -> int:
        """Note that a request goes to a worker."""
        self.queues[worker] += 1
        self.work[worker] += self._cost(ask)
        return worker

    def ended(self, ask: Ask, worker: int) -> None:
        self.queues[worker] -= 1
        self.work[worker] -= self._cost(ask)

    def changed(self, worker: int, changes: TreeChanges) -> None:
        changes.take()

    def _cost(self, ask: Ask) -> float:
        return len(ask.prompt) + self._generated * len(ask.generated)


class RoundRobin(Counting):
    """The next worker."""

    def __init__(self, num_workers: int, generated: float) -> None:
        super().__init__(num_workers, generated)
        self._next = itertools.cycle(range(num_workers))

    def choose(self, ask: Ask) -> int:
        return self.begin(ask, next(self._next))


class LeastLoaded(Counting):
    """The worker with the least work left."""

    def choose(self, ask: Ask) -> int:
        return self.begin(ask, min(range(len(self.work)), key=self.work.__getitem__))


class Characters(Counting):
    """The longest match of text, above half of it, unless queues differ much."""

    def __init__(self, num_workers: int, generated: float) -> None:
        super().__init__(num_workers, generated)
        self._texts = PrefixSummary(num_workers)  # of what was sent: nothing tells of evictions

    def choose(self, ask: Ask) -> int:
        most, least = max(self.queues), min(self.queues)
        held = self._texts.held("", ask.path)
        best = max(range(len(held)), key=held.__getitem__)
        if most - least > 64 and most > 1.5 * least:
            worker = self.queues.index(least)
        elif held[best] > 0.5 * len(ask.prompt):
            worker = best
        else:
            worker = min(range(len(held)), key=self._texts.num_tokens.__getitem__)
        self._texts.insert(worker, "", ask.path)
        return self.begin(ask, worker)


RULES: dict[str, Callable[[int, float], Rule]] = {
    "ours": Ours, "round robin": RoundRobin, "least loaded": LeastLoaded, "characters": Characters,
}  # fmt: skip


# ---- the simulation


class SimulatedWorker:
    """A tree over a pool, and the time at which all that was sent has ended."""

    def __init__(self, capacity: int) -> None:
        self._pool = PagePool(capacity)
        self._tree = RadixTree(self._pool)
        self.changes = self._tree.changes = TreeChanges()
        self.free_at = self.work = 0.0
        self.num_prompt = self.num_cached = 0

    def serve(self, ask: Ask, now: float, generated: float) -> float:
        """Run a request after those before it; returns when it has ended."""
        num_cached = self._hold(np.array(ask.prompt + ask.generated, np.int64), len(ask.prompt))
        self.num_prompt += len(ask.prompt)
        self.num_cached += num_cached
        cost = len(ask.prompt) - num_cached + generated * len(ask.generated)
        self.work += cost
        self.free_at = max(self.free_at, now) + cost
        return self.free_at

    def _hold(self, tokens: np.ndarray, num_prompt: int) -> int:
        """Cache tokens; returns how many of the prompt were."""
        found = self._tree.match("", tokens)
        lease = self._tree.lease(found.node)
        missing = len(tokens) - found.length
        if missing:
            self._tree.evict(max(0, missing - self._pool.num_free_pages))
            slots = self._pool.alloc(missing)
            self._tree.insert(found.node, tokens[found.length :], slots)
        lease.release()
        return min(found.length, num_prompt - 1)


@dataclass
class Outcome:
    """What a rule comes to on a workload."""

    hit_rate: float
    imbalance: float  # the busiest worker's work over the mean
    makespan: float
    decision_us: float


@dataclass
class Simulation:
    """Workers, and requests in the order in which they begin."""

    rule: Rule
    workers: list[SimulatedWorker]
    generated: float
    order: Iterator[int] = field(default_factory=itertools.count)

    def run(self, asks: Sequence[Ask]) -> Outcome:
        """Run all requests, with those that follow them."""
        events: list[tuple[float, int, Ask, int]] = [(0.0, next(self.order), ask, -1)
                                                     for ask in asks]  # fmt: skip
        heapq.heapify(events)
        spent_s, num_asks, now = 0.0, 0, 0.0
        while events:
            now, _, ask, worker = heapq.heappop(events)
            if worker >= 0:
                self.rule.ended(ask, worker)
                for each in ask.then:
                    heapq.heappush(events, (now, next(self.order), each, -1))
                continue
            begun_s = time.thread_time()
            worker = self.rule.choose(ask)
            spent_s += time.thread_time() - begun_s
            num_asks += 1
            end = self.workers[worker].serve(ask, now, self.generated)
            self.rule.changed(worker, self.workers[worker].changes)
            heapq.heappush(events, (end, next(self.order), ask, worker))
        work = [each.work for each in self.workers]
        cached = sum(each.num_cached for each in self.workers)
        return Outcome(
            cached / sum(each.num_prompt for each in self.workers),
            max(work) * len(work) / sum(work), now, spent_s / num_asks * 1e6,
        )  # fmt: skip


def simulate(
    workload: str, rule: str, num_workers: int, capacity: int, size: int, generated: float = 4.0
) -> Outcome:
    """A rule on a workload, the same for each rule."""
    asks = WORKLOADS[workload](Texts(seed=1), size)
    workers = [SimulatedWorker(capacity) for _ in range(num_workers)]
    return Simulation(RULES[rule](num_workers, generated), workers, generated).run(asks)


def decision_us(num_workers: int, num_nodes: int, num_asks: int = 1000) -> float:
    """Microseconds of the processor for a decision over summaries of so many nodes."""
    texts, router = Texts(seed=2), Router(num_workers)

    def one() -> RoutedRequest:
        header = texts.shared(f"header {texts.random.randrange(50)}", 500)
        return RoutedRequest("", array("i", header + texts.new(300)).tobytes(), 64)

    def decide(request: RoutedRequest) -> None:
        route = router.route(request)
        assert route is not None
        router.finished(route, 16)

    while router.summary.num_nodes < num_nodes:
        decide(one())
    asks = [one() for _ in range(num_asks)]
    begun_s = time.thread_time()
    for each in asks:
        decide(each)
    return (time.thread_time() - begun_s) / num_asks * 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Routing rules, simulated.")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--capacity", type=int, default=20_000, help="tokens a worker can cache")
    parser.add_argument("--generated", type=float, default=4.0, help="cost of a generated token")
    parser.add_argument("--size", type=float, default=1.0, help="1.0: about 60 requests a worker")
    options = parser.parse_args(arguments)
    for num_workers in (2, options.workers):
        spent = decision_us(num_workers, 10_000)
        print(f"a decision over 10,000 nodes of {num_workers} workers: {spent:.0f} us")
    size = int(options.size * 60 * options.workers)
    print(f"{'workload':<16} {'rule':<13} {'hits':>6} {'balance':>8} {'makespan':>9} {'us':>6}")
    for workload in WORKLOADS:
        found = {
            rule: simulate(workload, rule, options.workers, options.capacity, size,
                           options.generated)
            for rule in RULES
        }  # fmt: skip
        best = min(each.makespan for each in found.values())
        for rule, each in found.items():
            print(f"{workload:<16} {rule:<13} {each.hit_rate:>6.1%} {each.imbalance:>8.2f} "
                  f"{each.makespan / best:>8.2f}x {each.decision_us:>6.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
