"""Functions of upper packages that lower ones call, bound by name in the package's root.

A graph can be explained and a text can be matched, and neither knows by whom.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_modules: dict[str, str] = {}


def bind(**modules: str) -> None:
    """Say in which module a function of this name is; it is imported at its first call."""
    _modules.update(modules)


def hook(name: str) -> Callable[..., Any]:
    """The function that is bound to a name."""
    function: Callable[..., Any] = getattr(importlib.import_module(_modules[name]), name)
    return function
