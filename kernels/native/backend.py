"""The native backend of a plan: the library's own plan, which decoders give to whole steps."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.attention import NativeAttentionPlan, NativeKV
from radixlang.kernels.native.library import Library
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.page_limits import PageTallies
from radixlang.kernels.plan.plan import AttentionPlan
from radixlang.kernels.plan.tree_batch import TreeBatch

HEAD_DIM_STEP = 8  # the library's heads are multiples of it


class NativeBackend:
    """Attends by the native library; see `AttentionBackend`.

    Args:
        batch: a checked one. head_dim is a multiple of HEAD_DIM_STEP.
    """

    name = "native"
    rotates = False
    can_advance = True

    def __init__(
        self, library: Library, batch: TreeBatch, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> None:
        self.plan = NativeAttentionPlan(
            library, batch, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim
        )

    def advance(self, plan: AttentionPlan) -> None:
        """Move the library's plan on."""
        self.plan.advance(plan.host_new_slots.astype(np.int32))

    def take_tallies(self) -> PageTallies | None:
        """See `AttentionPlan.take_tallies`."""
        return self.plan.take_tallies()

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer_kv: LayerKV,
        plan: AttentionPlan,
        options: AttentionOptions,
        rotations: Tensor | None,
    ) -> Tensor:
        """See `kernels.attention.attend`; `rotations` is None."""
        kv, threads = NativeKV(layer_kv), torch.get_num_threads()
        self.plan.store(kv, k, v, num_threads=threads)
        return self.plan.attend(kv, q, options, num_threads=threads).to(q.dtype)
