"""Grammars that others wrote: how many lark loads, and how many of those can be masks.

Grammars are read where they lie: .lark files, and texts in Python files that define a rule
`start`. A checkout of lark's own repository has some 230 that lark loads, most in its tests; the
installed package ships four files.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import lark

from radixlang.constraints.specs import Grammar
from radixlang.errors import ConstraintError
from radixlang.runtime.constraints.compiled import ConstraintCompiler
from radixlang.runtime.constraints.vocabulary import Vocabulary

Row = tuple[str, str, str]
_RULE = re.compile(r"^[ \t]*[?!]*(_?[a-z]\w*)(?:\{[^}]*\})?(?:\.-?\d+)?[ \t]*:", re.MULTILINE)


def repository_row(folder: Path | None) -> list[Row]:
    """How many grammars of a folder are lowered; those refused are printed with their reason."""
    found = folder or Path(lark.__file__).parent
    compiler = ConstraintCompiler(Vocabulary.of_bytes(), max_cached=4)
    num_loaded = num_lowered = 0
    for place, spec in _grammars(found):
        if not _loads(spec):
            continue
        num_loaded += 1
        try:
            compiler.compile(spec)
            num_lowered += 1
        except ConstraintError as error:
            print(f"  {place}: {str(error).splitlines()[0]}")
    name = "grammars in --grammars" if folder else "grammars shipped with lark"
    return [(name, "43 of 48, the rest by name", f"{num_lowered} of {num_loaded} that lark loads")]


def _grammars(folder: Path) -> Iterator[tuple[str, Grammar]]:
    for path in sorted(folder.rglob("*.lark")):
        text = path.read_text(encoding="utf-8")
        rules = _RULE.findall(text)
        if rules:  # a file of terminals is no grammar by itself
            start = "start" if "start" in rules else rules[0]
            yield path.name, Grammar(text, start=start, source_path=str(path))
    for path in sorted(folder.rglob("*.py")):
        for line, text in _texts(path):
            if "start" in _RULE.findall(text):
                yield f"{path.name}:{line}", Grammar(text, source_path=str(path))


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _loads(spec: Grammar) -> bool:
    """Whether lark itself builds a parser."""
    for parser in ("lalr", "earley"):
        try:
            lark.Lark(spec.text, start=spec.start, parser=parser, source_path=spec.source_path)
            return True
        except Exception:  # whatever a grammar that is wrong on purpose makes fail
            continue
    return False
