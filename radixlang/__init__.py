"""radixlang: prompt programs that fork, on a runtime that never computes a prefix twice."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "radixlang.default_runtime": ("set_default_runtime", "get_default_runtime"),
    "radixlang.errors": (
        "BudgetError", "CancelledError", "ConstraintError", "DeadlineError", "IncompleteError",
        "InvalidConstraintError", "JoinError", "ModelError", "ModelFormatError",
        "ModelNotFoundError", "NeedsValueError", "NumericalError", "ParameterError",
        "PoolExhaustedError", "ProgramError", "PromptTooLongError", "RadixlangError",
        "RequestError", "RuntimeClosedError", "ScriptError", "StateClosedError", "TemplateError",
        "UnsupportedConstraintError", "ValueParseError",
    ),
    "radixlang.expressions": (
        "assistant", "assistant_begin", "assistant_end", "gen", "role", "select", "system",
        "system_begin", "system_end", "user", "user_begin", "user_end",
    ),
    "radixlang.params": ("SamplingParams",),
    "radixlang.program": ("Program", "function"),
    "radixlang.protocol": ("Completion", "Markup", "Message", "OptionScore", "Usage"),
    "radixlang.state": ("State",),
    "radixlang.report": ("Savings", "savings"),
    "radixlang.runtime.engine": ("Runtime",),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    pass


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'radixlang' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
