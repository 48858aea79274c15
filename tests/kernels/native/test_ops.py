"""Operations between 8-bit products: what float64 gives, the same bits on every instruction set."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from radixlang.kernels.native.decoder import DecoderShape, Rotation, Transforms
from radixlang.kernels.native.library import Float, Library, Long, Pointer
from radixlang.runtime.models.activations import ACTIVATIONS

ROWS = 5
WIDTHS = [(96, 80, 16), (48, 1536, 64), (40, 24, 8), (320, 640, 24)]  # hidden, inner, head
EPS = 1e-6


class _Levels(ctypes.Structure):
    _fields_ = [("values", Pointer), ("stride", Long), ("scale", Pointer), ("sums", Pointer),
                ("floats", Pointer), ("groups", Pointer), ("group_stride", Long)]  # fmt: skip


class _Product(ctypes.Structure):
    _fields_ = [("data", Pointer), ("stride", Long), ("scale", Pointer)]


class _Heads(ctypes.Structure):
    _fields_ = [("q", Pointer), ("k", Pointer), ("v", Pointer), ("slots", Pointer),
                ("dtype", ctypes.c_int)]  # fmt: skip


class _Angles(ctypes.Structure):
    _fields_ = [("cosines", Pointer), ("sines", Pointer)]


@dataclass
class Levels:
    """Rows of levels as the library writes them."""

    values: Tensor
    scale: Tensor
    sums: Tensor

    @classmethod
    def empty(cls, rows: int, width: int) -> Levels:
        stride = (width + 63) // 64 * 64
        values = torch.full((rows, stride), 99, dtype=torch.int8)
        return cls(values, torch.full((rows,), math.nan), torch.zeros(rows, dtype=torch.int32))

    @property
    def struct(self) -> _Levels:
        return _Levels(
            self.values.data_ptr(), self.values.shape[1], self.scale.data_ptr(),
            self.sums.data_ptr(),
        )  # fmt: skip

    def check(self, exact: Tensor, factor: Tensor | float = 1.0) -> None:
        """They are the nearest levels of exact rows, but for last bits."""
        width = exact.shape[1]
        peak = exact.abs().amax(1)
        torch.testing.assert_close(self.scale.double(), peak * factor, rtol=2e-6, atol=1e-30)
        found = self.values[:, :width].double() * (peak / 127)[:, None]
        assert ((found - exact).abs() <= (peak / 254 * 1.001)[:, None]).all()
        assert not self.values[:, width:].any()
        assert torch.equal(self.sums, self.values.sum(1).int())


def shape_of(hidden: int, inner: int, head: int, **options: Any) -> DecoderShape:
    return DecoderShape(
        num_heads=4, num_kv_heads=2, head_dim=head, hidden_size=hidden, intermediate_size=inner,
        stream_block=options.pop("stream_block", 1), inner_block=min(inner & -inner, 64),
        value_parts=2, norm_eps=EPS, **options,
    )  # fmt: skip


def random(*size: int, seed: int = 0) -> Tensor:
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    values[0] *= 30
    return values


def hadamard(x: Tensor, block: int) -> Tensor:
    matrix = torch.ones((1, 1), dtype=torch.float64)
    while matrix.shape[0] < block:
        top, bottom = torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)
        matrix = torch.cat((top, bottom))
    return (x.double().view(-1, block) @ (matrix / block**0.5)).view(x.shape)


def same_everywhere(libraries: list[Library], run: Callable[[Library], tuple[Tensor, ...]]) -> Any:
    """What an operation gives, which is the same bits on every instruction set."""
    results = [run(library) for library in libraries]
    for result in results[1:]:
        for found, expected in zip(result, results[0], strict=True):
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    return results[0]


def rms(x: Tensor, gain: Tensor | None = None) -> Tensor:
    wide = F.rms_norm(x.double(), x.shape[-1:], None, EPS)
    return wide if gain is None else wide * gain.double()


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 32, 64, 128, 512])
def test_hadamard_transforms(every_native: list[Library], block: int) -> None:
    x = random(3, block * 3)
    (found,) = same_everywhere(every_native, lambda each: (Transforms(each).hadamard(x, block, 2),))
    torch.testing.assert_close(found.double(), hadamard(x, block), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 99, 576, 640, 48])
def test_rotations(every_native: list[Library], width: int) -> None:
    block = width & -width
    rest = torch.linalg.qr(random(width // block, width // block, seed=2).double()).Q.float()
    rotation = Rotation(torch.randint(0, 2, (width,)).float() * 2 - 1, rest)
    x = random(7, width, seed=3)

    def run(library: Library) -> tuple[Tensor, ...]:
        whole = Transforms(library).rotated(rotation, x, 2)
        assert torch.equal(Transforms(library).rotated(rotation, x[4:5], 1), whole[4:5])
        return (whole,)

    (found,) = same_everywhere(every_native, run)
    turned = hadamard(x * rotation.signs, block).view(7, -1, block)
    exact = torch.einsum("ij,njk->nik", rest.double(), turned).reshape(7, width)
    torch.testing.assert_close(found.double(), exact, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("gains", [False, True])
def test_the_stream_is_read_through_a_norm(
    every_native: list[Library], widths: tuple[int, int, int], gains: bool
) -> None:
    hidden = widths[0]
    shape = shape_of(*widths, stream_block=8 if gains else 1)
    x, gain = random(ROWS, hidden), random(hidden, seed=4) if gains else None

    def run(library: Library) -> tuple[Tensor, ...]:
        levels = Levels.empty(ROWS, hidden)
        read = library.action("rl_read_rows", Pointer, Pointer, Pointer, Long, Pointer)
        read(ctypes.byref(shape), x.data_ptr(), None if gain is None else gain.data_ptr(), ROWS,
             ctypes.byref(levels.struct))  # fmt: skip
        return levels.values, levels.scale, levels.sums

    levels = Levels(*same_everywhere(every_native, run))
    exact = x.double() if gain is None else hadamard(x.double() * gain, 8)
    levels.check(exact, 1 / (x.double().square().mean(1) + EPS).sqrt())


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("gains", [False, True])
def test_what_is_added_is_normalised_where_there_is_a_norm_and_read_again(
    every_native: list[Library], widths: tuple[int, int, int], gains: bool
) -> None:
    hidden = widths[0]
    shape, stream = shape_of(*widths), random(ROWS, hidden)
    product, scale = random(ROWS, hidden, seed=5), random(ROWS, seed=6).abs()
    bias, post = (random(hidden, seed=each) if gains else None for each in (7, 8))

    def run(library: Library) -> tuple[Tensor, ...]:
        levels, own = Levels.empty(ROWS, hidden), stream.clone()
        add = library.action(
            "rl_add_read_rows", *[Pointer] * 6, Long, Pointer
        )  # fmt: skip
        data = _Product(product.data_ptr(), hidden, scale.data_ptr())
        vectors = (None if each is None else each.data_ptr() for each in (bias, post))
        add(ctypes.byref(shape), own.data_ptr(), ctypes.byref(data), *vectors, None, ROWS,
            ctypes.byref(levels.struct))  # fmt: skip
        return own, levels.values, levels.scale, levels.sums

    own, *rest = same_everywhere(every_native, run)
    added = product.double() * scale.double()[:, None]
    if bias is not None and post is not None:
        added = rms(added + bias.double(), post)
    exact = stream.double() + added
    torch.testing.assert_close(own.double(), exact, atol=1e-5, rtol=1e-5)
    Levels(*rest).check(own.double(), 1 / (own.double().square().mean(1) + EPS).sqrt())


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_activations(
    every_native: list[Library], widths: tuple[int, int, int], activation: str
) -> None:
    inner = widths[1]
    shape = shape_of(*widths, activation=ACTIVATIONS[activation].native)
    product, scale = random(ROWS, 2 * inner, seed=5), random(ROWS, seed=6).abs()
    bias = random(2 * inner, seed=7)

    def run(library: Library) -> tuple[Tensor, ...]:
        levels = Levels.empty(ROWS, inner)
        function = library.action(
            "rl_activate_rows", Pointer, Pointer, Pointer, Long, Pointer
        )  # fmt: skip
        data = _Product(product.data_ptr(), 2 * inner, scale.data_ptr())
        function(ctypes.byref(shape), ctypes.byref(data), bias.data_ptr(), ROWS,
                 ctypes.byref(levels.struct))  # fmt: skip
        return levels.values, levels.scale, levels.sums

    levels = Levels(*same_everywhere(every_native, run))
    gate, up = (product.double() * scale.double()[:, None] + bias.double()).chunk(2, dim=1)
    acts = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
    levels.check(hadamard((acts[activation](gate) * up).contiguous(), shape.inner_block))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("gains", [False, True])
def test_heads_are_normalised_turned_and_stored(
    every_native: list[Library], widths: tuple[int, int, int], gains: bool, dtype: torch.dtype
) -> None:
    shape, dim = shape_of(*widths), widths[2]
    slots = torch.tensor([3, 0, 7, 5, 1], dtype=torch.int32)
    positions = torch.tensor([0, 1, 17, 1000, 30000], dtype=torch.int32)
    frequencies = 10000.0 ** -(torch.arange(dim // 2 - 1) / (dim // 2))  # the last pair stands
    product, scale = random(ROWS, 10 * dim, seed=5), random(ROWS, seed=6).abs()
    bias, gain = (random(size, seed=7) if gains else None for size in (8 * dim, 6 * dim))

    def run(library: Library) -> tuple[Tensor, ...]:
        angles = torch.empty(2, ROWS, dim)
        library.action(
            "rl_make_angles", Pointer, Long, Float, Long, Pointer, Long, Pointer, Pointer
        )(
            frequencies.data_ptr(), len(frequencies), 1.5, dim, positions.data_ptr(), ROWS,
            angles[0].data_ptr(), angles[1].data_ptr(),
        )  # fmt: skip
        q, k, v = torch.empty(ROWS, 4, dim), *torch.zeros(2, 9, 2, dim, dtype=dtype)
        data = _Product(product.data_ptr(), 10 * dim, scale.data_ptr())
        number = [torch.float32, torch.bfloat16, torch.float16].index(dtype)
        heads = _Heads(q.data_ptr(), k.data_ptr(), v.data_ptr(), slots.data_ptr(), number)
        split = library.action("rl_split_rows", *[Pointer] * 5, Long, Pointer)
        vectors = (None if each is None else each.data_ptr() for each in (bias, gain))
        split(ctypes.byref(shape), ctypes.byref(data),
              ctypes.byref(_Angles(angles[0].data_ptr(), angles[1].data_ptr())), *vectors, ROWS,
              ctypes.byref(heads))  # fmt: skip
        return q, k, v

    q, k, v = same_everywhere(every_native, run)
    qkv = product.double() * scale.double()[:, None]
    qk, values = qkv[:, : 6 * dim], qkv[:, 6 * dim : 8 * dim] + qkv[:, 8 * dim :]
    if bias is not None and gain is not None:
        qk, values = qk + bias[: 6 * dim].double(), values + bias[6 * dim :].double()
        qk = (rms(qk.view(ROWS, 6, dim)) * gain.view(6, dim).double()).view(ROWS, -1)
    angle = (positions.float()[:, None] * frequencies).double()
    turns = torch.cat((torch.polar(torch.full_like(angle, 1.5), angle),
                       torch.ones(ROWS, 1, dtype=torch.complex128)), dim=1)  # fmt: skip
    pairs = torch.view_as_complex(qk.reshape(ROWS, 6, -1, 2)) * turns[:, None]
    exact = torch.view_as_real(pairs).flatten(-2)
    torch.testing.assert_close(q.double(), exact[:, :4], atol=1e-4, rtol=1e-5)
    at, error = slots.long(), {"atol": 1e-4, "rtol": 1e-5 + 2 * float(torch.finfo(dtype).eps)}
    torch.testing.assert_close(k[at].double(), exact[:, 4:], **error)
    torch.testing.assert_close(v[at].double(), values.view(ROWS, 2, dim), **error)
    assert not k[[2, 4, 6, 8]].any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_stays_so_and_alone(
    every_native: list[Library], bad: float
) -> None:
    x = random(3, 96)
    x[1, 40] = bad

    for library in every_native:
        levels = Levels.empty(3, 96)
        quantize = library.action("rl_quantize_rows", Pointer, Long, Long, Pointer)
        quantize(x.data_ptr(), 96, 3, ctypes.byref(levels.struct))
        assert levels.scale.isfinite().tolist() == [True, False, True]
