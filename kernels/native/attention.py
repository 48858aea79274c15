"""Tree attention by the native library: the Python side of attention.h.

A row's result has the same bits alone and in any company, however its path is cut into segments,
and on any number of threads.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.library import Float, Int, Library, Long, Pointer
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.page_limits import BLOCK, PageLimits, PageTallies
from radixlang.kernels.plan.tree_batch import TreeBatch

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in simd.h


class _Layer(ctypes.Structure):
    _fields_ = (
        ("k", Pointer), ("v", Pointer), ("k_int8", Pointer), ("v_int8", Pointer),
        ("k_scale", Pointer), ("v_scale", Pointer), ("dtype", Int),
    )  # fmt: skip


class _Batch(ctypes.Structure):
    _fields_ = (
        ("slot_offset", Pointer), ("slots", Pointer), ("parent", Pointer), ("start", Pointer),
        ("quantized", Pointer), ("leaf", Pointer), ("query_start", Pointer),
        ("num_queries", Pointer), ("num_segments", Int), ("num_branches", Int),
    )  # fmt: skip


class NativeOptions(ctypes.Structure):
    """rl_attention_options of attention.h; `kept` is what it points to."""

    _fields_ = (("scale", Float), ("window", Long), ("soft_cap", Float), ("sinks", Pointer))
    kept: Tensor | None

    @classmethod
    def of(cls, options: AttentionOptions, num_heads: int) -> NativeOptions:
        """The options of a layer.

        Raises:
            ValueError: the library has no such option, or sinks of another number of heads.
        """
        options.check_known(OPTIONS, "the native library")
        sinks = None
        if options.sinks is not None:
            sinks = _float32(options.sinks, (num_heads,), "sinks")
        address = None if sinks is None else sinks.data_ptr()
        struct = cls(options.scale, options.window or 0, options.soft_cap or 0.0, address)
        struct.kept = sinks
        return struct


OPTIONS = frozenset(name for name, _ in NativeOptions._fields_)  # what the library can do


class NativeKV:
    """The KV pool of one layer by its addresses; make one a layer and keep it with the pool.

    Raises ValueError for a pool that is not on the CPU or of a dtype other than float32, bfloat16
    and float16.
    """

    def __init__(self, layer_kv: LayerKV) -> None:
        planes = (layer_kv.k, layer_kv.v, layer_kv.k_int8, layer_kv.v_int8)
        scales = (layer_kv.k_scale, layer_kv.v_scale)
        dtype = layer_kv.k.dtype
        if dtype not in DTYPES or layer_kv.v.dtype != dtype:
            raise ValueError(
                f"a KV pool of {dtype} and {layer_kv.v.dtype} cannot be read here; "
                "use float32, bfloat16 or float16"
            )
        for tensor in (*planes, *scales):
            if tensor is not None and (tensor.device.type != "cpu" or not tensor.is_contiguous()):
                raise ValueError("the native library reads contiguous pools in host memory")
        self._tensors = (*planes, *scales)  # alive as long as their addresses are used
        addresses = (None if t is None else t.data_ptr() for t in self._tensors)
        self.struct = _Layer(*addresses, DTYPES[dtype])
        self.row_shape = tuple(layer_kv.k.shape[1:])
        self.has_quantized = layer_kv.k_int8 is not None


class NativeAttentionPlan:
    """What each layer needs to attend over one forest, built once a topology.

    Rows are the new tokens in branch order. One owner: `advance` changes the plan.
    """

    def __init__(
        self,
        library: Library,
        batch: TreeBatch,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
    ) -> None:
        """`batch` is a checked one (`check_batch`); head_dim is a multiple of 8.

        Raises ValueError where the heads do not fit, MemoryError without memory.
        """
        if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(
                f"{num_heads} query heads do not divide among {num_kv_heads} key heads; "
                "num_heads must be a multiple of num_kv_heads"
            )
        if head_dim < 8 or head_dim % 8:
            raise ValueError(f"head_dim={head_dim} is no multiple of 8; use torch's attention")
        self._functions = _Functions(library)
        self._is_limited = False
        self.num_branches = len(batch.branch_segment)
        self.num_tokens = int(batch.branch_num_queries.sum())
        self.q_shape = (self.num_tokens, num_heads, head_dim)
        self.kv_shape = (self.num_tokens, num_kv_heads, head_dim)
        quantized = batch.segment_quantized
        self.has_quantized = quantized is not None and bool(quantized.any())
        struct, kept = _batch_struct(batch)
        self.handle = self._functions.new(ctypes.byref(struct), num_heads, num_kv_heads, head_dim)
        del kept  # the plan has copied what it needs
        if not self.handle:
            raise MemoryError(f"there is no memory for a plan of {self.num_tokens} rows")
        if batch.limits is not None:
            self.limit(batch.limits)
        freed = weakref.finalize(self, self._functions.free, self.handle)
        freed.atexit = False  # at exit a step may still read it, and the process frees it anyway

    @property
    def positions(self) -> NDArray[np.int32]:
        """Position of every row, as it stands now: a view that `advance` moves on."""
        return self._view(self._functions.positions)

    @property
    def new_slots(self) -> NDArray[np.int32]:
        """Slot of every row's own token: a view that `advance` changes."""
        return self._view(self._functions.new_slots)

    def advance(self, new_slots: NDArray[np.int32]) -> None:
        """Move a decode plan on by one token a branch; new_slots is [num_branches], flat order.

        Raises ValueError for a plan that is not a pure decode, and for a wrong number of slots.
        """
        slots = np.ascontiguousarray(new_slots, dtype=np.int32)
        if slots.shape != (self.num_branches,):
            raise ValueError(f"{slots.shape} new slots do not fit {self.num_branches} branches")
        if self._functions.advance(self.handle, slots.ctypes.data):
            raise ValueError(
                f"only a pure decode plan can advance; this one has {self.num_tokens} new tokens "
                f"of {self.num_branches} branches: build a new plan"
            )

    def limit(self, limits: PageLimits) -> None:
        """From now on rows read less than all of their paths; `limits` are of its rows."""
        pages = np.ascontiguousarray(limits.top_pages, dtype=np.int32)
        mass = np.ascontiguousarray(limits.top_mass, dtype=np.float64)
        self._functions.limit(self.handle, pages.ctypes.data, mass.ctypes.data)
        self._is_limited = True

    def take_tallies(self) -> PageTallies | None:
        """What limited rows have read since the last call; None where all read their paths."""
        if not self._is_limited:
            return None
        read, all_pages = np.empty((2, self.num_tokens), np.int64)
        omitted = np.empty(self.num_tokens, np.float64)
        addresses = (array.ctypes.data for array in (read, all_pages, omitted))
        self._functions.take_tallies(self.handle, *addresses)
        return PageTallies(read, all_pages, omitted)

    def chosen(self, row: int, kv_head: int) -> NDArray[np.bool_]:
        """The blocks up to its own that a limited row has read in the last call."""
        found = np.zeros(int(self.positions[row]) // BLOCK + 1, np.uint8)
        self._functions.chosen(self.handle, row, kv_head, found.ctypes.data)
        return found.astype(np.bool_)

    def store(self, kv: NativeKV, k: Tensor, v: Tensor, *, num_threads: int) -> None:
        """Round the rows' k and v (float32, `kv_shape`) to the pool's dtype, into their slots."""
        k, v = _float32(k, self.kv_shape, "k"), _float32(v, self.kv_shape, "v")
        self._check_pool(kv)
        layer = ctypes.byref(kv.struct)
        self._functions.store(self.handle, layer, k.data_ptr(), v.data_ptr(), num_threads)

    def attend(
        self,
        kv: NativeKV,
        q: Tensor,
        options: AttentionOptions,
        *,
        num_threads: int,
    ) -> Tensor:
        """Attention of every row over its path, whose keys and values are all stored.

        q is float32 of `q_shape`, and so is what comes back. Raises ValueError where shapes
        disagree with the plan, MemoryError without memory.
        """
        q = _float32(q, self.q_shape, "q")
        self._check_pool(kv)
        asked = NativeOptions.of(options, self.q_shape[1])
        out = torch.empty(self.q_shape)
        self._functions.attend(
            self.handle, ctypes.byref(kv.struct), q.data_ptr(), out.data_ptr(),
            ctypes.byref(asked), num_threads,
        )  # fmt: skip
        return out

    def _check_pool(self, kv: NativeKV) -> None:
        if kv.row_shape != self.kv_shape[1:]:
            raise ValueError(
                f"the pool holds {kv.row_shape} a token; this plan {self.kv_shape[1:]}"
            )
        if self.has_quantized and not kv.has_quantized:
            raise ValueError("the batch has quantised segments, and this pool no int8 planes")

    def _view(self, function: Callable[[int], int]) -> NDArray[np.int32]:
        address = ctypes.cast(function(self.handle), ctypes.POINTER(ctypes.c_int32))
        return np.ctypeslib.as_array(address, (self.num_tokens,))


class _Functions:
    """The C functions of attention.h."""

    def __init__(self, library: Library) -> None:
        get = library.function
        self.new = get("rl_attention_plan_new", Pointer, Pointer, Int, Int, Int)
        self.free = get("rl_attention_free", None, Pointer)
        self.advance = library.action("rl_attention_advance", Pointer, Pointer)
        self.positions = get("rl_attention_positions", Pointer, Pointer)
        self.new_slots = get("rl_attention_new_slots", Pointer, Pointer)
        self.limit = library.action("rl_attention_limit", *[Pointer] * 3)
        self.take_tallies = get("rl_attention_take_tallies", None, *[Pointer] * 4)
        self.chosen = get("rl_attention_chosen", None, Pointer, Int, Int, Pointer)
        self.store = library.action("rl_store_kv", *[Pointer] * 4, Int)
        self.attend = library.action("rl_attend", *[Pointer] * 5, Int)


def _batch_struct(batch: TreeBatch) -> tuple[_Batch, list[NDArray[np.generic]]]:
    """The C struct of a batch, and the arrays that it points into."""
    lengths = np.fromiter(map(len, batch.segment_slots), np.int64, len(batch.segment_slots))
    offset = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offset[1:])
    slots = np.concatenate(batch.segment_slots).astype(np.int32, copy=False)
    quantized = batch.segment_quantized
    arrays: list[NDArray[np.generic]] = [
        offset,
        slots,
        *(
            np.ascontiguousarray(array, dtype=np.int32)
            for array in (batch.segment_parent, batch.segment_start)
        ),
        np.ascontiguousarray(
            np.zeros(len(lengths)) if quantized is None else quantized, dtype=np.uint8
        ),
        *(
            np.ascontiguousarray(array, dtype=np.int32)
            for array in (
                batch.branch_segment,
                batch.branch_query_start,
                batch.branch_num_queries,
            )
        ),
    ]
    addresses = [array.ctypes.data for array in arrays]
    return _Batch(*addresses, len(lengths), len(batch.branch_segment)), arrays


def _float32(tensor: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    if tensor.shape != shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}; this plan needs {shape}")
    return tensor.to(torch.float32).contiguous()
