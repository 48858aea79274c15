"""Imports run one way: language ← protocol → runtime → kernels. No arrow runs back."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# what the runtime may know of the language: the seam, how a bar looks, where files are kept
SEAM = {
    "attention",
    "cache_dir",
    "constraints",
    "errors",
    "json_types",
    "process_owner",
    "progress",
    "protocol",
    "reply",
    "sampling_params",
    "spellings",
    "suggestions",
    "user_code",
}
HEAVY = {"torch", "triton", "transformers", "tokenizers", "llguidance", "gguf"}


def imports_of(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, wherever in it they stand."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write radixlang.…"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files(folder: str) -> list[Path]:
    return sorted(
        path
        for path in (ROOT / folder).rglob("*.py")
        if not (folder == "radixlang" and path.relative_to(ROOT).parts[1] in ("runtime", "kernels"))
    )


def local(name: str) -> list[str]:
    return name.split(".")[1:] if name.split(".")[0] == "radixlang" else []


@pytest.mark.parametrize("path", files("kernels"), ids=lambda p: str(p.relative_to(ROOT)))
def test_kernels_import_only_kernels(path: Path) -> None:
    for name in imports_of(path):
        parts = local(name)
        assert not parts or parts[0] == "kernels", f"{path.name} imports {name}"


@pytest.mark.parametrize("path", files("runtime"), ids=lambda p: str(p.relative_to(ROOT)))
def test_runtime_imports_kernels_and_the_seam(path: Path) -> None:
    for name in imports_of(path):
        parts = local(name)
        assert not parts or parts[0] in {"runtime", "kernels"} | SEAM, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", files("radixlang"), ids=lambda p: str(p.relative_to(ROOT)))
def test_language_imports_no_model_library(path: Path) -> None:
    for name in imports_of(path):
        assert name.split(".")[0] not in HEAVY, f"{path.name} imports {name}"
        if local(name)[:1] in (["runtime"], ["kernels"]):
            place = str(path.relative_to(ROOT / "radixlang"))
            assert place in RUNTIME_DOORS, f"{path.name} imports {name}"


# where the engine is opened; the root only names Runtime to type checkers
RUNTIME_DOORS = {"default_runtime.py", "cli/_runtime.py", "__init__.py", "workers/actor.py"}


@pytest.mark.parametrize("folder", ["radixlang", "runtime", "kernels", "examples", "tests"])
def test_our_folders_are_never_imported_by_their_bare_names(folder: str) -> None:
    for path in files(folder):
        bare = {"runtime", "kernels"} & {name.split(".")[0] for name in imports_of(path)}
        assert not bare, f"{path}: import radixlang.{bare} instead"


def test_import_radixlang_loads_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import radixlang; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "radixlang" in loaded
    assert not HEAVY & set(loaded)
    assert not {"numpy", "lark", "tqdm", "pydantic"} & set(loaded)
