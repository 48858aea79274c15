"""Python regexes as patterns: the same language as re.fullmatch, or a refusal by name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.constraints.specs import Regex, match
from radixlang.errors import InvalidConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints import compiled as constraints

CASES = [
    ("a|ab", "a ab b"), (r"(?i)stra\w+", "STRASSE Straße 1"), (r"(?i)[k-m]x", "Kx Lx jx \u212ax"),
    (r"\bfoo\b.*", "foo foo-bar foobar"), (r"(?!abc)[a-z]+", "abc abd abcd xabc"),
    (r"[a-z]+(?<!ing)", "sing ing sin"), (r"(?:(?=a)a|b$)", "a b c"), (".*?x", "axx ax a"),
    (r"(?=.*\d)(?=.*[a-z]).{4,8}", "abc1 abcd 1234 a1"), (r"(a(?=b)|c)[bd]", "ab ad cd cb"),
    (r"[^\W\d]+", "abc a1 _"), (r"(foo|^bar)baz$", "foobaz barbaz"), (r"\Aab\Z", "ab abb"),
    (r"(?x) a b # c", "ab"), (r"a{2,3}?", "a aa aaa aaaa"), (r'[\]\-^/"\\]+', '/" \\^- ]'),
    (r"\Bfoo|x", "foo x"), (r"a\Bb", "ab"), (r"(?!let\b|be\b)[a-z]+", "let be letter best"),
    (r"(?<=x)a|b", "a xa b"), (r"x(?<=x)a", "xa"), (r"[а-я]+", "привет hello"), (r"\S+", "é日 a"),
    (r"(?P<n>a)(?:b)?", "a ab"), ("[^a]", "b a 日"), (r"\.\*\+", ".*+"), ("(?s:.)(?-s:.)", "ab"),
    (r"\ba\b-?\bb\b", "a-b ab a--b"), (r"(?=.*\bfoo\b).*", "a-foo-b afoo-b foo"),
    (r"(?:a(?!b))*", "a aa ab"), (r"(?:a(?!b)|b)*c?", "ab ba aa aac bc"), (r"\ba*\b", "a aa"),
    (r".*\bfoo\b.*(?<=x)", "foox foo-x x"), (r"(?:\bfoo\b-?)+", "foo foo-foo foofoo"),
    (r"(?:(?<=a)b|(?<!a)a)*", "abab ab aab b"), (r"(?:(?m:^)a\s?)*", "aa a"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "texts"), CASES, ids=[case[0] for case in CASES])
def test_the_language_is_that_of_fullmatch(pattern: str, texts: str) -> None:
    for text in [*texts.split(" "), "", "\n", "a\n", "ab\n"]:
        assert bool(match(Regex(pattern), text)) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize("text", ["a\nb", "a\n\nb", "ab", "a"])
def test_lines_have_their_own_anchors(text: str) -> None:
    pattern = r"(?m)^a$\s^b$"
    assert bool(match(Regex(pattern), text)) == bool(re.fullmatch(pattern, text))


ATOMS = st.sampled_from(
    ["a", "b", "[ab]", "[^a]", ".", r"\w", r"\d", "c", r"\s", "(?=a)", "(?!b)", "(?<=a)", "(?<!b)",
     r"\b", "^", "$", "é"]
)  # fmt: skip


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map("".join), two.map(lambda p: f"(?:{p[0]}|{p[1]})"),
        inner.map(lambda p: f"(?:{p})*"), inner.map(lambda p: f"(?:{p})?"),
        inner.map(lambda p: f"(?:{p}){{1,2}}"), inner.map(lambda p: f"(?i:{p})"),
    )  # fmt: skip


def _matches(pattern: str, text: str) -> bool | None:
    """Our verdict; None where the regex is refused, which holds for every text."""
    try:
        return bool(match(Regex(pattern), text))
    except UnsupportedConstraintError:
        return None
    except InvalidConstraintError:
        return False  # it can match no text at all


@settings(max_examples=500, deadline=None)
@given(
    st.recursive(ATOMS, _compound, max_leaves=7),
    st.lists(st.text("abAc1 é\n", max_size=5), min_size=1, max_size=6),
)
def test_random_regexes_agree_with_python(pattern: str, texts: list[str]) -> None:
    for text in texts:
        assert _matches(pattern, text) in (None, bool(re.fullmatch(pattern, text)))


@pytest.mark.parametrize(
    ("pattern", "error", "what"),
    [
        (r"(a)\1", UnsupportedConstraintError, "back-reference"),
        (r"(a)?(?(1)b|c)", UnsupportedConstraintError, "conditional"),
        (r"(?<=a(?=b))b", UnsupportedConstraintError, "looks ahead"),
        (r"a(b", InvalidConstraintError, "column 2"),
        (r"[z-a]", InvalidConstraintError, "column 2"),
        (r"a(?=b)c", InvalidConstraintError, "no text"),
        ("(a{1000}){1000}", UnsupportedConstraintError, "1,000,000"),
        ("(" * 3000 + "a" + ")" * 3000, UnsupportedConstraintError, "nested"),
        ("a" * 200_000, UnsupportedConstraintError, "200000"),
        (r"(?:a(?!c)|b)*a(?:a|b){12}", UnsupportedConstraintError, "than 400 states"),
    ],
)
def test_what_is_not_regular_is_refused_by_name(
    pattern: str, error: type, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "MAX_COMPILE_S", 30.0)  # by what it is, not by its time
    with pytest.raises(error, match=what):
        match(Regex(pattern), "a")


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(a|a)*b", "(.*a){20}", "(?:a?){60}a{60}"])
def test_catastrophic_regexes_are_linear_here(pattern: str) -> None:
    assert match(Regex(pattern), "x" * 5000 if pattern[1] == "x" else "a" * 5000).position > 40
