"""Patterns of JSON schemas mean what an ECMA 262 engine says, or are refused by name."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from typing import Any

import llguidance
import pytest
import quickjs

from radixlang.constraints.specs import JsonSchema, match
from radixlang.errors import ConstraintError, InvalidConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints.compiled import byte_constraint
from radixlang.runtime.constraints.schema.patterns import (
    engine_regex,
    engine_regexes,
    string_pattern,
)
from radixlang.runtime.constraints.vocabulary import Vocabulary

NUM_PATTERNS, NUM_TEXTS = 5_000, 8
JUDGE = """
JSON.stringify(JSON.parse(cases).map(([source, texts]) => {
  for (const flags of ["u", ""]) {
    try {
      const regex = new RegExp(source, flags);
      return [flags || "legacy", texts.map(text => regex.test(text))];
    } catch (error) { continue; }
  }
  return ["invalid", []];
}))
"""
ATOMS = [
    *"aabbcAZ019_- ,:;&|~<>=@!%'\"/é😀", ".", ".", "\\d", "\\w", "\\s", "\\D", "\\W", "\\S", "\\.",
    "\\/", "\\\\", "\\n", "\\t", "\\cJ", "\\cj", "\\x41", "\\u0062", "\\u{61}", "\\u{1F600}",
    "\\ud83d\\ude00", "\\0", "[]", "[^]", "\\b", "\\B", "^", "$",
]  # fmt: skip
RARE_ATOMS = ["\\-", "\\<", "\\@", "\\_", "{", "}", "]", "\\p{L}", "\\P{Lu}", "\\p{Nd}", "\\1",
              "\\a", "\\Z", "\\k", "\\c", "\\x4", "\\u12", "{,2}", "**", "{2,1}"]  # fmt: skip
IN_CLASS = [
    *"aabcZ019_&|~^[<é😀.*$(", "a-c", "A-Z", "0-9", "--/", "+--", "\\d", "\\w", "\\s", "\\S", "\\-",
    "\\]", "\\^", "\\b", "\\cA", "\\x41", "\\u{61}", "\\n", "&&", "||", "~~", "\\/",
]  # fmt: skip
RARE_IN_CLASS = ["-", "--", "\\w-a", "a-\\d", "\\p{Ll}", "\\P{L}", "\\&", "\\B", "b-a"]
QUANTIFIERS = ["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?", "{1,2}?"]
GROUPS = ["(", "(", "(?:", "(?:", "(?=", "(?!", "(?<=", "(?<!"]
RARE_GROUPS = ["(?<n>", "(?i:", "(?P<n>", "(?>"]
LETTERS = '"\\aabbcAZ01_- &|~<^[].$\n\r\t\v\x01\u2028\ufeff\u00a0é\u0663😀{}'


def _some(rng: random.Random, usual: list[str], rare: list[str]) -> str:
    return rng.choice(rare if rng.random() < 0.03 else usual)


def _pattern(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return _some(rng, ATOMS, RARE_ATOMS)
    if kind < 0.5:
        inside = [_some(rng, IN_CLASS, RARE_IN_CLASS) for _ in range(rng.randrange(5))]
        return f"[{rng.choice(['', '', '^'])}{''.join(inside)}]"
    if kind < 0.75:
        return "".join(_pattern(rng, depth - 1) for _ in range(rng.randrange(2, 4)))
    if kind < 0.85:
        return f"{_pattern(rng, depth - 1)}|{_pattern(rng, depth - 1)}"
    body = f"{_some(rng, GROUPS, RARE_GROUPS)}{_pattern(rng, depth - 1)})"
    return body if body.startswith(("(?=", "(?!", "(?<")) else body + _count(rng)


def _count(rng: random.Random) -> str:
    return rng.choice(["", "", "", *QUANTIFIERS])


def _source(rng: random.Random) -> str:
    parts = [_pattern(rng, rng.randrange(3)) for _ in range(rng.randrange(1, 4))]
    parts = [part if part in "^$\\b\\B" else part + _count(rng) for part in parts]
    start, end = rng.choice([("^", "$"), ("^", "$"), ("^", ""), ("", "$"), ("", "")])
    return start + "".join(parts) + end


def _text(rng: random.Random, source: str) -> str:
    letters = LETTERS + re.sub(r"[\\?*+(){}]", "", source) * 3
    return "".join(rng.choices(letters, k=rng.randrange(6)))


def judged(cases: list[tuple[str, list[str]]]) -> list[tuple[str, list[bool]]]:
    """Of each pattern the flag under which an ECMA 262 engine takes it, and where it matches."""
    context = quickjs.Context()
    context.set("cases", json.dumps(cases))
    found: list[tuple[str, list[bool]]] = json.loads(context.eval(JUDGE))
    return found


BYTES = Vocabulary.of_bytes()


def _engine(regexes: tuple[str, ...]) -> llguidance.LLMatcher:
    """The mask engine on whole texts, without the JSON around them."""
    terminal = " & ".join(f"/{regex[1:-1]}/" for regex in regexes)
    grammar = {"lark_grammar": f"start: TEXT\nTEXT: {terminal}\n"}
    return BYTES.matcher(json.dumps({"grammars": [grammar]}))


def _accepts(engine: llguidance.LLMatcher, text: str) -> bool:
    engine, data = engine.deep_copy(), list(text.encode())
    return engine.try_consume_tokens(data) == len(data) and engine.is_accepting()


def _verdicts(source: str, texts: list[str]) -> list[bool] | str:
    try:
        engine = _engine(engine_regexes(source))
    except UnsupportedConstraintError:
        return "refused"
    except InvalidConstraintError:
        return "invalid"
    return [_accepts(engine, text) for text in texts]


def _cases(num: int, seed: int) -> list[tuple[str, list[str]]]:
    rng = random.Random(seed)
    sources = list(dict.fromkeys(_source(rng) for _ in range(2 * num)))[:num]
    return [(source, [_text(rng, source) for _ in range(NUM_TEXTS)]) for source in sources]


def _is_comparable(flag: str, text: str) -> bool:
    """Without the flag u ECMA 262 sees halves of characters beyond 0xFFFF; here are none."""
    return flag == "u" or all(ord(char) <= 0xFFFF for char in text)


def test_patterns_mean_what_an_ecma_engine_says_or_are_refused_by_name() -> None:
    cases = _cases(NUM_PATTERNS, 1)
    counts: Counter[tuple[str, str]] = Counter()
    for (source, texts), (flag, expected) in zip(cases, judged(cases), strict=True):
        found = _verdicts(source, texts)
        counts[flag, found if isinstance(found, str) else "served"] += 1
        if flag == "invalid":
            assert isinstance(found, str), source
            continue
        assert found != "invalid", source
        for text, mine, right in zip(texts, found, expected, strict=False):
            if found != "refused" and _is_comparable(flag, text):
                assert mine == right, (source, text)
    assert sum(counts.values()) == NUM_PATTERNS
    assert counts["u", "served"] > 0.9 * (counts["u", "served"] + counts["u", "refused"])
    assert counts["legacy", "served"] > 80


def test_the_same_through_masks() -> None:
    cases = _cases(250, 2)
    num_true = 0
    for (source, texts), (flag, expected) in zip(cases, judged(cases), strict=True):
        schema = {"type": "string", "pattern": source}
        try:
            compiled = byte_constraint(JsonSchema.of(schema))
        except ConstraintError:
            assert flag == "invalid" or not any(expected) or _verdicts(source, []) == "refused"
            continue
        for text, right in zip(texts, expected, strict=True):
            if _is_comparable(flag, text):
                found = bool(compiled.match(json.dumps(text, ensure_ascii=False)))
                assert found == right, (source, text)
                num_true += found
    assert num_true > 200


def test_complements_are_all_other_strings() -> None:
    cases = _cases(400, 3)
    num_complements = 0
    for (source, texts), (flag, expected) in zip(cases, judged(cases), strict=True):
        try:
            engine = _engine((engine_regex(source, complement=True),))
        except ConstraintError:
            continue
        num_complements += 1
        for text, right in zip(texts, expected, strict=True):
            if _is_comparable(flag, text):
                assert _accepts(engine, text) != right, (source, text)
    assert num_complements > 200


@pytest.mark.parametrize(
    ("pattern", "accepted", "rejected"),
    [
        (r"^[^<>&&'\"]+$", ["a b"], ["<b>", "a&", '"']),
        (r"^[a&&b]+$", ["a&b"], ["c"]),
        (r"^[a||b]$", ["|"], ["c"]),
        (r"^[a~~b]$", ["~", "a"], ["c"]),
        (r"^[+--]$", ["+", ",", "-"], ["."]),
        (r"^\cJ$", ["\n"], ["J"]),
        (r"^[^]$", ["a", "\n"], ["", "ab"]),
        (r"^(?:a|[])$", ["a"], ["", "[]"]),
        (r"^\<\/\-\@$", ["</-@"], ["<"]),
        (r"\bfoo\b", ["foo", "a foo!"], ["foobar", "afoo"]),
        (r"^(?=.*[a-z])(?=.*\d)[a-z\d]{4,}$", ["abc1"], ["abcd", "1234", "ab1"]),
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", ["1.5", "-0", ".5"], ["+", ".", "-.", "1.5.5"]),
        (r"^(?!.*(admin|root)).+$", ["user"], ["an admin", "root", ""]),
        (r"(?<=\$)\d+$", ["$5", "a$15"], ["5", "€5"]),
        (r"^(?:a(?!b)|b)+$", ["aa", "ba"], ["ab", "bab"]),
        (r"^\d\w\s$", ["1a ", "1a\ufeff"], ["٣a ", "1é "]),
        (r"^.$", ["é", "😀"], ["\n", "\r", "\u2028", ""]),
        ("^a$", ["a"], ["a\n", "\na"]),
        (r"^(?<year>\d{4})$", ["2024"], ["24"]),
        (r"^\u{1F600}|\ud83d\ude01$", ["😀"], ["😂"]),
        (r"^\p{Lu}\p{L}*$", ["Émile"], ["émile", "É1"]),
        (r"^[\p{Nd}\-]+$", ["1-٣"], ["a"]),
        (r"^{[a-z]+}$", ["{a}"], ["a"]),
        (r"^[\w-.]+$", ["a-.b"], ["a b"]),
    ],
)  # fmt: skip
def test_constructs_that_dialects_read_differently(
    pattern: str, accepted: list[str], rejected: list[str]
) -> None:
    schema = {"type": "string", "pattern": pattern}
    ((_, expected),) = judged([(pattern, [*accepted, *rejected])])
    assert expected == [True] * len(accepted) + [False] * len(rejected)
    for text, right in zip([*accepted, *rejected], expected, strict=True):
        assert bool(match(schema, json.dumps(text, ensure_ascii=False))) == right


@pytest.mark.parametrize(
    ("pattern", "error", "what"),
    [
        (r"(a)\1", UnsupportedConstraintError, "a back-reference"),
        (r"(?<n>a)\k<n>", UnsupportedConstraintError, "a back-reference"),
        (r"\A[a-z]\Z", UnsupportedConstraintError, r"\\A, an escape that ECMA 262 does not have"),
        (r"(?i)abc", UnsupportedConstraintError, r"\(\?i, which is no group"),
        (r"(?P<n>a)", UnsupportedConstraintError, r"\(\?P, which is no group"),
        (r"a{,3}", UnsupportedConstraintError, r"write \{0,n\}"),
        (r"\p{Script=Greek}", UnsupportedConstraintError, "property 'Script=Greek'"),
        (r"\p{L}\_", UnsupportedConstraintError, "flag u forbids"),
        (r"\012", UnsupportedConstraintError, "an octal escape"),
        (r"(?=a)*", UnsupportedConstraintError, "a repetition of a lookaround"),
        (r"[z-a]", InvalidConstraintError, "out of order"),
        (r"a**", InvalidConstraintError, "nothing to repeat"),
        (r"(a", InvalidConstraintError, "not closed"),
        (r"a)", InvalidConstraintError, "not open"),
        ("[a", InvalidConstraintError, "class is not closed"),
        ("a\\", InvalidConstraintError, "last backslash"),
        ("a{3,1}", InvalidConstraintError, "out of order"),
        ("(" * 5000 + ")" * 5000, UnsupportedConstraintError, "nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named_with_its_pointer(pattern: str, error: type, what: str) -> None:
    for schema in (
        {"properties": {"a": {"pattern": pattern}}},
        {"properties": {"a": {"patternProperties": {pattern: {}}}}},
    ):
        with pytest.raises(error, match=what) as caught:
            match(schema, "{}")
        assert re.match(r"#/properties/a/pattern(Properties)?: ", str(caught.value))


def test_names_fit_a_pattern_as_strings_do() -> None:
    schema: Any = {"type": "object", "additionalProperties": False,
                   "patternProperties": {"^[a&&b]$": {"type": "integer"},
                                         r"^(?!x)\w{2}$": {"type": "null"}}}  # fmt: skip
    for text, right in (
        ('{"&": 1}', True), ('{"a": 1, "yz": null}', True), ('{"xy": null}', False),
        ('{"yz": 1}', False), ('{"c": 1}', False),
    ):  # fmt: skip
        assert bool(match(schema, text)) == right


def test_a_pattern_that_is_negated_is_enforced() -> None:
    schema = {"type": "string", "not": {"pattern": "^[a-z]+$"}}
    assert match(schema, '"A"')
    assert match(schema, '""')
    assert not match(schema, '"abc"')


def test_patterns_are_those_of_a_whole_string_once_read() -> None:
    assert string_pattern("^a$") == string_pattern("^(?:a)$")
