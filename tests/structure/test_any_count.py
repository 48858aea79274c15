"""`Any` only where a value's type cannot be said: the count may fall, and does not rise."""

from __future__ import annotations

import ast
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CEILING = 260
# aliases that contain Any, with the reason beside their definition
ALIASES = {
    "AnyFuture",  # of code that fails or drops futures
    "Argument",  # of an operation of a parsed regex
    "Codec",  # of the values of one type
    "Fields",  # of a file, whose types are checked when it is read
    "JsonBody",  # of a request or reply: each field has its own type
    "KnownTexts",  # keys are the arguments of several methods
    "LogitBias",  # keys of a dict are invariant
    "LogitsFunction",  # arrays of any library
    "Metadata",  # of a GGUF file: each key has its own type
    "Part",  # of a tokenizer's JSON
    "Parts",  # of a tool, whose schema has several forms
    "RopeParameters",  # of a model's config.json
    "Schema",  # a JSON schema that is an object
    "Settings",  # JSON of a model's folder
    "Test",  # of a keyword, each with its own type of value
    "Value",  # of an expression of a template
}


def sources() -> Iterator[Path]:
    for folder in ("radixlang", "runtime", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.relative_to(ROOT).parts[:2] not in _LINKS:
                yield path


_LINKS = {("radixlang", "runtime"), ("radixlang", "kernels")}


def names_in(tree: ast.AST) -> Iterator[str]:
    """Names that a file uses, also in annotations that are text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        for text in _texts(node):
            with contextlib.suppress(SyntaxError):  # an option of a Literal
                yield from names_in(ast.parse(text, mode="eval"))


def _texts(node: ast.AST) -> Iterator[str]:
    notes: list[ast.expr | None] = []
    if isinstance(node, (ast.AnnAssign, ast.arg)):
        notes = [node.annotation]
        if isinstance(node, ast.AnnAssign) and getattr(node.annotation, "id", "") == "TypeAlias":
            notes.append(node.value)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        notes = [node.returns]
    for note in notes:
        for part in ast.walk(note) if note is not None else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def count_any() -> Counter[str]:
    """Uses of Any by package, imports not counted."""
    found: Counter[str] = Counter()
    for path in sources():
        names = names_in(ast.parse(path.read_text(encoding="utf-8")))
        package = "/".join(path.relative_to(ROOT).parts[:2])
        found[package] += sum(name in ("Any", "typing.Any") for name in names)
    return +found


def aliases_of_any() -> set[str]:
    """Names of aliases whose value contains Any."""
    found = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AnnAssign) and "TypeAlias" in names_in(node.annotation):
                name = getattr(node.target, "id", "")
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
            else:
                continue
            if name[:1].isupper() and not name.isupper() and "Any" in names_in(node):
                found.add(name)
    return found


def test_any_does_not_spread() -> None:
    found = count_any()
    assert sum(found.values()) <= CEILING, found.most_common()


def test_no_alias_hides_any_without_being_listed() -> None:
    assert aliases_of_any() == ALIASES


def test_text_annotations_are_counted() -> None:
    tree = ast.parse("x: TypeAlias = 'dict[str, Any]'\ndef f(a: 'Any', b: Any) -> 'Any': ...")
    assert list(names_in(tree)).count("Any") == 4
