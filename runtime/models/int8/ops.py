"""What a decoder in 8 bits computes between its products, as functions of tensors alone.

In plain torch, where the native library is not there: it goes over its rows once where this takes
a dozen passes. A row's result never depends on other rows.

Scales are a token's: [num_tokens, 1], 127 times the step between quantized values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from radixlang.runtime.models.activations import ACTIVATIONS
from radixlang.runtime.models.int8.linear import LARGEST, TINY
from radixlang.runtime.models.int8.rotation import hadamard
from radixlang.runtime.models.layers import rotary

Quantized = tuple[Tensor, Tensor]  # [num_tokens, width] int8, and the scales


@dataclass(frozen=True, slots=True)
class OpsShape:
    """All that the ops of a model depend on, but for the tensors they are given.

    Attributes:
        stream_block: size of the Hadamard blocks that transform what reads the stream; 1: none.
        inner_block: the same before the down projection.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    activation: str
    norm_eps: float
    stream_block: int
    inner_block: int


@dataclass(frozen=True, slots=True)
class Int8Ops:
    """The ops of one model. A tensor that may be None is there where the model has it.

    Attributes:
        read: stream [n, hidden], norm's gain or None; to quantized rows of the normalised stream.
        heads: product of the qkv weight (values' rows once more behind it, finer), scales,
            rotations [n, 1, head_dim / 2, 2], bias or None, gain of the query and key norms or
            None; to q [n, num_heads, head_dim] and k and v [n, num_kv_heads, head_dim], q and k
            rotated.
        attended: attention's output [n, num_heads, head_dim]; to its quantized rows.
        add_read: stream, product of what is added, its scales, its bias or None, the gain of a
            norm after it or None, the gain of the next norm or None; to the stream with it, and
            the quantized rows of that as in `read`.
        activated: product of the gate_up weight, scales, bias or None; to the quantized rows of
            act(gate) * up, Hadamard transformed.
    """

    shape: OpsShape
    read: Callable[[Tensor, Tensor | None], Quantized]
    heads: Callable[..., tuple[Tensor, Tensor, Tensor]]
    attended: Callable[[Tensor], Quantized]
    add_read: Callable[..., tuple[Tensor, Tensor, Tensor]]
    activated: Callable[[Tensor, Tensor, Tensor | None], Quantized]


def plain_ops(shape: OpsShape) -> Int8Ops:
    """The ops in plain torch."""
    read = partial(read_stream, shape.norm_eps, shape.stream_block)
    return Int8Ops(
        shape=shape,
        read=read,
        heads=partial(split_heads, shape),
        attended=lambda out: quantize(out.reshape(out.shape[0], -1)),
        add_read=partial(add_and_read, shape.norm_eps, read),
        activated=partial(activate, ACTIVATIONS[shape.activation].exact, shape.inner_block),
    )


def quantize(x: Tensor, factor: Tensor | None = None) -> Quantized:
    """Nearest int8 values of each row, and its scale, times a factor [num_tokens, 1]."""
    peak = x.abs().amax(-1, keepdim=True).clamp_min(TINY)
    quantized = torch.round(x * (LARGEST / peak)).to(torch.int8)
    return quantized, peak if factor is None else peak * factor


def read_stream(eps: float, block: int, stream: Tensor, gain: Tensor | None) -> Quantized:
    """The stream behind a norm: 1 / rms is a factor a row, so it only enters the row's scale."""
    factor = torch.rsqrt(stream.square().mean(-1, keepdim=True) + eps)
    if gain is not None:
        stream = stream * gain
    return quantize(hadamard(stream, block), factor)


def split_heads(
    shape: OpsShape,
    product: Tensor,
    scale: Tensor,
    rotations: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `Int8Ops.heads`."""
    num_kv = shape.num_kv_heads * shape.head_dim
    num_qk = shape.num_heads * shape.head_dim + num_kv
    qkv = product * scale
    qk, v = qkv[:, :num_qk], qkv[:, num_qk : num_qk + num_kv] + qkv[:, num_qk + num_kv :]
    if bias is not None:
        qk, v = qk + bias[:num_qk], v + bias[num_qk:]
    qk = qk.view(qk.shape[0], -1, shape.head_dim)
    if gain is not None:
        qk = F.rms_norm(qk, (shape.head_dim,), None, shape.norm_eps) * gain
    qk = rotary.rotate(qk, torch.view_as_complex(rotations))
    return qk[:, : shape.num_heads], qk[:, shape.num_heads :], v.view(len(v), -1, shape.head_dim)


def add_and_read(
    eps: float,
    read: Callable[[Tensor, Tensor | None], Quantized],
    stream: Tensor,
    product: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    post_gain: Tensor | None,
    gain: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `Int8Ops.add_read`."""
    added = product * scale
    if bias is not None:
        added = added + bias
    if post_gain is not None:
        added = F.rms_norm(added, added.shape[-1:], post_gain, eps)
    stream = stream + added
    return stream, *read(stream, gain)


def activate(
    activation: Callable[[Tensor], Tensor],
    block: int,
    product: Tensor,
    scale: Tensor,
    bias: Tensor | None,
) -> Quantized:
    """See `Int8Ops.activated`."""
    gate_up = product * scale
    if bias is not None:
        gate_up = gate_up + bias
    gate, up = gate_up.chunk(2, dim=-1)
    return quantize(hadamard(activation(gate) * up, block))
