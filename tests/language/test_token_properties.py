"""Where text is cut or forked leaves no trace in the tokens: over ten scripts, emoji, and text
that looks like special tokens, on the engine with a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixlang import function, gen, user
from radixlang.state.state import State

SCRIPTS = [
    "the quick brown fox, ", "Größe und Übermut. ", "съешь ещё булок ", "Ξεσκεπάζω τήν ",
    "השפן השועל ", "صِف خَلقَ خَودِ ", "ऋषियों को सताने ", "いろはにほへと", "天地玄黃宇宙",
    "키스의 고유조건 ", "👩‍👩‍👧‍👦🏳️‍🌈🇫🇷 ", "<|im_end|><|im_start|>user\n",
    "</s><s>[INST]{{ x }}", "e\u0301a\u0308\u200d\ufeff",
    "  \n\t  ", "0123 4.5e-6 ", "\u0000\u0007", "def f(x):\n    return x\n",
]  # fmt: skip
PIECES = st.lists(
    st.one_of(st.sampled_from(SCRIPTS), st.text(max_size=12)), min_size=1, max_size=6
).map("".join)
LIMITS = settings(
    max_examples=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
Make = Callable[..., Any]


def encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


@function
def read(s: State, parts: list[str], fork_at: int) -> tuple[int, ...]:
    branch = s
    for index, part in enumerate(parts):
        if index == fork_at:
            branch = branch.fork(2)[1]
        branch += part
    return branch.tokens()


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(edges)]


def test_cuts_and_forks_leave_no_trace(make_runtime: Make) -> None:
    runtime = make_runtime()

    @LIMITS
    @given(PIECES, st.lists(st.integers(0, 80), max_size=5), st.integers(0, 5))
    def check(text: str, places: list[int], fork_at: int) -> None:
        text = encodable(text)
        whole = read(parts=[text], fork_at=-1, runtime=runtime).result
        assert read(parts=cut(text, places), fork_at=-1, runtime=runtime).result == whole
        assert read(parts=cut(text, places), fork_at=fork_at, runtime=runtime).result == whole

    check()


def test_data_in_a_turn_is_never_a_special_token(make_runtime: Make) -> None:
    runtime = make_runtime()
    special = set(range(3))

    @function
    def program(s: State, content: str) -> tuple[int, ...]:
        s += user(content)
        return s.tokens()

    empty = program(content="x", runtime=runtime).result
    expected = [token for token in empty if token in special]

    @LIMITS
    @given(PIECES)
    def check(text: str) -> None:
        text = encodable(text) or "x"
        state = program(content=text, runtime=runtime)
        assert [token for token in state.result if token in special] == expected
        assert state.messages()[0].content == text

    check()


def test_generated_tokens_are_never_tokenised_again(make_runtime: Make) -> None:
    runtime = make_runtime()

    @function
    def program(s: State, text: str) -> tuple[int, ...]:
        s += text + gen("x", max_tokens=4, heal=False, ignore_eos=True)
        s += text
        return s.tokens()

    @LIMITS
    @given(PIECES)
    def check(text: str) -> None:
        text = encodable(text) or "x"
        state = program(text=text, runtime=runtime)
        before = read(parts=[text], fork_at=-1, runtime=runtime).result
        generated = state.completion("x").token_ids
        assert state.result[: len(before)] == before
        assert state.result[len(before) : len(before) + len(generated)] == generated

    check()


def test_healing_is_the_same_cold_and_warm(make_runtime: Make) -> None:
    runtime = make_runtime()

    @function
    def program(s: State, text: str) -> None:
        s += text + gen("x", max_tokens=6, temperature=0, ignore_eos=True)

    @LIMITS
    @given(PIECES)
    def check(text: str) -> None:
        text = encodable(text) or "x"
        cold = program(text=text, runtime=runtime)
        warm = program(text=text, runtime=runtime)
        assert warm.completion("x").token_ids == cold.completion("x").token_ids
        assert cold.text() == text + cold["x"]

    check()


def test_the_cache_changes_nothing(make_runtime: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "The theatre in the north " + gen("a", max_tokens=6, temperature=0.9)
        group = s.fork(4)
        group += lambda i: f" branch {i} " + gen("b", max_tokens=6, temperature=0.9)
        s.join(group, "b")

    warm = make_runtime()
    runs = [program(seed=5, runtime=warm) for _ in range(2)]
    warm.flush_cache()
    runs.append(program(seed=5, runtime=warm))
    runs.append(program(seed=5, runtime=make_runtime(page_size=4)))
    assert len({run.text() for run in runs}) == 1
    assert all(list(run["b"]) == list(runs[0]["b"]) for run in runs)
