"""The router: a request goes where it is expected to end first.

What a worker has to do is counted in tokens of a prompt: those of the request that it does not
hold, or what it costs to fetch their keys and values from another worker, after all that it has
been sent and has not finished. So a long shared prefix attracts its requests until the queue before
it costs more than computing, or fetching, the prefix once more (compare Preble, Srivatsa et al.,
2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from radixlang.routing.prefix_summary import TOKEN_BYTES, PrefixSummary

_MEAN_WEIGHT = 0.05  # of the newest request, in the running mean of generated tokens


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of work, in tokens of a prompt: how many could be computed in the same time.

    Attributes:
        generated: one generated token, in a batch of usual size.
        moved: keys and values of one token, from one worker to another.
        move: one transfer, however small.
        copied: a token that another worker holds already, beyond computing or moving it: a second
            copy takes the place of something else.
        copy: the most that a second copy costs so.
    """

    generated: float = 4.0
    moved: float = 0.0
    move: float = math.inf  # until it has been measured
    copied: float = 3.0
    copy: float = 256.0


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What the router needs to know of a request.

    Attributes:
        root: name of what it shares nothing with others of: its namespace.
        path: its prompt's token ids, int32, as bytes.
        max_new: most tokens that it may generate.
    """

    root: str
    path: bytes
    max_new: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A decision.

    Attributes:
        worker: who runs the request.
        num_held: how many of the prompt's first tokens it holds.
        source: a worker whose keys and values of the tokens up to `num_fetched` are to be fetched
            first; None if the worker computes what it does not hold.
        load: tokens by which it is busier until `finished`.
    """

    worker: int
    num_held: int
    source: int | None = None
    num_fetched: int = 0
    load: float = 0.0


class Router:
    """Chooses workers, and keeps what each holds and has to do. One thread owns it."""

    def __init__(self, num_workers: int, costs: Costs | None = None) -> None:
        self.summary = PrefixSummary(num_workers)
        self.costs = costs or Costs()
        self.loads = [0.0] * num_workers
        self.alive = set(range(num_workers))
        self._mean_new = 0.0
        self._num_finished = 0

    def route(self, request: RoutedRequest) -> Route | None:
        """Choose a worker, which is taken to hold the prompt from here on; None if none is left."""
        if not self.alive:
            return None
        num_tokens = len(request.path) // TOKEN_BYTES
        held = self.summary.held(request.root, request.path)
        idlest = min(self.alive, key=self._busyness)
        holders = [each for each in self.alive if held[each]]
        most = max(holders, key=held.__getitem__, default=idlest)
        costs = {each: self._to_get(num_tokens, held[each], held[most])
                 for each in (*holders, idlest)}  # fmt: skip
        ends = {each: (self.loads[each] + cost, *self._busyness(each))
                for each, cost in costs.items()}  # fmt: skip
        worker = min(ends, key=ends.__getitem__)
        fetches = self._moves(held[worker], held[most])
        load = costs[worker] + self.costs.generated * self._expected(request.max_new)
        self.loads[worker] += load
        self.summary.insert(worker, request.root, request.path)
        source, num_fetched = (most, held[most]) if fetches else (None, 0)
        return Route(worker, held[worker], source, num_fetched, load)

    def finished(self, route: Route, num_new: int | None = None) -> None:
        """Note that a request has ended, with so many generated tokens if it generates."""
        self.loads[route.worker] = max(0.0, self.loads[route.worker] - route.load)
        if num_new is not None:
            self._num_finished += 1
            weight = max(_MEAN_WEIGHT, 1 / self._num_finished)
            self._mean_new += weight * (num_new - self._mean_new)

    def inserted(self, worker: int, root: str, path: bytes) -> None:
        """A worker's tree holds a path."""
        if worker in self.alive:
            self.summary.insert(worker, root, path)

    def evicted(self, worker: int, root: str, path: bytes, num_kept: int) -> None:
        """A worker's tree holds no more of a path than its first tokens."""
        self.summary.remove(worker, root, path, num_kept)

    def lost(self, worker: int) -> None:
        """A worker is gone, with all that it held."""
        self.alive.discard(worker)
        self.loads[worker] = 0.0
        self.summary.forget(worker)

    def _busyness(self, worker: int) -> tuple[float, int, int]:
        return self.loads[worker], self.summary.num_tokens[worker], worker

    def _to_get(self, num_tokens: int, held: int, elsewhere: int) -> float:
        """The least cost of having a whole prompt, with `held` tokens of it here."""
        missing = max(0, elsewhere - held)
        copy = min(self.costs.copy, self.costs.copied * missing)
        got = self._to_move(missing) if self._moves(held, elsewhere) else missing
        return copy + got + num_tokens - held - missing

    def _moves(self, held: int, elsewhere: int) -> bool:
        """Whether fetching what another worker holds beyond `held` costs less than computing it."""
        return elsewhere > held and self._to_move(elsewhere - held) < elsewhere - held

    def _to_move(self, num_tokens: int) -> float:
        return self.costs.move + self.costs.moved * num_tokens

    def _expected(self, max_new: int) -> float:
        return min(max_new, self._mean_new) if self._num_finished else float(max_new)
