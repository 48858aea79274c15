"""One runtime on the default model for all examples, and the page that shows what they print."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="session")
def gallery_runtime() -> Iterator[Any]:
    """SmolLM2, closed at the end of the session."""
    from radixlang.runtime.runtime import Runtime

    with Runtime() as runtime:
        yield runtime


def load_example(name: str) -> ModuleType:
    """An example as a module; its main() has not run."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_example(
    gallery_runtime: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """Runs an example's main() on the shared runtime, its cache empty; returns what it printed."""

    @contextmanager
    def shared(*args: Any, **options: Any) -> Iterator[Any]:
        assert (args, options) == ((), {}), "the test's runtime has no options"
        gallery_runtime.flush_cache()
        gallery_runtime.reset_stats()
        yield gallery_runtime

    monkeypatch.setattr("radixlang.Runtime", shared)

    def run(name: str) -> str:
        load_example(name).main()
        return capsys.readouterr().out

    return run


class GalleryPage:
    """docs/gallery.md: a section an example, with its docstring and what it printed."""

    path = ROOT / "docs" / "gallery.md"

    def section(self, file: str) -> tuple[str, str]:
        """(the text above the output, the output) of an example's section."""
        found = self._find(file)
        return found["words"].strip(), found["shown"]

    def write(self, file: str, printed: str) -> None:
        """Put what was printed, and the example's docstring, into its section."""
        found, text = self._find(file), self.path.read_text(encoding="utf-8")
        words = docstring(file)
        inside = f"\n{words or found['words'].strip()}\n\n```{found['kind']}\n{printed}```\n"
        self.path.write_text(text[: found.start("words")] + inside + text[found.end() :], "utf-8")

    def _find(self, file: str) -> re.Match[str]:
        text = self.path.read_text(encoding="utf-8")
        pattern = (
            rf"^## \[{re.escape(file)}\]\(\.\./examples/{re.escape(file)}\)\n"
            r"(?P<words>(?:(?!```|## ).*\n)*)```(?P<kind>\w+)\n(?P<shown>(?:(?!```).*\n)*)```\n"
        )
        found = re.search(pattern, text, re.MULTILINE)
        assert found is not None, f"docs/gallery.md has no section for {file}"
        return found


def docstring(file: str) -> str:
    """What an example says of itself; "" for a template, whose section says it."""
    if not file.endswith(".py"):
        return ""
    return ast.get_docstring(ast.parse((EXAMPLES / file).read_text(encoding="utf-8"))) or ""


@pytest.fixture
def gallery_page() -> GalleryPage:
    """The page of the gallery."""
    return GalleryPage()
