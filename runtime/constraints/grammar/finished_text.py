"""lark's own parse of a finished text, here or in a process that can be ended at any time."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import TypeAlias

import lark
from lark.exceptions import LarkError, UnexpectedInput

from radixlang.constraints.specs import Grammar
from radixlang.errors import ConstraintError
from radixlang.runtime.constraints.grammar.loading import MAX_EARLEY_CHARS, LoadedGrammar, load
from radixlang.runtime.constraints.time_limit import within

MAX_CHECK_S = 2.0
MAX_OUTSIDE_S = 5.0
_CODE = "from radixlang.runtime.constraints.grammar.finished_text import answer; answer()"
ParseTree: TypeAlias = "lark.Tree[lark.Token]"


class FinishedText:
    """lark's parse of a finished text: LALR first, then Earley if it is allowed and affordable."""

    def __init__(self, loaded: LoadedGrammar) -> None:
        self.loaded = loaded

    def tree(self, text: str) -> ParseTree:
        """lark's tree.

        Raises:
            ConstraintError: lark cannot parse the text.
        """
        parsers = [p for p in (self.loaded.lalr, self.loaded.earley) if p is not None]
        error: Exception | None = None
        for parser in parsers:
            if parser is self.loaded.earley and len(text) > MAX_EARLEY_CHARS:
                if error is None:
                    raise ConstraintError(
                        f"the text has {len(text):,} characters, too many for an Earley parse "
                        f"(at most {MAX_EARLEY_CHARS:,}); make the grammar LALR"
                    )
                break
            try:
                return parser.parse(text)
            except (LarkError, RecursionError) as failure:
                error = error or failure
        raise ConstraintError(f"lark does not parse the finished text: {_brief(error, text)}")

    def check(self, text: str) -> None:
        """Raise a ConstraintError if lark cannot parse a text in time; see `check_outside`."""
        try:
            within(MAX_CHECK_S, lambda: self.tree(text))
        except TimeoutError as error:
            raise ConstraintError(
                f"lark's parse of the finished text is too slow: {error}"
            ) from None

    def captures(self, text: str) -> dict[str, str]:
        """The text of the first node of each captured name."""
        if not self.loaded.spec.captures:
            return {}
        tree = self.tree(text)
        found: dict[str, str] = {}
        for node in _in_order(tree):
            name, span = _span(node)
            if name in self.loaded.spec.captures and span is not None:
                found.setdefault(name, text[span[0] : span[1]])
        return found


def _in_order(tree: ParseTree) -> Iterator[ParseTree | lark.Token]:
    todo: list[ParseTree | lark.Token] = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, lark.Tree):
            todo.extend(reversed(node.children))


def _span(node: ParseTree | lark.Token) -> tuple[str, tuple[int, int] | None]:
    if isinstance(node, lark.Tree):
        empty = getattr(node.meta, "empty", True)
        return str(node.data), None if empty else (node.meta.start_pos, node.meta.end_pos)
    if isinstance(node, lark.Token):
        return str(node.type), (int(node.start_pos or 0), int(node.end_pos or 0))
    return "", None


def _brief(error: Exception | None, text: str) -> str:
    if isinstance(error, UnexpectedInput):
        return f"line {error.line}, column {error.column}\n{error.get_context(text)}"
    return str(error)


def check_outside(spec: Grammar, text: str) -> None:
    """Parse a finished text with lark in another process.

    It is for grammars whose terminals may take lark's backtracking lexer exponential time: one
    match of a regex is a single call into C, which this process could not end.

    Raises:
        ConstraintError: lark cannot parse it, or takes more than MAX_OUTSIDE_S seconds.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CODE],
            input=pickle.dumps((spec, text)),
            stdout=subprocess.PIPE,
            timeout=MAX_OUTSIDE_S,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise ConstraintError(f"the finished text could not be checked: {error}") from None
    message: str = pickle.loads(done.stdout)
    if message:
        raise ConstraintError(message)


def answer() -> None:
    """Run in the other process: read a grammar and a text, write the text's error."""
    spec, text = pickle.load(sys.stdin.buffer)
    message = ""
    try:
        FinishedText(load(spec)).tree(text)
    except ConstraintError as error:
        message = str(error)
    sys.stdout.buffer.write(pickle.dumps(message))
