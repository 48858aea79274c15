"""The KV pool of one layer, as every backend reads and writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerKV:
    """The keys and values of one layer, by slot.

    Cold segments may live in int8 planes of the same layout, with one scale for each token and
    head; a batch says which segments do (`TreeBatch.segment_quantized`).

    Raises:
        ValueError: a plane that is not contiguous.
    """

    k: Tensor  # [num_slots, num_kv_heads, head_dim]
    v: Tensor  # [num_slots, num_kv_heads, head_dim]
    k_int8: Tensor | None = None  # [num_cold_slots, num_kv_heads, head_dim]
    v_int8: Tensor | None = None
    k_scale: Tensor | None = None  # [num_cold_slots, num_kv_heads], float32
    v_scale: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("k", "v", "k_int8", "v_int8"):
            plane: Tensor | None = getattr(self, name)
            if plane is not None and not plane.is_contiguous():
                raise ValueError(
                    f"{name} has strides {plane.stride()}; kernels read whole tokens, "
                    "so the pool must be contiguous"
                )

    def write(self, slots: Tensor, run: slice | None, k: Tensor, v: Tensor) -> None:
        """Store k and v [num_tokens, num_kv_heads, head_dim] at `slots` [num_tokens].

        `run` is the same slots where they are consecutive: a slice is written fastest.
        """
        if run is not None:
            self.k[run] = k
            self.v[run] = v
        else:
            self.k.index_copy_(0, slots, k.to(self.k.dtype))
            self.v.index_copy_(0, slots, v.to(self.v.dtype))

    def quantized_planes(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """k_int8, v_int8, k_scale and v_scale.

        Raises:
            ValueError: this layer has none.
        """
        k, v, k_scale, v_scale = self.k_int8, self.v_int8, self.k_scale, self.v_scale
        if k is None or v is None or k_scale is None or v_scale is None:
            raise ValueError(
                "the batch reads or writes quantised segments, and this layer has no int8 planes; "
                "give LayerKV k_int8, v_int8, k_scale and v_scale"
            )
        return k, v, k_scale, v_scale


class KVLayers(Protocol):
    """The KV pools of a model's layers, by layer: a KVCache, or a list of LayerKV."""

    def __getitem__(self, layer: int, /) -> LayerKV: ...
