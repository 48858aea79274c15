"""The options of a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from radixlang.errors import ParameterError
from radixlang.protocol import AdapterUse, adapter_use


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a whole run.

    A `seed` of None draws one and records it. `defaults` are sampling parameters for every gen that
    does not set them. `timeout` is in seconds; `max_total_tokens` bounds the generated tokens
    of all branches together. `adapter` computes all that names no other; its name alone will do.
    """

    seed: int | None = None
    defaults: Mapping[str, object] = field(default_factory=dict)
    timeout: float | None = None
    max_total_tokens: int | None = None
    namespace: str = ""
    adapter: AdapterUse | None = None

    def __post_init__(self) -> None:
        _require(
            self.seed is None or hasattr(self.seed, "__index__"),
            "seed",
            self.seed,
            "an integer, or None to draw one",
        )
        _require(_is_kind(self.timeout, (int, float)) and (self.timeout or 0) >= 0,
                 "timeout", self.timeout, "a number of seconds, or None")  # fmt: skip
        most = self.max_total_tokens
        _require(_is_kind(most, int) and (most is None or most >= 1),
                 "max_total_tokens", self.max_total_tokens,
                 "an integer of at least 1, or None for no bound")  # fmt: skip
        _require(isinstance(self.namespace, str), "namespace", self.namespace, "a string")
        object.__setattr__(self, "adapter", adapter_use(self.adapter))


def _is_kind(value: object, kind: type | tuple[type, ...]) -> bool:
    return value is None or (isinstance(value, kind) and not isinstance(value, bool))


def _require(ok: bool, name: str, value: object, expected: str) -> None:
    if not ok:
        raise ParameterError(f"{name} must be {expected}, got {value!r}")
