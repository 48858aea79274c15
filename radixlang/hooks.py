"""Functions of upper packages that lower ones call, bound by name in the package's root.

So `Graph.explain` and `match` need not import the packages that implement them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_modules: dict[str, str] = {}


def bind(**modules: str) -> None:
    """Bind function names to the modules that have them, imported at the first call."""
    _modules.update(modules)


def hook(name: str) -> Callable[..., Any]:
    """The function that is bound to a name; its type is in a package above this one."""
    function: Callable[..., Any] = getattr(importlib.import_module(_modules[name]), name)
    return function
