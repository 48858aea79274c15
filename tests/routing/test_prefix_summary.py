"""Summaries of trees, compared with plain sets of prefixes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.routing import PrefixSummary

TOKEN = st.integers(0, 2)
PATH = st.lists(TOKEN, min_size=1, max_size=8).map(tuple)
CHANGE = st.tuples(
    st.sampled_from(["insert", "remove", "forget"]), st.integers(0, 2), PATH, st.integers(0, 8)
)


def path(token_ids: Sequence[int]) -> bytes:
    return array("i", token_ids).tobytes()


class PlainSets:
    """What each of three workers holds, every prefix by itself."""

    def __init__(self) -> None:
        self.prefixes: list[set[tuple[int, ...]]] = [set(), set(), set()]

    def insert(self, worker: int, tokens: tuple[int, ...]) -> None:
        self.prefixes[worker] |= {tokens[:end] for end in range(1, len(tokens) + 1)}

    def remove(self, worker: int, tokens: tuple[int, ...], kept: int) -> None:
        gone = tokens[: kept + 1]
        if kept < len(tokens) and gone in self.prefixes[worker]:
            self.prefixes[worker] -= {
                each for each in self.prefixes[worker] if each[: kept + 1] == gone
            }

    def held(self, tokens: tuple[int, ...]) -> list[int]:
        return [
            max((end for end in range(1, len(tokens) + 1) if tokens[:end] in each), default=0)
            for each in self.prefixes
        ]


@settings(max_examples=300, deadline=None)
@given(st.lists(CHANGE, max_size=12), st.lists(PATH, min_size=1, max_size=6))
def test_a_summary_tells_what_sets_of_prefixes_tell(
    changes: list[tuple[str, int, tuple[int, ...], int]], asked: list[tuple[int, ...]]
) -> None:
    summary, plain = PrefixSummary(3), PlainSets()
    for kind, worker, tokens, kept in changes:
        if kind == "insert":
            summary.insert(worker, "", path(tokens))
            plain.insert(worker, tokens)
        elif kind == "remove":
            summary.remove(worker, "", path(tokens), kept)
            plain.remove(worker, tokens, kept)
        else:
            summary.forget(worker)
            plain.prefixes[worker].clear()
    for tokens in asked:
        assert summary.held("", path(tokens)) == plain.held(tokens)
    assert summary.num_tokens == [len(each) for each in plain.prefixes]


def test_roots_share_nothing() -> None:
    summary = PrefixSummary(2)
    summary.insert(0, "a", path([1, 2, 3]))
    assert summary.held("a", path([1, 2, 4])) == [2, 0]
    assert summary.held("b", path([1, 2, 4])) == [0, 0]


def test_nodes_that_nobody_holds_are_gone() -> None:
    summary = PrefixSummary(2)
    summary.insert(0, "", path([1, 2, 3, 4]))
    summary.insert(1, "", path([1, 2, 5]))
    assert summary.num_nodes == 3
    summary.remove(0, "", path([1, 2, 3, 4]), 0)
    summary.forget(1)
    assert summary.num_nodes == 0
