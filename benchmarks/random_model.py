"""GGUF files of random weights in the shape of Llama 3.2 1B and 3B and of Llama 3.1 8B.

    python -m benchmarks.random_model 1b random-1b.gguf [--type q4_k_m]
    python -m benchmarks.speed --model random-1b.gguf --peers ours llama
    python -m benchmarks.loading random-1b.gguf

Speed and memory depend on shapes and block types, not on what the weights are, and no network is
needed. The tokenizer is the default model's, its vocabulary filled up with tokens that no text has.
Types are mixed as llama.cpp mixes them: the embedding, which is the head of the two smaller, is of
Q6_K, and in q4_k_m so are half of the value and down projections.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from radixlang.kernels.native.grouped import BLOCKS
from radixlang.runtime.models.gguf.file import GgufFile
from radixlang.runtime.models.locate import find_default_model

VOCAB_SIZE = 128256
COMMON_KINDS = {"q4_0": "Q4_0", "q4_k_m": "Q4_K", "q8_0": "Q8_0"}  # what most matrices are of


@dataclass(frozen=True, slots=True)
class Shape:
    """What makes a model of Llama's family as large as it is."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    vocab_size: int = VOCAB_SIZE


SHAPES = {
    "1b": Shape(16, 2048, 8192, 32, 8, 64, tied=True),
    "3b": Shape(28, 3072, 8192, 24, 8, 128, tied=True),
    "8b": Shape(32, 4096, 14336, 32, 8, 128, tied=False),
}


def matrices(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """Names of all matrices, with their rows and columns."""
    attended, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", shape.vocab_size, shape.hidden
    for i in range(shape.layers):
        yield f"blk.{i}.attn_q.weight", attended, shape.hidden
        yield f"blk.{i}.attn_k.weight", keys, shape.hidden
        yield f"blk.{i}.attn_v.weight", keys, shape.hidden
        yield f"blk.{i}.attn_output.weight", shape.hidden, attended
        yield f"blk.{i}.ffn_gate.weight", shape.inner, shape.hidden
        yield f"blk.{i}.ffn_up.weight", shape.inner, shape.hidden
        yield f"blk.{i}.ffn_down.weight", shape.hidden, shape.inner
    if not shape.tied:
        yield "output.weight", shape.vocab_size, shape.hidden


def kind_of(name: str, file_type: str, num_layers: int) -> gguf.GGMLQuantizationType:
    """The block type of a matrix."""
    common = COMMON_KINDS[file_type]
    is_outer = not name.startswith("blk.")
    if is_outer and file_type != "q8_0":
        common = "Q6_K"
    elif file_type == "q4_k_m" and ("attn_v" in name or "ffn_down" in name):
        layer, eighth = int(name.split(".")[1]), num_layers // 8
        if layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2:
            common = "Q6_K"
    return gguf.GGMLQuantizationType[common]


def blocks(kind: int, rows: int, columns: int, source: np.random.Generator) -> NDArray[np.uint8]:
    """Random blocks [rows, bytes a row] whose weights have a variance of about 1 / columns."""
    size, num_bytes = BLOCKS[kind]
    count = rows * columns // size
    made = np.frombuffer(source.bytes(count * num_bytes), np.uint8).reshape(count, -1).copy()
    at, spread = {2: (0, 4.6), 8: (0, 74), 12: (0, 4.6 * 37), 14: (208, 18.5 * 37)}[kind]
    scale = np.float16(columns**-0.5 / spread)
    made[:, at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    if kind == 12:  # least weights as far below zero as the scales reach above, in the mean
        made[:, 2:4] = np.frombuffer(np.float16(7.5 * scale).tobytes(), np.uint8)
    if kind == 14:
        made[:, 192:208] &= 63
    return made.reshape(rows, -1)


def write(path: Path, shape: Shape, file_type: str) -> None:
    """Write a file; a matrix at a time is in memory."""
    writer = gguf.GGUFWriter(path, "llama")
    add_settings(writer, shape)
    add_tokenizer(writer, shape.vocab_size)
    kinds = {name: kind_of(name, file_type, shape.layers) for name, _, _ in matrices(shape)}
    norms = ["output_norm.weight"]
    for i in range(shape.layers):
        norms += [f"blk.{i}.attn_norm.weight", f"blk.{i}.ffn_norm.weight"]
    for name, rows, columns in matrices(shape):
        size, num_bytes = BLOCKS[kinds[name]]
        width = columns // size * num_bytes
        writer.add_tensor_info(name, (rows, width), np.dtype(np.uint8), rows * width, kinds[name])
    gain = np.ones(shape.hidden, np.float32)
    for name in norms:
        writer.add_tensor_info(name, gain.shape, gain.dtype, gain.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    source = np.random.default_rng(0)
    for name, rows, columns in matrices(shape):
        writer.write_tensor_data(blocks(kinds[name], rows, columns, source))
    for _ in norms:
        writer.write_tensor_data(gain)
    writer.close()


def add_settings(writer: Any, shape: Shape) -> None:
    """The configuration."""
    writer.add_block_count(shape.layers)
    writer.add_context_length(131072)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab_size)


def add_tokenizer(writer: Any, vocab_size: int) -> None:
    """The default model's, and unused tokens behind its own."""
    model = find_default_model()
    assert model is not None
    known = GgufFile(model).metadata
    tokens = known["tokenizer.ggml.tokens"]
    more = vocab_size - len(tokens)
    writer.add_tokenizer_model(known["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(known["tokenizer.ggml.pre"])
    writer.add_token_list([*tokens, *(f"<unused {i}>" for i in range(more))])
    unused = [int(gguf.TokenType.UNUSED)] * more
    writer.add_token_types([*map(int, known["tokenizer.ggml.token_type"]), *unused])
    writer.add_token_merges(known["tokenizer.ggml.merges"])
    writer.add_eos_token_id(int(known["tokenizer.ggml.eos_token_id"]))
    writer.add_bos_token_id(int(known["tokenizer.ggml.bos_token_id"]))
    writer.add_chat_template(known["tokenizer.chat_template"])


def main() -> None:
    """Parse arguments and write the file."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.random_model", description=__doc__, formatter_class=raw
    )
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("path", type=Path)
    parser.add_argument("--type", choices=list(COMMON_KINDS), default="q4_0")
    args = parser.parse_args()
    write(args.path, SHAPES[args.shape], args.type)
    print(f"{args.path}: {args.path.stat().st_size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
