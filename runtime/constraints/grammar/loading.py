"""A lark grammar loaded by lark itself, with errors that show the place."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import lark
from lark.exceptions import LarkError
from lark.grammar import Rule
from lark.lexer import PatternStr, TerminalDef
from lark.load_grammar import Grammar as LarkGrammar
from lark.load_grammar import load_grammar

from radixlang.constraints.specs import Grammar
from radixlang.errors import (
    ConstraintError,
    InvalidConstraintError,
    UnsupportedConstraintError,
)
from radixlang.runtime.constraints.grammar.alternatives import refuse_many_alternatives
from radixlang.runtime.constraints.grammar.error_location import locate, locate_symbol
from radixlang.runtime.constraints.regex.backtracking import MAX_CUTS, backtracks
from radixlang.runtime.constraints.regex.python_regex import translate

MAX_GRAMMAR_CHARS = 200_000
MAX_RULES = 10_000
MAX_LALR_RULES = 3_000
MAX_EARLEY_CHARS = 20_000  # Earley takes about a second for 11 kB; beyond this it is not used


@dataclass(frozen=True, slots=True)
class LoadedGrammar:
    """lark's own view of a grammar.

    Args:
        spec: what it was loaded from.
        terminals: lark's terminal definitions, imports and templates resolved.
        rules: rules compiled to BNF.
        ignored: names of terminals that are skipped.
        lalr: the LALR parser; None if the grammar has conflicts or Earley was asked for.
        earley: the Earley parser, if it is to be used.
        slow: a terminal for which lark's lexer may need exponential time; empty without one.
    """

    spec: Grammar
    terminals: tuple[TerminalDef, ...]
    rules: tuple[Rule, ...]
    ignored: frozenset[str]
    lalr: lark.Lark | None
    earley: lark.Lark | None
    slow: str


def load(spec: Grammar) -> LoadedGrammar:
    """Read a grammar.

    Raises:
        InvalidConstraintError: lark refuses it; the message shows line, column and a caret.
        UnsupportedConstraintError: it is too large, or needs the user's own lexer.
    """
    if len(spec.text) > MAX_GRAMMAR_CHARS:
        raise UnsupportedConstraintError(
            f"the grammar has {len(spec.text):,} characters; "
            f"at most {MAX_GRAMMAR_CHARS:,} are taken"
        )
    grammar = _read(spec)
    _check_start(spec, grammar)
    _check_regexes(spec, grammar)
    _refuse_declared(spec, grammar)
    _refuse_growing_templates(spec, grammar)
    refuse_many_alternatives(spec, grammar)
    _keep_captured(spec, grammar)
    slow = _backtracking(spec, grammar)
    lalr = None if spec.parser == "earley" else _build(spec, grammar, "lalr")
    earley = None if spec.parser == "lalr" else _build(spec, grammar, "earley")
    found = lalr or earley
    if found is None:
        _build(spec, grammar, spec.parser if spec.parser != "auto" else "earley", must=True)
        raise InvalidConstraintError("lark can build no parser of this grammar")
    rules = tuple(found.rules)
    if len(rules) > MAX_RULES:
        raise UnsupportedConstraintError(
            f"the grammar has {len(rules):,} rules once expanded; at most {MAX_RULES:,} are taken"
        )
    return LoadedGrammar(
        spec, tuple(found.terminals), rules, frozenset(found.ignore_tokens), lalr, earley, slow
    )


def _read(spec: Grammar) -> LarkGrammar:
    read: Any = load_grammar  # untyped in lark
    try:
        grammar: LarkGrammar = read(
            spec.text, spec.source_path or "<grammar>", list(spec.import_paths), False
        )[0]
    except RecursionError:
        raise UnsupportedConstraintError("the grammar is nested too deeply") from None
    except FileNotFoundError as error:
        raise InvalidConstraintError(
            f"bad grammar: %import finds no {error.filename}; name its folder in import_paths="
        ) from None
    except LarkError as error:
        raise InvalidConstraintError(_with_place(spec.text, error)) from None
    except Exception as error:  # a wrong grammar may raise any error inside lark
        raise InvalidConstraintError(f"bad grammar: {error}") from None
    return grammar


def _build(
    spec: Grammar, grammar: LarkGrammar, parser: Literal["lalr", "earley"], must: bool = False
) -> lark.Lark | None:
    """A parser of the grammar; None if this kind of parser does not support it."""
    if parser == "lalr" and len(grammar.rule_defs) > MAX_LALR_RULES:
        return None
    must = must or spec.parser == parser or parser == "earley"
    try:
        return lark.Lark(
            grammar,
            start=spec.start,
            parser=parser,
            propagate_positions=True,
            import_paths=list(spec.import_paths),
        )
    except RecursionError:
        raise UnsupportedConstraintError("the grammar is nested too deeply") from None
    except Exception as error:  # as above
        if not must:
            return None
        raise InvalidConstraintError(_with_place(spec.text, error)) from None


def _with_place(text: str, error: Exception) -> str:
    """lark's message; if it names a symbol without a place, the place is looked up."""
    message = _in_words(error)
    if "line" in message and "column" in message:
        return f"bad grammar: {message}"
    named = re.search(r"(?:Rule|Terminal|rule|terminal|Undefined|symbol)s?:? '?(\w+)", message)
    quoted = re.search(r"'(\w+)'|\b([A-Z_]{2,})\b", message)
    names = [found for m in (named, quoted) if m for found in m.groups() if found]
    name = next((n for n in names if re.search(rf"(?<!\w){re.escape(n)}(?!\w)", text)), None)
    if name is None:
        return f"bad grammar: {message}"
    use = rf"(?<![\w])(?P<at>{re.escape(name)})(?!\w)"
    return locate(text, use, f"bad grammar: {message.splitlines()[0]}")


