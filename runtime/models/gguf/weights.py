"""Weights of a GGUF file under our names, dequantised to float32 when taken."""

from __future__ import annotations

import re

import numpy as np
import torch
from numpy.typing import NDArray

from radixlang.errors import ModelFormatError
from radixlang.kernels.native.grouped import BLOCKS, StoredRows
from radixlang.runtime.models.families import BY_GGUF
from radixlang.runtime.models.gguf.file import BLOCK_TYPES, GgufFile

_PARTS = {
    "attn_norm": "attn_norm",
    "attn_post_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "mlp_post_norm": "post_ffw_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "qkv": "attn_qkv",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "gate_up": "ffn_up",  # Phi-3 keeps the fused matrix under the name of its second half
    "down": "ffn_down",
}
FLOATS = ("F32", "F16", "BF16")
_OUTER = {"embed": "token_embd", "norm": "output_norm", "head": "output"}
_LAYER_NAME = re.compile(r"layers\.(\d+)\.(\w+)\.(weight|bias)")


class GgufWeights:
    """A `WeightSource` over an open file. llama.cpp stores norms with their offset added."""

    norm_offset_folded = True

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.origin = str(file.path)
        family = BY_GGUF.get(str(file.metadata.get("general.architecture")))
        self.pairs_side_by_side = family is not None and family.gguf_pairs_side_by_side
        self._fused_gate = "blk.0.ffn_gate.weight" not in file.tensors

    def __contains__(self, name: str) -> bool:
        if ".gate_up." in name and not self._fused_gate:
            return False
        return gguf_name(name) in self._file.tensors

    def take(self, name: str) -> torch.Tensor:
        """The tensor of that name in float32. Raises ModelFormatError if there is none."""
        stored = gguf_name(name)
        if stored not in self._file.tensors:
            raise ModelFormatError(
                f"{self._file.path}: tensor {stored!r} is missing; the file is incomplete or of a "
                "variant of this architecture that radixlang does not know. Download it again"
            )
        info = self._file.tensors[stored]
        return dequantize(self._file.data(stored), info.type_id).view(info.shape)

    @property
    def can_serve_blocks(self) -> bool:
        """Whether every matrix is in blocks that the native library multiplies, or in floats."""
        kinds = {info.type_id for info in self._file.tensors.values()}
        return all(kind in BLOCKS or BLOCK_TYPES[kind][0] in FLOATS for kind in kinds)

    def stored(self, name: str) -> StoredRows | None:
        """A matrix in the file's own blocks; None where it is none of these or not there."""
        info = self._file.tensors.get(gguf_name(name))
        if info is None or info.type_id not in BLOCKS or len(info.shape) != 2:
            return None
        return StoredRows(info.type_id, self._file.data(info.name).reshape(info.shape[0], -1))

    def release(self, name: str) -> None:
        """Release the memory of the mapped pages of a tensor that was read."""
        self._file.release_pages(gguf_name(name))

    def lookup(self, name: str) -> BlockEmbedding | None:
        """An embedding over the blocks of a quantised matrix; None if it is not quantised."""
        stored = gguf_name(name)
        info = self._file.tensors.get(stored)
        if info is None or info.type_name in FLOATS:
            return None
        blocks = torch.from_numpy(self._file.data(stored)).view(info.shape[0], -1)
        return BlockEmbedding(blocks, info.type_id)


class BlockEmbedding:
    """Rows of a quantised table [vocab_size, hidden_size], dequantised when looked up.

    The blocks stay mapped from the file; they are at most a quarter of the table in float32.
    """

    __slots__ = ("_blocks", "_type_id", "num_bytes")

    def __init__(self, blocks: torch.Tensor, type_id: int) -> None:
        self._blocks = blocks  # [vocab_size, bytes a row]
        self._type_id = type_id
        self.num_bytes = blocks.nbytes

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = self._blocks.index_select(0, input_ids)
        return dequantize(rows.view(-1).numpy(), self._type_id).view(input_ids.shape[0], -1)


def gguf_name(name: str) -> str:
    """The name that GGUF gives to a tensor of ours."""
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        part, kind = name.rsplit(".", 1)
        return f"{_OUTER[part]}.{kind}"
    index, part, kind = match.groups()
    return f"blk.{index}.{_PARTS[part]}.{kind}"


def dequantize(raw: NDArray[np.uint8], type_id: int) -> torch.Tensor:
    """Values [num_elements] in float32 of raw blocks [num_bytes].

    The four block types of most small models are unpacked here, equal bit for bit to the `gguf`
    package, which does the others.
    """
    name, _, num_block_bytes = BLOCK_TYPES[type_id]
    if name in FLOATS:
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
        return torch.from_numpy(raw).view(dtype).float().clone()
    blocks = torch.from_numpy(raw).view(-1, num_block_bytes)
    match name:
        case "Q4_0":
            return _scaled(_nibbles(blocks[:, 2:]).sub_(8.0), blocks, 0).view(-1)
        case "Q4_1":
            values = _scaled(_nibbles(blocks[:, 4:]), blocks, 0)
            return values.add_(_half(blocks, 2)).view(-1)
        case "Q5_0":
            values = _nibbles(blocks[:, 6:]).add_(_fifth_bits(blocks[:, 2:6])).sub_(16.0)
            return _scaled(values, blocks, 0).view(-1)
        case "Q8_0":
            return _scaled(blocks[:, 2:].view(torch.int8).float(), blocks, 0).view(-1)
    return _dequantize_elsewhere(raw, type_id)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The fp16 number at that byte of every block, as float32 [num_blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _scaled(values: torch.Tensor, blocks: torch.Tensor, at: int) -> torch.Tensor:
    return values.mul_(_half(blocks, at))


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[num_blocks, 16] bytes to [num_blocks, 32] float: all low halves, then all high ones."""
    values = torch.empty((packed.shape[0], 2, packed.shape[1]))
    values[:, 0] = packed & 15
    values[:, 1] = packed >> 4
    return values.view(packed.shape[0], -1)


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """[num_blocks, 4] bytes to [num_blocks, 32] float: 16 where the bit is set."""
    bits = packed[:, :, None] >> torch.arange(8, dtype=torch.uint8)
    return (bits & 1).view(packed.shape[0], -1).float().mul_(16.0)


def _dequantize_elsewhere(raw: NDArray[np.uint8], type_id: int) -> torch.Tensor:
    import gguf

    name, elements, num_block_bytes = BLOCK_TYPES[type_id]
    rows = raw.reshape(-1, num_block_bytes * (256 // elements if raw.size % 256 == 0 else 1))
    try:
        values = gguf.dequantize(rows, gguf.GGMLQuantizationType(type_id))
    except (NotImplementedError, ValueError) as error:
        raise ModelFormatError(f"the gguf package cannot dequantise {name}: {error}") from error
    return torch.from_numpy(values.reshape(-1))
