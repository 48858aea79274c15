"""Hints of programs become next uses of nodes, and lookahead eviction goes by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from radixlang import function, gen
from radixlang.runtime.cache.eviction import NEVER
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60
MakeRuntime = Callable[..., Any]
EIGHT = SamplingParams(max_tokens=8, min_tokens=8, temperature=0.0, ignore_eos=True)


def ids(seed: int, num_tokens: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(3, 448, num_tokens).tolist()
    return found


def use(runtime: Any, prompt: list[int], *hints: int | None) -> Any:
    """A branch of its own: the prompt, eight tokens, then hints; returns its usage."""
    branch = runtime.new_branch()
    branch.extend(prompt)
    generation = branch.generate(EIGHT)
    for hint in hints:
        branch.expect(hint)
    branch.release()
    usage = generation.result(TIMEOUT).usage
    runtime.core.call(lambda: None)  # the release, too, has been carried out
    return usage


def next_uses(runtime: Any, tokens: list[int]) -> list[float | None]:
    """Next uses of the nodes on the path of these tokens."""

    def look() -> list[float | None]:
        tree = runtime.core.memory.tree
        return [node.next_use for node in tree.path(tree.match("", tokens).node)]

    found: list[float | None] = runtime.core.call(look)
    return found


@pytest.mark.parametrize(("policy", "num_kept"), [("lru", 0), ("lookahead", 40)])
def test_what_is_never_used_again_leaves_before_what_is_older(
    make_runtime: MakeRuntime, policy: str, num_kept: int
) -> None:
    """Least recently used is the shared prefix; the programs after it have ended for good."""
    runtime = make_runtime(num_pages=200, eviction=policy)
    prefix = ids(0, 40)
    use(runtime, prefix)
    for seed in range(1, 8):
        use(runtime, ids(seed, 60), None)
    assert use(runtime, [*prefix, 5]).num_cached_tokens == num_kept


def test_a_known_next_use_outlives_what_nobody_has_spoken_of(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(num_pages=200, eviction="lookahead")
    prompt = ids(0, 40)
    use(runtime, prompt, 20)
    for seed in range(1, 8):
        use(runtime, ids(seed, 60))
    assert use(runtime, [*prompt, 5]).num_cached_tokens == 40
    assert next_uses(runtime, prompt) == [None]  # it has come, and is of the past


def test_a_next_use_that_has_passed_is_forgotten(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(eviction="lookahead")
    use(runtime, ids(0, 20), 2)
    # The prompt and seven of the eight tokens: the last was not computed.
    tokens = runtime.core.call(lambda: [n.key.tolist() for n in runtime.core.memory.tree.nodes()])
    path = [token for node in tokens for token in node]
    assert next_uses(runtime, path)[-1] is not None
    for seed in range(1, 4):
        use(runtime, ids(seed, 10))
    assert next_uses(runtime, path)[-1] is None


def test_never_is_said_only_of_what_nobody_else_uses(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(eviction="lookahead")
    shared = ids(0, 30)
    use(runtime, [*shared, *ids(1, 10)])
    use(runtime, [*shared, *ids(2, 10)], None)  # found the beginning in the cache
    found = next_uses(runtime, [*shared, *ids(2, 10)])
    assert found[0] is None
    assert found[-1] == NEVER
    parent = runtime.new_branch()
    parent.extend(ids(3, 30))
    (child,) = parent.fork(1)
    child.generate(EIGHT).result(TIMEOUT)
    child.expect(None)
    parent.generate(EIGHT).result(TIMEOUT)
    child.release()
    assert next_uses(runtime, ids(3, 30))[0] is None  # its sibling still stands there
    parent.release()


def test_a_static_program_says_when_it_is_done(make_runtime: MakeRuntime) -> None:
    """Rows of a compiled program leave nothing that would push out an older prefix."""

    @function
    def answer(s: Any, question: str) -> None:
        s += f"{question} The town" + gen("first", max_tokens=8, ignore_eos=True)
        with s.fork(2) as group:
            group += lambda i: f" {i} night" + gen("second", max_tokens=8, ignore_eos=True)

    kept = {}
    for policy in ("lru", "lookahead"):
        runtime = make_runtime(num_pages=160, eviction=policy)
        program = answer.compile()
        prefix = ids(0, 40)
        use(runtime, prefix)
        for number in range(8):
            program.run(question=f"{number} {number} " * 4, runtime=runtime, seed=0)
        assert runtime.stats().num_evicted_tokens > 40
        kept[policy] = use(runtime, [*prefix, 5]).num_cached_tokens
    assert kept == {"lru": 0, "lookahead": 40}


def test_lru_spends_nothing_on_hints(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    use(runtime, ids(0, 20), 5, None)
    assert next_uses(runtime, ids(0, 20)) == [None]
