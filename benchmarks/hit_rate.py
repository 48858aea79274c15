"""Hit rate of the cache against an offline optimum, on the workloads of the SGLang paper.

    python benchmarks/hit_rate.py

Runs requests through the real tree, pool, eviction policies and waiting queue; no model. Memory
is 0.25, 0.5 and 1 times the unique tokens of a workload, and at least its longest request. The
hit rate is the share of prompt tokens found in the cache. Columns:

lru, slru    in the order of arrival
ahead        lookahead eviction in the order of arrival, next uses known as a traced program
             knows them
optimum      Belady's choice in the same order: of all that is not in use, the tokens needed
             farthest in the future go. No policy does better in that order
df+lru       LRU, in the depth-first order of the waiting queue
df 8         the same with up to 8 requests running at once (`--running`), each holding its path
             and the room for its output from its admission to its end, a step a token; one that
             does not fit waits
bound        no eviction at all: what any order could reach at best
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from radixlang.runtime.cache.eviction import NEVER
from radixlang.runtime.cache.lease import Lease
from radixlang.runtime.cache.pages.page_pool import PagePool, Slots
from radixlang.runtime.cache.radix_tree import Namespace, RadixTree
from radixlang.runtime.scheduling.waiting_queue import WaitingQueue

Tokens = np.ndarray


@dataclass(slots=True)
class Request:
    """A prompt and what is generated after it; it may start once the requests `after` ended."""

    prompt: Tokens
    output: Tokens
    after: tuple[int, ...] = ()

    @property
    def tokens(self) -> Tokens:
        return np.concatenate((self.prompt, self.output))


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    is_static: bool  # a graph of the program knows every next use
    requests: list[Request]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="name of one workload")
    parser.add_argument("--running", type=int, default=8)
    args = parser.parse_args()
    print(f"{'workload':<25}{'calls':>6}{'unique':>9}{'KV':>7}", end="")
    many = f"df {args.running}"
    for title in ("lru", "slru", "ahead", "optimum", "ahead/opt", "df+lru", many, "bound",
                  "df/bound", f"{many}/b"):  # fmt: skip
        print(f"{title:>10}", end="")
    print()
    for make in MAKERS:
        workload = make(np.random.default_rng(args.seed))
        if args.only in (None, workload.name):
            report(workload, args.running)


def report(workload: Workload, num_running: int) -> None:
    forest = Forest(workload.requests)
    longest = max(len(request.tokens) for request in workload.requests)
    arrival = arrival_order(workload.requests)
    bound = optimum(forest, arrival, forest.num_tokens)
    for share in (0.25, 0.5, 1.0):
        capacity = max(int(share * forest.num_tokens), longest)
        rates = {
            policy: Run(workload, forest, capacity, policy).serve(arrival)
            for policy in ("lru", "slru", "lookahead")
        }
        best = optimum(forest, arrival, capacity)
        depth_first, together = (
            Run(workload, forest, capacity, "lru").serve_depth_first(count)
            for count in (1, num_running)
        )
        name = workload.name + (" (static)" if workload.is_static else "")
        print(f"{name:<25}{len(workload.requests):>6}{forest.num_tokens:>9,}{share:>6}×", end="")
        for value in (
            *rates.values(), best, rates["lookahead"] / best,
            depth_first, together, bound, depth_first / bound, together / bound,
        ):  # fmt: skip
            print(f"{value:>9.1%} ", end="")
        print()


# ---- serving


class Run:
    """One pass of a workload over a fresh cache, one request at a time."""

    def __init__(self, workload: Workload, forest: Forest, capacity: int, policy: str) -> None:
        self.requests = workload.requests
        self.forest = forest
        self.tree = RadixTree(PagePool(capacity), policy=policy)
        self.uses: dict[int, list[int]] = {}
        self.hits = self.total = 0

    def serve(self, order: list[int]) -> float:
        if self.tree.policy.name == "lookahead":
            self.uses = self.forest.uses(order)
        for step, number in enumerate(order):
            self.one(number, step)
        return self.hits / self.total

    def serve_depth_first(self, num_running: int) -> float:
        queue = WaitingQueue("depth_first")
        running: list[tuple[int, int, Lease, Slots]] = []  # (step of its end, number, path, room)
        now = 0
        waiting: Any
        for number in at_once(self.requests):
            queue.push(Waiting(number, self.requests[number].prompt, number))  # type: ignore[arg-type]
        missing = {i: set(request.after) for i, request in enumerate(self.requests)}
        followers = followers_of(self.requests)
        num_arrived = len(self.requests)
        while len(queue) or running:
            while len(running) < num_running and (waiting := queue.pop()) is not None:
                if (begun := self.begin(waiting.number)) is None:
                    queue.push_front(waiting)
                    break
                end = now + len(self.requests[waiting.number].output)
                heapq.heappush(running, (end, waiting.number, *begun))
            now, ended, *held = heapq.heappop(running)
            self.end(ended, *held)
            for number in followers[ended]:
                missing[number].discard(ended)
                if not missing[number]:
                    num_arrived += 1
                    queue.push(Waiting(number, self.requests[number].prompt, num_arrived))  # type: ignore[arg-type]
        return self.hits / self.total

    def begin(self, number: int) -> tuple[Lease, Slots] | None:
        """Match, make room for all of a request, insert its prompt; None where it does not fit."""
        tree, request = self.tree, self.requests[number]
        match = tree.match("", request.prompt[:-1])
        lease = tree.lease(match.node)
        rest = request.prompt[match.length :]
        num_needed = len(rest) + len(request.output)
        if num_needed > tree.pool.num_free_pages + tree.num_evictable_pages:
            lease.release()
            return None
        self.hits += match.length
        self.total += len(request.prompt)
        tree.evict(num_needed - tree.pool.num_free_pages)
        lease.move(tree.insert(match.node, rest, tree.pool.alloc(len(rest))).node)
        return lease, tree.pool.alloc(len(request.output))

    def end(self, number: int, lease: Lease, slots: Slots) -> None:
        """Insert what was generated, and let go."""
        lease.move(self.tree.insert(lease.node, self.requests[number].output, slots).node)
        lease.release()

    def one(self, number: int, step: int) -> None:
        """Match, make room, insert: a request as the engine serves it."""
        tree, request = self.tree, self.requests[number]
        match = tree.match("", request.prompt[:-1])
        self.hits += match.length
        self.total += len(request.prompt)
        lease = tree.lease(match.node)
        rest = request.tokens[match.length :]
        tree.evict(len(rest) - tree.pool.num_free_pages)
        lease.move(tree.insert(match.node, rest, tree.pool.alloc(len(rest))).node)
        if self.uses:
            self.hint(number, step)
        lease.release()

    def hint(self, number: int, step: int) -> None:
        """Tell the nodes of the path when their tokens are needed next."""
        self.tree.advance(step + 1)
        end = 0
        for edge in self.forest.paths[number]:
            end += self.forest.lengths[edge]
            node = self.tree.match("", self.requests[number].tokens[:end]).node
            uses = self.uses[edge]
            while uses and uses[0] <= step:
                uses.pop(0)
            self.tree.set_next_use(node, uses[0] if uses else NEVER)


@dataclass(slots=True, eq=False)
class Waiting:
    """What the waiting queue needs to see of a sequence."""

    number: int
    tokens: Tokens
    arrival: int
    namespace: Namespace = field(default_factory=Namespace)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


def at_once(requests: list[Request]) -> list[int]:
    """Requests that wait for nobody."""
    return [i for i, request in enumerate(requests) if not request.after]


def followers_of(requests: list[Request]) -> dict[int, list[int]]:
    followers: dict[int, list[int]] = {i: [] for i in range(len(requests))}
    for i, request in enumerate(requests):
        for other in request.after:
            followers[other].append(i)
    return followers


def arrival_order(requests: list[Request]) -> list[int]:
    """First come, first served: a request arrives when the last it waits for has ended."""
    missing = {i: len(request.after) for i, request in enumerate(requests)}
    followers = followers_of(requests)
    order = at_once(requests)
    for number in order:
        for other in followers[number]:
            missing[other] -= 1
            if not missing[other]:
                order.append(other)
    return order


# ---- the offline optimum


class Forest:
    """All requests as a tree whose edges every request takes whole or not at all."""

    def __init__(self, requests: list[Request]) -> None:
        tree = RadixTree(PagePool(sum(len(request.tokens) for request in requests)))
        for request in requests:
            for tokens in (request.tokens, request.prompt[:-1], request.prompt):
                match = tree.match("", tokens)
                rest = tokens[match.length :]
                if len(rest):
                    tree.insert(match.node, rest, tree.pool.alloc(len(rest)))
        numbers = {node: i for i, node in enumerate(tree.nodes())}
        self.lengths = {i: node.length for node, i in numbers.items()}
        self.depths = {i: node.start for node, i in numbers.items()}
        self.num_tokens = tree.num_cached_tokens
        self.prompts = [len(request.prompt) for request in requests]
        self.paths = [
            [numbers[node] for node in tree.path(tree.match("", request.tokens).node)]
            for request in requests
        ]

    def uses(self, order: list[int]) -> dict[int, list[int]]:
        """By edge: the steps of the order at which it is needed."""
        found: dict[int, list[int]] = {edge: [] for edge in self.lengths}
        for step, number in enumerate(order):
            for edge in self.paths[number]:
                found[edge].append(step)
        return found


def optimum(forest: Forest, order: list[int], capacity: int) -> float:
    """Hit rate of Belady's choice: the tokens needed farthest in the future go first."""
    uses = {edge: steps[::-1] for edge, steps in forest.uses(order).items()}
    resident: dict[int, int] = {}
    queue: list[tuple[float, int, int]] = []  # (-next use, -depth, edge), some out of date
    next_use: dict[int, float] = {}
    used = hits = total = 0
    for number in order:
        path = forest.paths[number]
        total += forest.prompts[number]
        hits += min(contiguous(path, resident, forest), forest.prompts[number] - 1)
        for edge in path:
            used += forest.lengths[edge] - resident.get(edge, 0)
            resident[edge] = forest.lengths[edge]
            uses[edge].pop()
            next_use[edge] = uses[edge][-1] if uses[edge] else NEVER
            heapq.heappush(queue, (-next_use[edge], -forest.depths[edge], edge))
        busy = set(path)
        kept = []
        while used > capacity:
            entry = heapq.heappop(queue)
            edge = entry[2]
            if -entry[0] != next_use[edge] or not resident.get(edge):
                continue
            if edge in busy:
                kept.append(entry)
                continue
            cut = min(resident[edge], used - capacity)
            resident[edge] -= cut
            used -= cut
            if resident[edge]:
                kept.append(entry)
        for entry in kept:
            heapq.heappush(queue, entry)
    return hits / total


