"""Ordinary mistakes in templates: what is wrong, where, and what to do; optional fields."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from radixlang import TemplateError, load_template, template

Make = Callable[..., Any]

# (template, place of the mistake, what is wrong, what to do)
WRITTEN = [
    ("{% whle x %}a{% end %}", "1:1", "no tag 'whle'", "for"),
    ("a\n{% systm %}x{% end %}", "2:1", "no tag 'systm'", "'system'"),
    ("{{ gen x max_tokens=3 }}", "1:10", "comma is missing", "before 'max_tokens'"),
    ("{{ gen x: int max_tokens=3 }}", "1:15", "comma is missing", "before 'max_tokens'"),
    ('{{ select x: ["a" "b"] }}', "1:19", "comma is missing", "before '\"b\"'"),
    ("{{ gen x, max_tokns=3 }}", "1:11", "'max_tokns'", "'max_tokens'"),
    ("{{ gen x, max_new_tokens=3 }}", "1:11", "'max_new_tokens'", "'max_tokens'"),
    ('{{ select x: ["a"], scrorer="b" }}', "1:21", "'scrorer'", "'scorer'"),
    ("{% if a %}x", "1:12", "file ends", "{% end %}"),
    ("{% if a %}x{% endif %}", "1:12", "no tag 'endif'", "{% end %}"),
    ("{% if a %}x{% elseif b %}y{% end %}", "1:12", "'elseif'", "{% elif"),
    ("{% if a %}x{% else if b %}y{% end %}", "1:12", "'else if'", "{% elif"),
    ("{%- if a %}x{% end %}", "1:1", "{%- is no tag", "write {%"),
    ("a {{ name", "1:10", "file ends", "}} is missing"),
    ("a {{ name %}", "1:11", "'%}'", "expected }}"),
    ("{% for x list %}a{% end %}", "1:10", "'list'", "{% for x in list %}"),
    ('{{ select x ["a"] }}', "1:13", "'['", "colon"),
    ('{{ gen "x" }}', "1:8", "'\"x\"'", "without quotes"),
    ("{{ name.upper() }}", "1:14", "'('", "compute it in Python"),
    ("{{ name | upper }}", "1:4", "no filter 'upper'", "default(…)"),
    ("{{ name | default }}", "1:4", "default", 'default("…")'),
    ("{% if a is set %}x{% end %}", "1:7", "no test 'set'", "is defined"),
    ("{% if a = 1 %}x{% end %}", "1:9", "'='", "== compares"),
    ("{% if a && b %}x{% end %}", "1:9", "'&'", "write and"),
    ("{{ a + 1 }}", "1:6", "'+'", "give the result"),
    ('{{ gen x, stop="a }}', "1:16", "string", "closing"),
    ("a{% end %}", "1:2", "closes nothing", "take it out"),
    ("a{% join x %}", "1:2", "closes nothing", "take it out"),
    ("{% fork 3 %}a{% end %}", "1:14", "fork ends with {% join", "not with {% end %}"),
    ("{% set x %}", "1:10", "'%}'", "expected ="),
    ("{{ gen x: integer }}", "1:11", "no type 'integer'", "'int'"),
    ("{% args a=b %}", "1:11", "cannot use names", "quotes"),
    ("{% args name %}{{ nmae }}", "1:19", "no 'nmae'", "'name'"),
    ('{% args a %}{{ gen x }}{{ b | default("") }}', "1:27", "no 'b'", "known: a, x"),
    ("{{ seed }}", "1:4", "'seed'", "rename"),
    ('{% include "none.radix" %}', "1:1", "folder", "needs a folder"),
]

# (template, arguments, place, what is wrong, what to do)
RUN = [
    ("{{ a[3] }}", {"a": [1]}, "1:4", "no item 3", "it has 1"),
    ("{{ a.titel }}", {"a": {"title": "x"}}, "1:4", "no member 'titel'", "'title'"),
    ('{{ a["titel"] }}', {"a": {"title": "x"}}, "1:4", "no item 'titel'", "'title'"),
    ('{{ a | ".2f" }}', {"a": "x"}, "1:4", "no format '.2f'", "of a number"),
    ("{% if a < 1 %}x{% end %}", {"a": "x"}, "1:7", "'<' not supported", "str and int"),
    ("{% fork n %}x{% join %}", {"n": "many"}, "1:1", "got 'many'", "{% fork x in list %}"),
    ("{% for x in n %}x{% end %}", {"n": 3}, "1:1", "got 3", "give a list"),
    ("{% if a is defined %}b{% end %}{{ a }}", {}, "1:35", "'a' has no value", "default(…)"),
    ("a\n{{ gen x, max_tokens=n }}", {"n": 0}, "2:1", "got 0", "at least 1"),
    ("{{ select x: n }}", {"n": []}, "1:1", "got none", "at least one"),
    ("{{ gen x, json_schema=n }}", {"n": "{"}, "1:1", "JSON", "schema"),
    ("{% user %}{% user %}x{% end %}{% end %}", {}, "1:11", "inside the open turn", "close"),
]


@pytest.mark.parametrize(("text", "place", "what", "remedy"), WRITTEN)
def test_mistake_in_writing_is_told_with_its_place_and_a_remedy(
    text: str, place: str, what: str, remedy: str
) -> None:
    with pytest.raises(TemplateError) as caught:
        template(text, name="t")
    _check(caught.value, place, what, remedy)


@pytest.mark.parametrize(("text", "arguments", "place", "what", "remedy"), RUN)
def test_mistake_in_values_is_told_with_its_place_and_a_remedy(
    fake: Make, text: str, arguments: dict[str, Any], place: str, what: str, remedy: str
) -> None:
    with pytest.raises(TemplateError) as caught:
        template(text, name="t")(runtime=fake(), **arguments)
    _check(caught.value, place, what, remedy)


def _check(error: TemplateError, place: str, what: str, remedy: str) -> None:
    message, line, caret = re.split(r"\n  (?=.*\n  [ \t]*\^\Z)|\n  (?=[ \t]*\^\Z)", str(error))
    assert error.location == f"<t>:{place}"
    assert message.startswith(f"<t>:{place}: ")
    assert len(caret) == int(place.split(":")[1])
    assert line != ""
    assert what in message
    assert remedy in message


def test_missing_files_are_told(tmp_path: Any) -> None:
    with pytest.raises(TemplateError, match=r"cannot read the template .*none.radix"):
        load_template(tmp_path / "none.radix")
    (tmp_path / "a.radix").write_text('{% include "b.radix" %}')
    with pytest.raises(TemplateError, match=r"a\.radix:1:1: there is no template"):
        load_template(tmp_path / "a.radix")


# -- optional fields -------------------------------------------------------------------------


def test_a_field_with_a_default_need_not_be_given(fake: Make) -> None:
    program = template('Dear {{ name | default("reader") }},{{ n | default(2) | "03d" }}')
    assert program(runtime=fake()).text() == "Dear reader,002"
    assert program(name="Ada", n=7, runtime=fake()).text() == "Dear Ada,007"
    rows = [{"name": None}, {}, {"name": ""}]
    texts = [result.text for result in program.run_batch(rows, runtime=fake())]
    assert texts == ["Dear reader,002", "Dear reader,002", "Dear ,002"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "nobody"),
        ({"name": None}, "nobody"),
        ({"name": "Ada"}, "Ada"),
        ({"name": ""}, ""),
        ({"name": "Ada", "title": "Dr"}, "Dr Ada"),
    ],
)
def test_whether_a_field_is_there_can_be_asked(
    fake: Make, arguments: dict[str, Any], text: str
) -> None:
    program = template(
        "{% if name is not defined %}nobody{% else %}"
        "{% if title is defined %}{{ title }} {% end %}{{ name }}{% end %}"
    )
    assert program(runtime=fake(), **arguments).text() == text


def test_members_and_items_of_a_row_may_be_missing(fake: Make) -> None:
    program = template(
        '{{ row.title | default("untitled") }} by {{ row.authors[0] | default("anon") }}'
        "{% if row.year is none %}, undated{% end %}"
    )
    assert program(row={}, runtime=fake()).text() == "untitled by anon, undated"
    row = {"title": "Emma", "authors": ["Austen"], "year": 1815}
    assert program(row=row, runtime=fake()).text() == "Emma by Austen"
    assert program.run(runtime=fake()).text() == "untitled by anon, undated"


def test_declared_arguments_become_optional_and_generated_values_are_defined(fake: Make) -> None:
    program = template(
        "{% args name, mood %}{{ gen x }}{% if x is defined %}!{% end %}"
        '{{ mood | default("calm") }}{{ x | default("none") }}'
    )
    assert program(name="a", runtime=fake(["ok"])).text() == "ok!calmok"
    assert program.parameters == ("name", "mood")


def test_a_trace_takes_what_is_optional_as_not_given() -> None:
    graph = template('Dear {{ name | default("reader") }}{{ other }}').trace()
    assert graph.arguments() == ("other",)
    assert "Dear " in graph.show()


def test_what_an_included_file_binds_is_no_argument(tmp_path: Any, fake: Make) -> None:
    (tmp_path / "ask.radix").write_text("{{ gen answer }}")
    (tmp_path / "a.radix").write_text('{% include "ask.radix" %} {{ answer }}')
    program = load_template(tmp_path / "a.radix")
    assert program.parameters == ()
    assert program(runtime=fake(["yes"])).text() == "yes yes"
