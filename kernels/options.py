"""What a model asks of an attention layer, declared once and handed through to every backend."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, fields

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionOptions:
    """How one kind of layer attends; keys and queries as they are in the call.

    Args:
        scale: factor of the scores, usually head_dim ** -0.5.
        window: a row sees its own token and the `window` - 1 before it; None: all of them.
        soft_cap: scores s become soft_cap * tanh(s / soft_cap); None: they stay.
        sinks: [num_heads] logits that take weight and give nothing; None: there are none.

    Raises:
        ValueError: a window that shows nothing.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: Tensor | None = None
    used: frozenset[str] = field(init=False, repr=False, default=frozenset())  # that are not None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(
                f"window={self.window} shows nothing; use None for a layer without a window"
            )
        names = [each.name for each in fields(self) if each.init]
        used = frozenset(name for name in names if getattr(self, name) is not None)
        object.__setattr__(self, "used", used)

    def check_known(self, known: Set[str], backend: str) -> None:
        """Refuse what a backend does not know, so that a new option is never dropped in silence.

        Raises:
            ValueError: names the options.
        """
        if not self.used <= known:
            missing = ", ".join(sorted(self.used - known))
            raise ValueError(
                f"attention with {missing} is not served by {backend}; use another backend"
            )
