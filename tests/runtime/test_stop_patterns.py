"""Where a match may begin, held against every short text that could still come."""

from __future__ import annotations

import random
import re
from itertools import product
from typing import Any

import pytest

from radixlang.errors import ParameterError, UnsupportedConstraintError
from radixlang.runtime.constraints.regex.automaton import Automaton
from radixlang.runtime.text import stop_pattern
from radixlang.runtime.text.stop_pattern import StopPattern

LETTERS = "abc\n"
PATTERNS = [
    "ab", "a+b", "(a|bc)b", "a{2,3}b", "a*?b", "[ab]c", "[^a]b", "^ab", "a$", r"\bab", "(?=ab)a",
    "a(?!b)c", "(?<=a)b", "(?<!a)b", "(?i:A)b", "(?i)AB", "a(?=bc)", r"\n+a", "(?:ab)+c",
    "(?:ab){2}", "(?m:^a)", "(?m)a$", "a.b", "(?s:a.b)", r"a\Z", "(a+)+c", "a(?!b$)", "(?:a|b)*c",
    "a?b?c", "(?!a)b", "a(?=b(?!c))", r"a\b", r"\Bb", r"[\s\W]a", "(?P<x>a)(?:)b", "(?x) a b",
]  # fmt: skip
CONTINUATIONS = ["".join(each) for length in range(4) for each in product(LETTERS, repeat=length)]


def first_begin(pattern: str, text: str) -> int:
    """The earliest place where a match begins in any text that begins with this one."""
    search = re.compile(pattern).search
    matches = [match for more in CONTINUATIONS if (match := search(text + more))]
    return min([match.start() for match in matches], default=len(text))


def read(pattern: str, text: str, pieces: int = 1) -> StopPattern:
    """A pattern that has read a text in so many pieces."""
    found = StopPattern(pattern)
    for index in range(pieces):
        found.read(text[len(text) * index // pieces : len(text) * (index + 1) // pieces])
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_first_place_where_a_match_may_begin(pattern: str) -> None:
    choose = random.Random(0)
    for _ in range(60):
        text = "".join(choose.choice(LETTERS) for _ in range(choose.randrange(7)))
        found = read(pattern, text, choose.randrange(1, 4))
        match = re.search(pattern, text)
        assert found.match_start == (match.start() if match else None), text
        if match is None:
            assert found.first_begun == min(first_begin(pattern, text), len(text)), text


ATOMS = ["a", "b", "c", "\\n", ".", "[ab]", "[^a]", r"\w", r"\b", r"\B", "^", "$", "(?=a)", "(?!b)",
         "(?<=a)", "(?<!b)", "(?<=ab)", r"(?<=\ba)", "(?m:^)", "(?m:$)"]  # fmt: skip


def random_pattern(choose: random.Random, depth: int) -> str:
    """A pattern of all that is served, lookaround under repetition included."""
    if depth == 0 or choose.random() < 0.3:
        return choose.choice(ATOMS)
    first, second = random_pattern(choose, depth - 1), random_pattern(choose, depth - 1)
    body = choose.choice([first + second, f"(?:{first}|{second})", f"(?:{first}{second})"])
    return body + choose.choice(["", "", f"(?:{first}){choose.choice(['*', '+', '?', '{1,2}'])}"])


def test_random_patterns_match_where_pythons_do() -> None:
    choose = random.Random(1)
    num_matches = 0
    for _ in range(1500):
        pattern = random_pattern(choose, 3)
        # before Python 3.14 \\B does not hold in the empty text
        text = "".join(choose.choice(LETTERS) for _ in range(choose.randrange(1, 9)))
        match = re.search(pattern, text)
        found = read(pattern, text, choose.randrange(1, 4)).match_start
        assert found == (match.start() if match else None), (pattern, text)
        num_matches += match is not None
    assert 300 < num_matches < 1200


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (r"(a)\1", "back-reference"),
        ("(a)?(?(1)b|c)", "conditional"),
        ("(?<=a(?=bb))b", "looks ahead"),
    ],
)
def test_what_needs_a_matcher_that_goes_back_is_refused_by_name(pattern: str, what: str) -> None:
    with pytest.raises(ParameterError, match=what):
        StopPattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a|a)+b", "(a+)+b", "(?:a|aa)+d", "(?:a*)*c", "(a?){30}a{30}b"]
)
def test_steps_are_as_many_as_characters(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's matcher takes 18 s for sixty tokens of the first."""
    num_states: list[int] = []
    after = stop_pattern.Automaton.after

    def count(automaton: Automaton, *place: Any) -> Any:
        num_states.append(1)
        return after(automaton, *place)

    monkeypatch.setattr(stop_pattern.Automaton, "after", count)
    lengths = []
    for length in (200, 400, 800):
        num_states.clear()
        found = read(pattern, "a" * length, 7)
        assert found.match_start is None
        lengths.append(len(num_states))
    assert lengths[2] - lengths[1] <= 2.5 * (lengths[1] - lengths[0])


def test_a_match_may_begin_behind_the_first_tokens_only() -> None:
    found = StopPattern("ab+")
    found.read("ab", may_begin=False)
    assert (found.match_start, found.first_begun) == (None, 2)
    found.read("bab")
    assert found.match_start == 3


def test_what_a_text_needs_is_bounded() -> None:
    with pytest.raises(UnsupportedConstraintError, match="more than 2,000 places"):
        read("a{1,5000}b", "a" * 5000)
    with pytest.raises(UnsupportedConstraintError, match="more than 40,000 states"):
        read("(?:a|b)*a(?:a|b){60}c", "".join(random.Random(2).choices("ab", k=30_000)))
