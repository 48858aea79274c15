"""The engine: radix tree, KV pool, scheduler, models, sampler, constraints.

`from radixlang.runtime import Runtime` loads torch; importing this package alone does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixlang.runtime.runtime import Runtime

__all__ = ["Runtime"]


def __getattr__(name: str) -> object:
    if name == "Runtime":
        from radixlang.runtime.runtime import Runtime

        return Runtime
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