def _in_words(error: Exception) -> str:
    """lark's message, with a remedy where lark gives none."""
    message = str(error).strip() or type(error).__name__
    empty = re.search(r"zero-width regexps?\", TerminalDef\((\w*'\w+'|\w+)", message)
    if empty:
        return (
            f"terminal {empty[1]} can match the empty text; let it match one character or more, "
            "and put ? behind it where it may be missing"
        )
    if "collision" in message:
        return f'{message}\nparser="auto" and parser="earley" take a grammar with conflicts'
    return message


def _check_start(spec: Grammar, grammar: LarkGrammar) -> None:
    names = [str(name) for name, *_ in grammar.rule_defs]
    if spec.start not in names:
        own = [name for name in names if not name.startswith("_")]
        raise InvalidConstraintError(
            f"the grammar has no rule {spec.start!r} to start from; its rules are "
            f"{', '.join(own[:8]) or 'none'}; name one in Grammar(text, start=…)"
        )


def _check_regexes(spec: Grammar, grammar: LarkGrammar) -> None:
    """Compile every regex separately, because lark's errors of regexes have no place."""
    trees = [tree for _, (tree, _) in grammar.term_defs if tree is not None]
    trees += [tree for _, _, tree, _ in grammar.rule_defs]
    for tree in trees:
        for token in tree.scan_values(lambda value: getattr(value, "type", "") == "REGEXP"):
            body, _, flags = str(token)[1:].rpartition("/")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FutureWarning)
                    re.compile(f"(?{flags}){body}" if flags else body)
            except (re.error, RecursionError, OverflowError) as error:
                message = f"bad regex: {error}"
                raise InvalidConstraintError(
                    locate(spec.text, re.escape(str(token)), message)
                ) from None


def _refuse_declared(spec: Grammar, grammar: LarkGrammar) -> None:
    """Refuse %declare, which leaves a terminal to the user's own lexer: masks cannot follow it."""
    for name, (tree, _) in grammar.term_defs:
        if tree is None:
            message = f"%declare {name} needs a lexer in Python code, which masks cannot follow"
            raise UnsupportedConstraintError(
                locate(spec.text, rf"%declare\s[^\n]*?(?P<at>{re.escape(name)})", message)
            )


def _refuse_growing_templates(spec: Grammar, grammar: LarkGrammar) -> None:
    """Refuse a template that calls itself with ever larger arguments: lark would never end."""
    calls: dict[str, set[str]] = {}
    growing: set[str] = set()
    for name, params, tree, _ in grammar.rule_defs:
        if not params:
            continue
        for usage in tree.find_data("template_usage"):
            called = str(getattr(usage.children[0], "name", ""))
            calls.setdefault(name, set()).add(called)
            arguments = [a for a in usage.children[1:] if isinstance(a, lark.Tree)]
            if any(True for a in arguments for _ in a.find_data("template_usage")):
                growing.add(name)
    for name in growing & {n for n in calls if n in _reachable(calls, n)}:
        raise UnsupportedConstraintError(
            locate_symbol(spec.text, name, f"template {name} expands itself without end")
        )


def _reachable(calls: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = list(calls.get(start, ()))
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo.extend(calls.get(name, ()))
    return found


def _backtracking(spec: Grammar, grammar: LarkGrammar) -> str:
    """A terminal for which lark's own lexer may backtrack exponentially; empty without one.

    Raises:
        UnsupportedConstraintError: lark's own lexer would use it.
    """
    terminals = _terminals(spec, grammar)
    slow = next((t.name for t in terminals if _backtracks(t)), "")
    longest = max((len(t.pattern.value) for t in terminals if _is_literal(t)), default=0)
    if slow and (longest > MAX_CUTS or spec.captures):
        message = (
            f"terminal {slow}: a repetition without end repeats what can be cut in several ways, "
            "as in (a+)+b, and lark's lexer would try them all; write it so that a text can be "
            "read in one way only"
        )
        raise UnsupportedConstraintError(locate_symbol(spec.text, slow, message))
    return slow


def _is_literal(terminal: TerminalDef) -> bool:
    return isinstance(terminal.pattern, PatternStr)


def _backtracks(terminal: TerminalDef) -> bool:
    if _is_literal(terminal):
        return False
    try:
        return backtracks(translate(terminal.pattern.to_regexp(), whole=False).pattern)
    except ConstraintError:
        return False  # lowering the terminals refuses it, with its place


def _terminals(spec: Grammar, grammar: LarkGrammar) -> list[TerminalDef]:
    """The terminals that a parser of the grammar would have."""
    try:
        terminals: list[TerminalDef] = grammar.compile([spec.start], set())[0]
    except Exception:
        return []  # building the parser reports the error
    return terminals


def _keep_captured(spec: Grammar, grammar: LarkGrammar) -> None:
    """Keep captured rules visible in the tree."""
    by_name = {name: options for name, _, _, options in grammar.rule_defs}
    terminals = {name for name, _ in grammar.term_defs}
    aliases = {
        str(getattr(alias.children[1], "name", alias.children[1]))
        for _, _, tree, _ in grammar.rule_defs
        for alias in tree.find_data("alias")
        if alias.children[1] is not None
    }
    for name in spec.captures:
        if name.startswith("_") or name not in {*by_name, *terminals, *aliases}:
            raise InvalidConstraintError(
                f"the capture {name!r} names no visible rule, alias or terminal of the grammar"
            )
        if name in by_name and by_name[name] is not None:
            by_name[name].expand1 = False
