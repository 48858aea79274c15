"""What the Triton kernels are told about one attention layer."""

from __future__ import annotations

from dataclasses import dataclass

from radixlang.kernels.options import AttentionOptions

OPTIONS = frozenset({"scale", "window", "soft_cap", "sinks"})  # arguments of the kernels


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Heads of a layer and how it attends; `group_size` query heads share a key head."""

    num_kv_heads: int
    group_size: int
    head_dim: int
    options: AttentionOptions

    def __post_init__(self) -> None:
        self.options.check_known(OPTIONS, "the Triton kernels")
