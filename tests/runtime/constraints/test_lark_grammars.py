"""Grammars of every construct of lark, compared with what lark itself says of their texts."""

from __future__ import annotations

from typing import Any

import lark
import numpy as np
import pytest

from radixlang.constraints.specs import Grammar, match
from radixlang.errors import InvalidConstraintError, UnsupportedConstraintError


def lark_accepts(text: str, sample: str) -> bool:
    """LALR's verdict, Earley's where LALR cannot be built."""
    try:
        parser = lark.Lark(text, parser="lalr")
    except lark.exceptions.GrammarError:
        parser = lark.Lark(text, parser="earley")
    try:
        parser.parse(sample)
    except lark.exceptions.LarkError:
        return False
    return True


def test_texts_are_accepted_and_rejected_as_lark_does(grammar_case: Any) -> None:
    grammar = Grammar(grammar_case.text)
    for sample in grammar_case.accepted:
        assert lark_accepts(grammar_case.text, sample), sample
        assert match(grammar, sample), (sample, match(grammar, sample))
    for sample in grammar_case.rejected:
        assert not lark_accepts(grammar_case.text, sample), sample
        assert not match(grammar, sample), sample


def test_random_mask_walks_parse_in_lark(grammar_case: Any, compiler: Any, walk: Any) -> None:
    compiled = compiler.compile(Grammar(grammar_case.text))
    rng = np.random.default_rng(7)
    texts = [text for _ in range(8) if (text := walk(compiled, rng, 25)) is not None]
    assert texts, "no walk came to an end"
    for text in texts:
        compiled.check(text)  # raises where lark does not parse it


def test_there_are_grammars_enough(request: pytest.FixtureRequest) -> None:
    source = (request.path.parent / "grammars.txt").read_text(encoding="utf-8")
    assert source.count("=== ") >= 45


def test_the_finished_text_comes_back_as_a_tree(compiler: Any) -> None:
    grammar = Grammar('start: pair+\npair: /[a-z]/ "=" INT\n%import common.INT\n%ignore " "')
    tree = compiler.compile(grammar).tree("a=1 b=22")
    assert isinstance(tree, lark.Tree)
    assert [str(pair.children[1]) for pair in tree.children] == ["1", "22"]


def test_captures_bind_rules_aliases_and_terminals(compiler: Any) -> None:
    text = """
        start: "call" person "at" hour
        ?person: NAME
        hour: INT -> time
        NAME: /[A-Z][a-z]+/
        %import common.INT
        %ignore " "
    """
    grammar = Grammar(text, captures=("person", "time", "NAME"))
    found = compiler.compile(grammar).captures("call Ada at 12")
    assert found == {"person": "Ada", "time": "12", "NAME": "Ada"}
    assert dict(match(grammar, "call Ada at 12").captures or {}) == found


@pytest.mark.parametrize("name", ["_hidden", "missing"])
def test_a_capture_must_name_something_visible(name: str) -> None:
    with pytest.raises(InvalidConstraintError, match=name):
        match(Grammar('start: _hidden\n_hidden: "a"', captures=(name,)), "a")


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("start: A\n%declare A _B", "line 2, column 10", "%declare A"),
        ("start: A\nA: /(a)\\1/", "line 2, column 4", "back-reference"),
        ('start: "x"\n  | /a\\bc?/', "line 2, column 5", "word boundary"),
        ("start: A\nA: /^ab/", "line 2, column 4", "anchor"),
        ("start: A\nA: /(?<=x)a/", "line 2, column 4", "lookaround"),
        ("start: A\nA: /(?:(?!x).)+/", "line 2, column 4", "repeats a lookaround"),
    ],
)
def test_what_cannot_be_lowered_is_refused_with_its_place(text: str, where: str, what: str) -> None:
    with pytest.raises(UnsupportedConstraintError) as caught:
        match(Grammar(text), "")
    message = str(caught.value)
    assert where in message
    assert what in message
    assert message.rstrip().endswith("^")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("start: A B\nA: /a/", "line 1"),
        ("start: A\nA: /(/", "line 2, column 4"),
        ("start: (", "line 1"),
        ('star: "a"', "no rule 'start' to start from; its rules are star"),
        ("start: A\nA: b\nb: /x/", "line 2, column 4"),
        ("start: A\nA: /a*/", "can match the empty text.*line 1, column 8"),
        ("start: missing", "line 1, column 8"),
        ('start: "a"\nstart: "b"', "line"),
        ("%import nowhere.X\nstart: X", r"finds no nowhere.lark; name its folder in import_paths"),
        ("", "its rules are none"),
    ],
)
def test_a_wrong_grammar_is_refused_with_its_place(text: str, where: str) -> None:
    with pytest.raises(InvalidConstraintError, match=where):
        match(Grammar(text), "")


def test_a_template_that_grows_without_end_is_refused() -> None:
    text = "start: t{A}\nt{x}: x | t{u{x}}\nu{x}: x x\nA: /a/"
    with pytest.raises(UnsupportedConstraintError, match="without end"):
        match(Grammar(text), "a")


def test_an_asked_for_lalr_parser_reports_its_conflict() -> None:
    text = 'start: a | b\na: "x"\nb: "x"'
    with pytest.raises(InvalidConstraintError, match=r'(?s)Reduce/Reduce.*"earley" take'):
        match(Grammar(text, parser="lalr"), "x")
    assert match(Grammar(text), "x")  # auto takes Earley


def test_long_right_recursion_goes_on() -> None:
    assert match(Grammar('start: l\nl: "a" | "a" l'), "a" * 3000)


def test_ignored_blanks_are_bounded() -> None:
    grammar = Grammar('start: "a" "b"\n%ignore /[ \\n]+/', whitespace=4)
    assert match(grammar, "a    b")
    assert match(grammar, "a     b").position == 5
    assert match(Grammar('start: "a" "b"\n%ignore " "', whitespace=0), "a b").position == 1
