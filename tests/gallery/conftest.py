"""One runtime on the default model for all examples: each opens its own when it runs by itself."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="session")
def gallery_runtime() -> Iterator[Any]:
    """SmolLM2, closed at the end of the session."""
    from radixlang.runtime.engine import Runtime

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