def contiguous(path: list[int], resident: dict[int, int], forest: Forest) -> int:
    """Tokens of a path that are in memory without a gap from its start."""
    length = 0
    for edge in path:
        length += resident.get(edge, 0)
        if resident.get(edge, 0) < forest.lengths[edge]:
            break
    return length


# ---- workloads: sizes of the paper's programs, random tokens


class Text:
    """Random tokens that nobody else has."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def __call__(self, low: int, high: int | None = None) -> Tokens:
        length = low if high is None else int(self.rng.integers(low, high + 1))
        return self.rng.integers(0, 2**31 - 1, length).astype(np.int32)


def few_shot(rng: np.random.Generator) -> Workload:
    """MMLU, 5-shot: 30 subjects with examples of their own, questions mixed, one token out."""
    text = Text(rng)
    shots = [text(500, 900) for _ in range(30)]
    asked = rng.permutation(np.repeat(np.arange(30), 25))
    requests = [Request(np.concatenate((shots[i], text(60, 150))), text(1)) for i in asked]
    return Workload("few-shot", True, requests)


def tree_of_thought(rng: np.random.Generator) -> Workload:
    """2 + 4 + 8 + 16 calls a question, each thought below its parent's, 40 questions at once."""
    text = Text(rng)
    system = text(300)
    requests: list[Request] = []
    for _ in range(40):
        level = [(np.concatenate((system, text(80, 200))), -1)]
        for _ in range(4):
            level = [child for parent in level for child in thoughts(text, requests, *parent)]
    return Workload("tree of thought", True, requests)


