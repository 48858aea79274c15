"""A model's twin in float64 on the CPU: slow, and as close to exact as the weights allow.

Layers packed in 8 bits stay so: their rounding is part of the model, and the same for a token in
any batch. Everything else (the residual stream, norms, attention, dense matrices) is float64.
Angles of rotary positions stay float32, as the models define them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MethodType
from typing import Any, TypeVar

import torch

from radixlang.errors import ParameterError
from radixlang.kernels.native.decoder import Weight
from radixlang.runtime.models.decoder import Decoder, PackedEmbedding, TableEmbedding
from radixlang.runtime.models.gguf.weights import BlockEmbedding
from radixlang.runtime.models.int8.decoder import Int8Decoder
from radixlang.runtime.models.int8.linear import Int8Product
from radixlang.runtime.models.int8.ops import plain_ops
from radixlang.runtime.models.layers.linear import DenseLinear, NativeLinear
from radixlang.runtime.models.layers.native import NativeLayers
from radixlang.runtime.models.layers.rotary import Rotary
from radixlang.runtime.models.model import CausalModel
from radixlang.runtime.models.transformers_model import TransformersModel

AnyDecoder = TypeVar("AnyDecoder", Decoder, Int8Decoder)
T = TypeVar("T")


def in_float64(model: CausalModel) -> CausalModel:
    """A copy that computes in float64 on the CPU; logits are still float32.

    Raises:
        ParameterError: the model is neither a decoder of ours nor a TransformersModel.
    """
    if isinstance(model, Decoder):
        return _decoder(model)
    if isinstance(model, Int8Decoder):
        coarse = _decoder(model)
        coarse._ops = plain_ops(model._ops.shape)
        return coarse
    if isinstance(model, TransformersModel):
        wide: Any = copy.deepcopy(model._model)  # whose to() transformers gives no type
        wide = wide.to("cpu", torch.float64)
        return TransformersModel(wide, replace(model.config, dtype="float64"))
    raise ParameterError(f"no float64 twin of a {type(model).__name__} is known; load the model")


def _decoder(model: AnyDecoder) -> AnyDecoder:
    config = model.config
    scale = torch.tensor(config.embed_scale, dtype=getattr(torch, config.dtype))
    twin: AnyDecoder = _copy(model)
    twin.config = replace(config, embed_scale=float(scale), dtype="float64")
    twin.device = torch.device("cpu")
    twin._rotary = [Rotary(rope, config.head_dim, twin.device) for rope in config.ropes]
    return twin


def _wide(part: Any) -> Any:  # a part of any class gives one that stands in its place
    """A part of a decoder with its tensors in float64; wraps parts with their own precision."""
    if isinstance(part, torch.Tensor):
        return part.cpu().double() if part.is_floating_point() else part.cpu()
    if isinstance(part, (Int8Product, Weight, BlockEmbedding, MethodType)):
        return _Widened(part)
    if isinstance(part, NativeLinear):
        return DenseLinear(part.weight.unpacked().double(), _wide(part.bias))
    if isinstance(part, PackedEmbedding):
        return TableEmbedding(part.weight.unpacked().double())
    if isinstance(part, NativeLayers):
        return None  # a twin has plain layers
    if isinstance(part, (tuple, list)) and type(part) in (tuple, list):
        return type(part)(map(_wide, part))
    is_ours = type(part).__module__.startswith("radixlang.runtime.models.")
    return _copy(part) if is_ours and not isinstance(part, Rotary) else part


def _copy(part: T) -> T:
    twin = copy.copy(part)
    for name in _fields(part):
        object.__setattr__(twin, name, _wide(getattr(part, name)))
    return twin


def _fields(part: object) -> Iterator[str]:
    for kind in type(part).__mro__:
        slots = getattr(kind, "__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
    yield from getattr(part, "__dict__", ())


class _Widened:
    """A function that keeps its own precision, its result in float64."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._function = function
        self.num_bytes = int(getattr(function, "num_bytes", 0))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        narrow = x.float() if x.is_floating_point() else x
        return self._function(narrow).cpu().double()
