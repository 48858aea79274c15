"""The package's public names: all there, all documented, and told by the pages."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import radixlang
from radixlang import errors

ROOT = Path(__file__).resolve().parents[2]


def test_star_import_gives_what_the_package_names() -> None:
    names: dict[str, Any] = {}
    exec("from radixlang import *", names)
    assert set(names) - {"__builtins__"} == set(radixlang.__all__)


def test_dir_shows_the_names_and_nothing_of_the_inside() -> None:
    shown = [name for name in dir(radixlang) if not name.startswith("__")]
    assert shown == sorted(radixlang.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+.*|unknown", radixlang.__version__)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "radixlang" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [
        node for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]  # fmt: skip
    found = {alias.name for node in ast.walk(block) if isinstance(node, ast.ImportFrom)
             for alias in node.names}  # fmt: skip
    assert found == set(radixlang.__all__)


@pytest.mark.parametrize("name", radixlang.__all__)
def test_public_names_are_documented(name: str) -> None:
    value = getattr(radixlang, name)
    assert _is_documented(value, name)
    if inspect.isclass(value):
        for part, member in vars(value).items():
            if not part.startswith("_"):
                assert _is_documented(member, part), f"{name}.{part} has no docstring"


def _is_documented(value: Any, name: str) -> bool:
    inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if not callable(inner):
        return True  # a field; its class tells what it is
    text = getattr(inner, "__doc__", None) or ""
    return bool(text.strip()) and not text.startswith(f"{name}(")  # a dataclass writes its own


def test_modules_say_what_they_are_for() -> None:
    without = [
        str(path.relative_to(ROOT))
        for folder in ("radixlang", "runtime", "kernels", "examples", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert without == []


def test_troubleshooting_tells_of_every_error() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    kinds = [name for name, value in vars(errors).items()
             if inspect.isclass(value) and issubclass(value, errors.RadixlangError)]  # fmt: skip
    assert [name for name in kinds if not re.search(rf"\b{name}\b", page)] == []


def test_module_is_the_command() -> None:
    command = [sys.executable, "-m", "radixlang"]
    told = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"radixlang {radixlang.__version__}\n"
    wrong = subprocess.run([*command, "rn"], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "choose from" in wrong.stderr
