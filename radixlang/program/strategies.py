"""Strategies written in the language itself: sampling, voting, beams, retries.

Each takes a state and what to append (an expression, or a function of the branch), works on
branches that share the state's prefix, and leaves the state where the winner ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

from radixlang.errors import ParameterError, ProgramError
from radixlang.state.expressions.items import Appendable
from radixlang.state.state import State

Step: TypeAlias = "Appendable | Callable[[State], object]"  # a function appends to its branch
StateScore: TypeAlias = Callable[[State], float]


def mean_logprob(name: str) -> StateScore:
    """A scorer: mean log-probability of a generation; it must ask for `logprobs=True`.

    A generation without a token has the score -inf: it is chosen only if all are empty.
    """

    def score(state: State) -> float:
        logprobs = state.completion(name).logprobs
        if logprobs is None:
            raise ParameterError(f"gen({name!r}) needs logprobs=True to be scored by them")
        if not logprobs:
            return float("-inf")
        return sum(entry.logprob for entry in logprobs) / len(logprobs)

    return score


def best_of(state: State, n: int, step: Step, score: StateScore) -> State:
    """Take n samples of a step and continue from the one with the highest score."""
    group = state.fork(n)
    for branch in group:
        take_step(branch, step)
    scores = [score(branch) for branch in group]
    return state.adopt(group, scores.index(max(scores)))


def majority(
    state: State, n: int, step: Step, name: str, key: Callable[[Any], Hashable] | None = None
) -> Any:  # of the type of the answers
    """Take n samples, continue from the first with the most frequent answer, and return it.

    Args:
        name: the variable that votes.
        key: answers with equal keys count as the same.
    """
    group = state.fork(n)
    for branch in group:
        take_step(branch, step)
    answers = group[name]
    keys = [key(answer) if key else answer for answer in answers]
    ((winner, _),) = Counter(keys).most_common(1)
    index = keys.index(winner)
    state.adopt(group, index)
    return answers[index]


def beam(
    state: State, step: Step, score: StateScore, *, width: int, branching: int, depth: int
) -> State:
    """Beam search over branches: each round extends every beam `branching` ways and keeps the
    best `width`. Other beams are cancelled, which frees their KV at once.

    `score` may use everything on the branch; a name bound in every round has its latest value.
    """
    if width < 1 or branching < 1 or depth < 1:
        raise ParameterError(
            "beam needs width, branching and depth of at least 1, "
            f"got {width}, {branching}, {depth}"
        )
    beams: list[tuple[State, ...]] = [(state,)]
    for _ in range(depth):
        grown = [(*path, child) for path in beams for child in path[-1].fork(branching)]
        for path in grown:
            take_step(path[-1], step)
        grown.sort(key=lambda path: score(path[-1]), reverse=True)
        beams, dropped = grown[:width], grown[width:]
        for path in dropped:
            path[-1].cancel()
    return adopt_path(beams[0])


def adopt_path(path: tuple[State, ...]) -> State:
    """Fold a chain of branches into its first state, deepest first."""
    for parent, child in reversed([(path[i], path[i + 1]) for i in range(len(path) - 1)]):
        parent.adopt_child(child)
    return path[0]


def retry(
    state: State, step: Step, *, until: Callable[[State], bool] | None = None, times: int = 3
) -> State:
    """Take a step on a new branch until it succeeds, and continue from there.

    A step fails when its branch has an error, or when `until(branch)` is false.

    Raises:
        ProgramError: no attempt succeeded; it has the last attempt's error, if there was one.
    """
    last: ProgramError | None = None
    for _ in range(times):
        group = state.fork(1, on_error="collect")
        try:
            take_step(group[0], step)
            errors = group.errors
        except ProgramError as error:
            errors = {0: error}
        last = errors.get(0, last)
        if not errors and (until is None or until(group[0])):
            return state.adopt(group, 0)
        group.cancel()
    raise ProgramError(
        f"no attempt of {times} succeeded" + (f"; the last: {last}" if last else "")
    ) from last


def take_step(branch: State, step: Step) -> None:
    """Append a step to a branch."""
    if callable(step):
        step(branch)
    else:
        branch.append(step)
