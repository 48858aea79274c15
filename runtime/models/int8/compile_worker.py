"""Compiles ops of an 8-bit decoder with torch's Inductor, in a process of its own.

    python -m radixlang.runtime.models.int8.compile_worker SHAPE FOLDER NAME…

SHAPE is an `OpsShape` in JSON; FOLDER gets a shared library a name. The compiler's modules take
more memory and time to import than the runtime itself: hence the process.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from radixlang.runtime.models.int8.ops import OpsShape, plain_ops
from radixlang.runtime.models.rotary import rotate_real

NUM_ROWS = 37  # of the examples; compiled code takes any number. A prime: no size of a model is
MAX_ROWS = 1 << 20
OPTIONS = {
    "cpp_cache_precompile_headers": False,  # they pay from ten ops on
    "cpp.threads": os.cpu_count(),  # with one, loops are not made parallel at all
}


class Op(torch.nn.Module):
    """An op as the compiler wants it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: Tensor | None) -> Any:
        """The op's result."""
        return self._function(*tensors)


def compile_op(shape: OpsShape, name: str, folder: Path) -> None:
    """Put the op into the folder, whole or not at all."""
    tensors = examples(shape)[name]
    rows = torch.export.Dim("rows", min=1, max=MAX_ROWS)
    varying = tuple(
        {0: rows} if tensor is not None and tensor.shape[0] == NUM_ROWS else None
        for tensor in tensors
    )
    program = torch.export.export(
        Op(getattr(plain_ops(shape, rotate_real), name)), tensors, dynamic_shapes=(varying,)
    )
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = torch._inductor.aot_compile(
            program.module(), tensors,
            options=OPTIONS | {"aot_inductor.output_path": f"{scratch}/{name}.so"},
        )  # fmt: skip
        os.replace(str(made), folder / f"{name}.so")


def examples(shape: OpsShape) -> dict[str, tuple[Tensor | None, ...]]:
    """Tensors that the ops to compile can be called with; given twice, one would count as one."""
    hidden, inner, head = shape.hidden_size, shape.intermediate_size, shape.head_dim
    num_qk = shape.num_heads + shape.num_kv_heads
    num_values = shape.num_kv_heads * head

    def given(is_there: bool, *size: int) -> Tensor | None:
        return torch.randn(size) if is_there else None

    def partial() -> tuple[Tensor, Tensor]:
        lse = torch.randn(NUM_ROWS, shape.num_heads // shape.num_kv_heads, shape.num_kv_heads)
        return torch.randn(*lse.shape, head).to(getattr(torch, shape.kv_dtype)), lse

    scale = torch.rand(NUM_ROWS, 1)
    return {
        "heads": (
            torch.randn(NUM_ROWS, num_qk * head + 2 * num_values), scale,
            torch.randn(NUM_ROWS, 1, head // 2, 2),
            given(shape.has_qkv_bias, num_qk * head + num_values),
            given(shape.has_qk_gain, num_qk, head),
        ),
        "attended": (torch.randn(NUM_ROWS, shape.num_heads, head),),
        "merged": (*partial(), *partial()),
        "add_read": (
            torch.randn(NUM_ROWS, hidden), torch.randn(NUM_ROWS, hidden), scale,
            given(shape.has_write_biases, hidden), given(shape.has_post_norms, hidden),
            given(shape.has_gains, hidden),
        ),
        "activated": (
            torch.randn(NUM_ROWS, 2 * inner), scale, given(shape.has_gate_up_bias, 2 * inner),
        ),
    }  # fmt: skip


def main() -> None:
    """See the module's docstring."""
    shape, folder, *names = sys.argv[1:]
    for name in names:
        compile_op(OpsShape(**json.loads(shape)), name, Path(folder))


if __name__ == "__main__":
    main()
