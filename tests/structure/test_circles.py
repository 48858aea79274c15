"""No circle of packages or files, lazy and typing imports counted; no class name with two owners.

A name is what it is everywhere, and a file can be read before those that import it.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Files of one class that offer its methods to each other; why they may.
ONE_CLASS = {
    "graph": "methods of Graph draw it and write it",
    "state": "a State forks into a ForkGroup of States, and runs programs on States",
    "testing": "a fake branch and the fake backend that answers it",
}
# What is left of old circles: sets of packages, and packages whose files are in one.
PACKAGE_CIRCLES_LEFT: list[set[str]] = []
FILE_CIRCLES_LEFT: list[set[str]] = []
NAMES_LEFT: set[str] = set()

Arrows = Mapping[str, Set[str]]


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Modules by their names without `radixlang.`, except the root, which binds all of them."""
    found = {}
    for path in _paths():
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[1:] if parts[0] == "radixlang" else parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def _paths() -> Iterator[Path]:
    for folder in ("radixlang", "runtime", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            if parts[:2] not in (("radixlang", "runtime"), ("radixlang", "kernels")):
                yield path


@functools.cache
def file_arrows() -> Arrows:
    """Module → modules that it imports, wherever in it the import stands."""
    return {name: set(_imported(tree)) - {name} for name, tree in modules().items()}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            own = name.removeprefix("radixlang.")
            if name != own:
                yield own if own in modules() else own.rpartition(".")[0]


def package_of(module: str) -> str:
    """`program` for program.tools, `runtime.cache` for runtime.cache.lease, a top file itself."""
    depth = 2 if module.split(".")[0] in ("runtime", "kernels") else 1
    return ".".join(module.split(".")[:depth])


def package_arrows() -> Arrows:
    """Package → packages that its files import."""
    arrows = defaultdict(set)
    for module, imported in file_arrows().items():
        arrows[package_of(module)] |= {package_of(name) for name in imported if name}
    return {package: targets - {package} for package, targets in arrows.items()}


def circles(arrows: Arrows) -> list[set[str]]:
    """Sets of more than one node in which each reaches every other."""
    reached = {node: _reachable(arrows, node) for node in arrows}
    found: list[set[str]] = []
    for node in sorted(arrows):
        circle = {other for other in reached[node] if node in reached.get(other, ())}
        if circle - {node} and not any(node in known for known in found):
            found.append(circle | {node})
    return found


def _reachable(arrows: Arrows, start: str) -> set[str]:
    seen: set[str] = set()
    work = [start]
    while work:
        fresh = set(arrows.get(work.pop(), ())) - seen
        seen |= fresh
        work += fresh
    return seen


def class_owners() -> dict[str, list[str]]:
    """Class name → the modules that define it; names with an underscore are a file's own."""
    owners = defaultdict(list)
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners[node.name].append(module)
    return owners


def test_packages_import_one_way() -> None:
    unknown = [circle for circle in circles(package_arrows())
               if not any(circle <= known for known in PACKAGE_CIRCLES_LEFT)]  # fmt: skip
    assert unknown == []


def test_files_import_one_way() -> None:
    unknown = []
    for circle in circles(file_arrows()):
        packages = {package_of(name) for name in circle}
        is_known = len(packages) == 1 and packages <= set(ONE_CLASS)
        if not is_known and not any(packages <= known for known in FILE_CIRCLES_LEFT):
            unknown.append(sorted(circle))
    assert unknown == []


def test_class_names_have_one_owner() -> None:
    shared = {name: owners for name, owners in class_owners().items() if len(owners) > 1}
    assert {name: owners for name, owners in shared.items() if name not in NAMES_LEFT} == {}


@pytest.mark.parametrize("package", sorted(ONE_CLASS))
def test_an_exception_is_still_needed(package: str) -> None:
    found = [{package_of(name) for name in circle} for circle in circles(file_arrows())]
    assert {package} in found


def test_what_is_left_is_still_there() -> None:
    """A circle that is gone is taken out of the lists above."""
    packages = circles(package_arrows())
    files = [{package_of(name) for name in circle} for circle in circles(file_arrows())]
    shared = {name for name, owners in class_owners().items() if len(owners) > 1}
    assert [each for each in PACKAGE_CIRCLES_LEFT if not any(p <= each for p in packages)] == []
    assert [each for each in FILE_CIRCLES_LEFT if not any(f <= each for f in files)] == []
    assert NAMES_LEFT - shared == set()


def test_circles_are_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert circles(arrows) == [{"a", "b", "c"}]
