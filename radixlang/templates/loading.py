"""Template files: a whole program in text, with the same graph as one in Python.

    {% args question, n=3 %}
    {% system %}Be brief.{% end %}
    {% user %}{{ question }}{% end %}
    {% fork i in [1, 2, 3] %}
    {% assistant %}{{ gen answer, max_tokens=40 }}{% end %}
    {% join answer %}

`{{ name }}` inserts an argument, a loop variable or a generated value; it is data and never
syntax. If a tag stands alone on its line, the line's blanks and line break are removed with it; one
line break before the `{% end %}` of a turn belongs to the tag, not to the content.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from radixlang.errors import TemplateError
from radixlang.keywords import RUN_NAMES
from radixlang.program.program import Program
from radixlang.state.state import State
from radixlang.templates.source import Environment, Source
from radixlang.templates.statements import Step, build
from radixlang.templates.syntax_errors import explained

if TYPE_CHECKING:
    from lark import Lark

_TAGS = re.compile(
    r"\{%\s*raw\s*%\}.*?\{%\s*endraw\s*%\}|\{#.*?#\}|"
    r"""\{%(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|.)*?%\}""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: its steps, its arguments with defaults, and the names it binds."""

    steps: tuple[Step, ...]
    parameters: dict[str, object]
    bound: frozenset[str] = frozenset()


def load_template(
    path: str | os.PathLike[str], *, root: str | os.PathLike[str] | None = None
) -> Program:
    """The program in a template file; includes are relative to its folder.

    Args:
        root: the folder below which included files must be, also those named with `..`, an
            absolute path or a link; None: the template's own folder.

    Raises:
        TemplateError: the file or one it includes is missing, wrong, or not below the root; the
            message has file, line and column.
    """
    file = Path(path)
    return _program(file.stem, _read(file), str(file), file.parent, Path(root or file.parent))


def template(text: str, *, name: str = "template", folder: str | None = None) -> Program:
    """The program in a template text; its includes are in or below `folder`."""
    place = Path(folder) if folder is not None else None
    return _program(name, text, f"<{name}>", place, place)


def _program(name: str, text: str, file: str, folder: Path | None, root: Path | None) -> Program:
    parsed = parse(text, file, folder, root, ())

    def run(s: State, /, **arguments: object) -> None:
        environment = Environment(arguments)
        for step in parsed.steps:
            step(s, environment)
        s._recorder.at = None

    parameters = [inspect.Parameter("s", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default)
        for key, default in parsed.parameters.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__doc__ = f"The template {file}."
    run.is_template = True  # type: ignore[attr-defined]
    return Program(run, name)


def parse(
    text: str, file: str, folder: Path | None, root: Path | None, including: tuple[str, ...]
) -> Template:
    """Parse a template and the ones it includes.

    Raises:
        TemplateError: the template is wrong; the message shows the place with a caret.
    """
    from lark.exceptions import UnexpectedInput, VisitError

    source = Source(text, file, folder, root, including, _lonely_tags(text), parse, _read)
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise source.error(*explained(error, text)) from None
    try:
        steps, parameters = build(tree, source)
    except VisitError as error:
        raise error.orig_exc from None
    for key in parameters:
        if key in RUN_NAMES:
            raise source.error(
                f"an argument cannot be called {key!r}: it is an option of run(); rename it",
                source.used.get(key, 0),
            )
    return Template(steps, parameters, frozenset(source.bound))


@functools.cache
def _parser() -> Lark:
    from lark import Lark

    grammar = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", lexer="contextual", propagate_positions=True)


def _lonely_tags(text: str) -> tuple[set[int], set[int]]:
    """Starts and ends of the tags that stand alone on their lines."""
    starts: set[int] = set()
    ends: set[int] = set()
    for found in _TAGS.finditer(text):
        before = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        line_end = text.find("\n", found.end())
        after = text[found.end() : len(text) if line_end < 0 else line_end]
        is_raw = re.match(r"\{%\s*raw", found.group()) is not None
        if not before.strip(" \t") and not after.strip(" \t") and not is_raw:
            starts.add(found.start())
            ends.add(found.end())
    return starts, ends


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TemplateError(f"cannot read the template {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TemplateError(f"the template {path} is not UTF-8: {error}") from error
