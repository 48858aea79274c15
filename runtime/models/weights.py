"""Sources of a decoder's weights: one small interface over safetensors and GGUF.

Tensors go by our own names, the same for all families. A layer's tensors are named
`layers.<i>.<part>.weight` (or `.bias`); the parts are attn_norm, attn_post_norm, mlp_norm,
mlp_post_norm, q_norm, k_norm, q, k, v, o, gate, up and down, and in Phi-3's files qkv and gate_up,
which are fused. Outside the layers there are embed, norm and head.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import torch

from radixlang.errors import ModelFormatError
from radixlang.runtime.models.decoder import Embedding


class WeightSource(Protocol):
    """Weights by our names, on the CPU, as stored or dequantised to float32.

    `origin`: the file or folder, for messages.
    `pairs_side_by_side`: rows of q and k are already in the order of `rotary.rotate`.
    `norm_offset_folded`: norm gains are stored as the factor itself, for every family.
    """

    origin: str
    pairs_side_by_side: bool
    norm_offset_folded: bool

    def __contains__(self, name: str) -> bool: ...

    def take(self, name: str) -> torch.Tensor:
        """The tensor of that name.

        Raises:
            ModelFormatError: the file has no such tensor, or cannot be read there.
        """
        ...

    def lookup(self, name: str) -> Embedding | None:
        """An embedding that reads stored rows; None if a table in memory is as small."""
        ...


_TRANSFORMERS_PARTS = {
    "attn_norm": "input_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "qkv": "self_attn.qkv_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "gate_up": "mlp.gate_up_proj",
    "down": "mlp.down_proj",
}
_PLAIN_NORMS = {"mlp_norm": "post_attention_layernorm"}
_POST_NORMS = {
    "attn_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
_OUTER = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_LAYER_NAME = re.compile(r"layers\.(\d+)\.(\w+)\.(weight|bias)")


def transformers_name(name: str, *, post_norms: bool) -> str:
    """The name that transformers gives to a tensor of ours."""
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        part, kind = name.rsplit(".", 1)
        return f"{_OUTER[part]}.{kind}"
    index, part, kind = match.groups()
    parts = _TRANSFORMERS_PARTS | (_POST_NORMS if post_norms else _PLAIN_NORMS)
    return f"model.layers.{index}.{parts.get(part, part)}.{kind}"


class StateDictWeights:
    """Weights under transformers' names, from any mapping of tensors."""

    pairs_side_by_side = False
    norm_offset_folded = False

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], origin: str, *, post_norms: bool
    ) -> None:
        self._tensors = tensors
        self.origin = origin
        self._post_norms = post_norms
        self._prefixes = _prefixes(tensors)

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def take(self, name: str) -> torch.Tensor:
        """The tensor of that name. Raises ModelFormatError if there is none."""
        found = self._find(name)
        if found is None:
            wanted = transformers_name(name, post_norms=self._post_norms)
            raise ModelFormatError(
                f"{self.origin}: tensor {wanted!r} is missing; the checkpoint is incomplete or "
                "its config.json describes another model. Download it again"
            )
        return self._tensors[found].detach()

    def lookup(self, name: str) -> None:
        """None: these weights are floating-point tables."""

    def _find(self, name: str) -> str | None:
        wanted = transformers_name(name, post_norms=self._post_norms)
        for old, new in self._prefixes:
            if wanted.startswith(old) and (candidate := new + wanted[len(old) :]) in self._tensors:
                return candidate
        return None


def _prefixes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Alternative prefixes of names: text models in multimodal checkpoints have a longer one."""
    known = [("", "")]
    if any(name.startswith(("language_model.", "model.language_model.")) for name in names):
        known += [("model.", "language_model.model."), ("model.", "model.language_model."),
                  ("lm_head.", "language_model.lm_head.")]  # fmt: skip
    return known


class TensorFile(Protocol):
    """An open file of safetensors."""

    def keys(self) -> Iterable[str]: ...
    def get_tensor(self, name: str) -> torch.Tensor: ...


class SafetensorsFiles(Mapping[str, torch.Tensor]):
    """All tensors of a folder's safetensors files, read from disk when asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._handles: dict[str, TensorFile] = {}
        for path in _shards(folder):
            handle = _open(path, stack)
            self._handles |= dict.fromkeys(handle.keys(), handle)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._handles[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)


def _open(path: Path, stack: ExitStack) -> TensorFile:
    from safetensors import SafetensorError, safe_open

    try:
        file: TensorFile = stack.enter_context(safe_open(path, framework="pt"))
        return file
    except (OSError, SafetensorError) as error:
        raise ModelFormatError(
            f"{path}: not a readable safetensors file ({error}); it may be truncated. "
            "Download it again"
        ) from error


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelFormatError(
                f"{index}: not a readable index of shards ({error!r})"
            ) from error
        paths = [folder / name for name in names]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        lacking = ", ".join(missing) or "*.safetensors"
        raise ModelFormatError(
            f"{folder}: weights are missing ({lacking}); radixlang reads safetensors and GGUF. "
            "Download the rest, or convert with model.save_pretrained(folder)"
        )
    return paths
