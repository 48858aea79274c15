"""The tree that the last run left in its cache, drawn when it ended, for `radixlang tree`.

The cache ends with its process; the drawing and the figures below it are saved.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from radixlang.cache_dir import home
from radixlang.cli._runtime import Opened
from radixlang.errors import ParameterError
from radixlang.explain.savings import Savings, savings
from radixlang.records.json_text import dump_json

WIDTH = 60  # characters of text shown for a node


@dataclass(frozen=True, slots=True)
class LeftTree:
    """The tree that a run left. `ended` is local time; `str()` is what `radixlang tree` prints."""

    program: str
    model: str
    ended: str
    savings: Savings

    def to_json(self) -> dict[str, object]:
        """Everything by name, the drawing as `tree`."""
        return {"program": self.program, "model": self.model, "ended": self.ended,
                "tree": self.savings.tree, "savings": self.savings.to_json()}  # fmt: skip

    def __str__(self) -> str:
        return str(self.savings)


def left_tree(program: str, runtime: Opened, *, width: int = WIDTH) -> LeftTree:
    """The runtime's current tree."""
    ended = datetime.now().isoformat(" ", "seconds")
    found = savings(runtime, tree=True, max_text=width, max_lines=1000)
    return LeftTree(program, runtime.model_name, ended, found)


def keep(left: LeftTree) -> None:
    """Save the tree in place of the one before; only the user may read it, as it has prompts.

    A folder that cannot be written to is not an error.
    """
    path = _path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        with open(part, "w", encoding="utf-8", opener=_for_its_owner) as file:
            file.write(dump_json(asdict(left)))
        part.replace(path)


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def last() -> LeftTree:
    """The tree that the last run left.

    Raises:
        ParameterError: there was no run yet, or its file is damaged.
    """
    try:
        data = json.loads(_path().read_text(encoding="utf-8"))
        return LeftTree(**{**data, "savings": Savings(**data["savings"])})
    except FileNotFoundError as error:
        raise ParameterError(
            "no run has left a tree here yet; `radixlang run FILE` does, and "
            "`radixlang tree FILE` runs a program to draw its tree"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise ParameterError(f"{_path()} is damaged; the next run replaces it") from error


def _path() -> Path:
    return home() / "last_run.json"
