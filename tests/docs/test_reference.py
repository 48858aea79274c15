"""The reference pages name every public name, parameter and method: none is left to be guessed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import radixlang
from radixlang.graph import lints
from radixlang.program.program import RUN_NAMES
from radixlang.records import batch
from radixlang.state.expressions.builders import GEN_NAMES
from radixlang.state.recording import groups
from radixlang.testing import fake_backend as testing

DOCS = Path(__file__).resolve().parents[2] / "docs"
FUNCTIONS: dict[str, list[Callable[..., Any]]] = {
    "language.md": [
        radixlang.select, radixlang.State.fork, groups.join, batch.as_completed, batch.run_batch,
        radixlang.best_of, radixlang.majority, radixlang.beam, radixlang.retry, radixlang.resume,
        testing.FakeBackend,
    ],
    "runtime.md": [radixlang.Runtime],
    "constraints.md": [radixlang.Grammar, radixlang.JsonSchema, radixlang.Tools],
}  # fmt: skip
CLASSES = {
    "language.md": [
        radixlang.State, radixlang.ForkGroup, radixlang.Result, radixlang.Completion,
        radixlang.Explanation,
    ],
    "runtime.md": [radixlang.Runtime],
}  # fmt: skip
# told by what they are for (turns as blocks), or parts that programs have no use for
UNTOLD = {"kwargs", "role_begin", "role_end", "adopt_child", "children_range", "is_closed",
          "nodes_since_fork", "codec", "program", "is_exact"}  # fmt: skip


def words(*pages: str) -> set[str]:
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in pages)
    return set(re.findall(r"\w+", text))


def test_every_public_name_is_in_the_reference() -> None:
    told = words("language.md", "constraints.md", "runtime.md", "templates.md", "tree.md",
                 "troubleshooting.md", "token_level.md", "search.md", "server.md",
                 "rollouts.md", "thinking.md", "workers.md")  # fmt: skip
    assert [name for name in radixlang.__all__ if name not in told] == []


def test_every_option_of_gen_and_run_is_in_the_reference() -> None:
    told = words("language.md")
    assert [name for name in (*GEN_NAMES, *RUN_NAMES) if name not in told] == []


@pytest.mark.parametrize("page", FUNCTIONS)
def test_every_parameter_is_in_the_reference(page: str) -> None:
    told = words(page) | UNTOLD
    for function in FUNCTIONS[page]:
        names = [
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        assert [name for name in names if name not in told | {"self", "state"}] == [], function


@pytest.mark.parametrize("page", CLASSES)
def test_every_method_is_in_the_reference(page: str) -> None:
    told = words(page) | UNTOLD
    for kind in CLASSES[page]:
        members = [name for name in dir(kind) if not name.startswith("_")]
        assert [name for name in members if name not in told] == [], kind


def test_every_lint_is_explained() -> None:
    codes = set(re.findall(r"RL\d{3}", lints.__doc__ or ""))
    assert codes <= words("troubleshooting.md")
    assert len(codes) >= 6
