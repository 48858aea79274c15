"""Where a match may begin, held against every short text that could still come."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest

from radixlang.runtime.text.partial_regex import partial_pattern

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


@pytest.mark.parametrize("pattern", PATTERNS)
def test_first_place_where_a_match_may_begin(pattern: str) -> None:
    partial = partial_pattern(pattern)
    assert partial is not None
    choose = random.Random(0)
    for _ in range(60):
        text = "".join(choose.choice(LETTERS) for _ in range(choose.randrange(7)))
        found = partial.search(text)
        assert found is not None
        assert found.start() == min(first_begin(pattern, text), len(text)), text


@pytest.mark.parametrize("pattern", [r"(a)\1", "(a)?(?(1)b|c)", r"(?a)(?u:\w)b"])
def test_what_cannot_be_written_so_is_told(pattern: str) -> None:
    assert partial_pattern(pattern) is None


def test_a_long_text_takes_no_longer_than_the_pattern_itself() -> None:
    """A growing text is looked at from where a match may begin, and each look ends at its end."""
    partial = partial_pattern(r"(?:a|b)*c\n+(?:a|aa)+d")
    assert partial is not None
    found = partial.search("ab" * 20_000)
    assert found is not None
    assert found.span() == (0, 40_000)
