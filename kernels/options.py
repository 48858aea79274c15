"""What a model asks of an attention layer, declared once and handed through to every backend."""

from __future__ import annotations

from dataclasses import dataclass

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

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(
                f"window={self.window} shows nothing; use None for a layer without a window"
            )
