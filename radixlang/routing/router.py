"""The router: a request goes where it is expected to end first.

What a worker has to do is counted in tokens of a prompt: those of the request that it does not
hold, after all that it has been sent and has not finished. So a long shared prefix attracts its
requests until the queue before it costs more than computing the prefix once more (compare Preble,
Srivatsa et al., 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

from radixlang.routing.prefix_summary import TOKEN_BYTES, PrefixSummary

_MEAN_WEIGHT = 0.05  # of the newest request, in the running mean of generated tokens


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of work, in tokens of a prompt: how many could be computed in the same time.

    Attributes:
        generated: one generated token, in a batch of usual size.
        copied: a token that another worker holds already, beyond computing it: a second copy takes
            the place of something else.
        copy: the most that a second copy costs so.
    """

    generated: float = 4.0
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
        load: tokens by which it is busier until `finished`.
    """

    worker: int
    num_held: int
    load: float


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
        most = max(held[each] for each in self.alive)
        # of those that hold as much, only the least busy may be chosen
        idlest: dict[int, tuple[float, int, int]] = {}
        for each in self.alive:
            busyness = self.loads[each], self.summary.num_tokens[each], each
            if held[each] not in idlest or busyness < idlest[held[each]]:
                idlest[held[each]] = busyness
        costs = {each: self._to_compute(num_tokens, each, most) for each in idlest}
        here = min(idlest, key=lambda each: (idlest[each][0] + costs[each], idlest[each]))
        worker = idlest[here][-1]
        load = costs[here] + self.costs.generated * self._expected(request.max_new)
        self.loads[worker] += load
        self.summary.insert(worker, request.root, request.path)
        return Route(worker, here, load)

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

    def _to_compute(self, num_tokens: int, held: int, elsewhere: int) -> float:
        """The cost of having a whole prompt where `held` tokens of it are."""
        copy = min(self.costs.copy, self.costs.copied * (elsewhere - held))
        return num_tokens - held + copy

    def _expected(self, max_new: int) -> float:
        return min(max_new, self._mean_new) if self._num_finished else float(max_new)