def thoughts(
    text: Text, requests: list[Request], prompt: Tokens, parent: int
) -> Iterator[tuple[Tokens, int]]:
    for _ in range(2):
        asked = np.concatenate((prompt, text(12)))
        requests.append(Request(asked, text(40, 80), (parent,) if parent >= 0 else ()))
        yield requests[-1].tokens, len(requests) - 1


def judge(rng: np.random.Generator) -> Workload:
    """80 essays, each judged in six dimensions and then summed up."""
    text = Text(rng)
    system, dimensions = text(150), [text(30) for _ in range(6)]
    requests: list[Request] = []
    for _ in range(80):
        essay = np.concatenate((system, text(500, 1000)))
        first = len(requests)
        requests += [
            Request(np.concatenate((essay, dimension)), text(60, 120)) for dimension in dimensions
        ]
        verdicts = [request.output for request in requests[first:]]
        summary = np.concatenate((essay, *verdicts, text(20)))
        requests.append(Request(summary, text(100), tuple(range(first, first + 6))))
    return Workload("judge", True, requests)


def multi_turn(rng: np.random.Generator) -> Workload:
    """96 conversations of 4 to 12 turns below one system prompt, all going on at once."""
    text = Text(rng)
    system = text(120)
    requests: list[Request] = []
    for _ in range(96):
        prompt, last = system, -1
        for _ in range(int(rng.integers(4, 13))):
            prompt = np.concatenate((prompt, text(64, 256)))
            requests.append(Request(prompt, text(64, 384), (last,) if last >= 0 else ()))
            prompt, last = requests[-1].tokens, len(requests) - 1
    return Workload("multi-turn", False, requests)


def rag(rng: np.random.Generator) -> Workload:
    """600 questions over 200 passages of Zipf popularity, the three best of each, best first."""
    text = Text(rng)
    system, passages = text(100), [text(200, 400) for _ in range(200)]
    weight = 1 / np.arange(1, 201)
    requests = []
    for _ in range(600):
        ranked = np.sort(rng.choice(200, 3, replace=False, p=weight / weight.sum()))
        context = [passages[i] for i in ranked]
        requests.append(Request(np.concatenate((system, *context, text(20, 60))), text(60, 150)))
    return Workload("rag", False, requests)


def agents(rng: np.random.Generator) -> Workload:
    """64 ReAct agents of four kinds, 5 to 15 steps of thought and observation each."""
    text = Text(rng)
    kinds = [text(800, 1200) for _ in range(4)]
    requests: list[Request] = []
    for agent in range(64):
        prompt, last = np.concatenate((kinds[agent % 4], text(30, 80))), -1
        for _ in range(int(rng.integers(5, 16))):
            requests.append(Request(prompt, text(40, 100), (last,) if last >= 0 else ()))
            prompt, last = np.concatenate((requests[-1].tokens, text(50, 250))), len(requests) - 1
    return Workload("agents", False, requests)


MAKERS: tuple[Callable[[np.random.Generator], Workload], ...] = (
    few_shot, tree_of_thought, judge, multi_turn, rag, agents,
)  # fmt: skip


if __name__ == "__main__":
    main()
