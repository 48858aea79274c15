"""`ModelConfig` from the metadata of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from radixlang.errors import ModelFormatError
from radixlang.runtime.models.config import ModelConfig, RopeConfig
from radixlang.runtime.models.families import BY_GGUF, ModelFamily
from radixlang.runtime.models.gguf.file import GgufFile, Metadata
from radixlang.runtime.models.gguf.weights import dequantize

_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class _Keys:
    """Metadata under the architecture's prefix."""

    file: GgufFile
    family: ModelFamily

    @property
    def architecture(self) -> str:
        return self.family.gguf or ""

    def get(self, key: str, default: object = _REQUIRED) -> Any:  # of the key's own type
        full = f"{self.architecture}.{key}"
        value = self.file.metadata.get(full, default)
        if value is _REQUIRED:
            raise ModelFormatError(
                f"{self.file.path}: metadata key {full!r} is missing; the file was converted "
                "incompletely. Convert or download it again"
            )
        return value

    def count(self, key: str, default: object = _REQUIRED) -> int:
        value = self.get(key, default)
        if isinstance(value, np.ndarray):
            if len(set(value.tolist())) != 1:
                raise ModelFormatError(
                    f"{self.file.path}: {self.architecture}.{key} differs between layers, which "
                    "is not supported"
                )
            value = int(value[0])
        if not isinstance(value, int) or value < 1:
            raise ModelFormatError(
                f"{self.file.path}: metadata key '{self.architecture}.{key}' is {value!r}, not a "
                "positive integer; the file is corrupt. Download it again"
            )
        return value


def gguf_config(file: GgufFile, *, dtype: str, context_length: int | None = None) -> ModelConfig:
    """Read the configuration of one of the lean families.

    Raises:
        ModelFormatError: another architecture, or a missing or impossible value.
    """
    architecture = file.metadata.get("general.architecture")
    family = BY_GGUF.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise ModelFormatError(
            f"{file.path}: architecture {architecture!r} is not served from GGUF; supported: "
            f"{', '.join(BY_GGUF)}. Other causal models load from a folder of safetensors"
        )
    if "blk.0.ffn_gate_exps.weight" in file.tensors or "blk.0.ffn_gate_inp.weight" in file.tensors:
        raise ModelFormatError(
            f"{file.path}: a mixture of experts is not served from GGUF; load it from a folder of "
            "safetensors"
        )
    keys = _Keys(file, family)
    num_layers, hidden_size = _num_layers(keys), keys.count("embedding_length")
    num_heads = keys.count("attention.head_count")
    head_dim = keys.count("attention.key_length", hidden_size // num_heads)
    ropes, layer_rope, context = _ropes(keys, num_layers, head_dim, context_length)
    by_width = num_layers in family.depths_scaled_by_width
    return ModelConfig(
        name=file.path.stem,  # the metadata often has a training label instead
        family=family.name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=keys.count("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=keys.count("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=_vocab_size(file),
        context_length=context,
        norm_eps=float(keys.get("attention.layer_norm_rms_epsilon")),
        windows=_windows(keys, num_layers),
        ropes=ropes,
        layer_rope=layer_rope,
        activation=family.activation,
        attention_scale=(hidden_size // num_heads if by_width else head_dim) ** -0.5,
        attention_soft_cap=_soft_cap(keys, "attn_logit_softcapping", family.attention_soft_cap),
        logit_soft_cap=_soft_cap(keys, "final_logit_softcapping", family.logit_soft_cap),
        tie_embeddings="output.weight" not in file.tensors,
        bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=eos_ids(file.metadata),
        dtype=dtype,
    ).of(family)


def eos_ids(metadata: Metadata) -> tuple[int, ...]:
    """Ids of all tokens that the file says end a text or a turn."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (metadata.get(f"tokenizer.ggml.{key}") for key in keys)
    return tuple(dict.fromkeys(int(value) for value in found if value is not None))


def _vocab_size(file: GgufFile) -> int:
    """Rows of the embedding: the width of the logits, padding included."""
    if "token_embd.weight" not in file.tensors:
        raise ModelFormatError(
            f"{file.path}: tensor 'token_embd.weight' is missing; the file is incomplete. "
            "Download it again"
        )
    return file.tensors["token_embd.weight"].shape[0]


def _soft_cap(keys: _Keys, key: str, default: float | None) -> float | None:
    value = keys.get(key, default)
    return float(value) if value else None


def _num_layers(keys: _Keys) -> int:
    """The number of layers, refused if the file cannot have so many, before any is built."""
    claimed = keys.count("block_count")
    if claimed > len(keys.file.tensors):
        raise ModelFormatError(
            f"{keys.file.path}: it claims {claimed:,} layers and has {len(keys.file.tensors):,} "
            "tensors; the file is corrupt. Download it again"
        )
    return claimed


def _windows(keys: _Keys, num_layers: int) -> tuple[int | None, ...]:
    """Windows by the file's list of layers, else by the family's period, else the same for all."""
    window = keys.get("attention.sliding_window", None) or None
    if not keys.family.reads_gguf_window:
        window = None
    pattern = keys.get("attention.sliding_window_pattern", None)
    if isinstance(pattern, np.ndarray) and len(pattern) == num_layers:
        return tuple(window if flag else None for flag in pattern.tolist())
    period = keys.family.window_period
    if period is None:
        return (window,) * num_layers
    return tuple(window if (i + 1) % period else None for i in range(num_layers))


def _ropes(
    keys: _Keys, num_layers: int, head_dim: int, wanted: int | None
) -> tuple[tuple[RopeConfig, ...], tuple[int, ...], int]:
    context = keys.count("context_length")
    rotary_dim = int(keys.get("rope.dimension_count", head_dim))
    theta = float(keys.get("rope.freq_base", keys.family.rope_theta))
    full, context = _scaled(keys, RopeConfig(theta, rotary_dim), context, wanted)
    if wanted is not None:
        context = min(context, wanted)
    local_theta = keys.family.local_rope_theta
    if local_theta is None:
        return (full,), (0,) * num_layers, context
    local = RopeConfig(float(keys.get("rope.freq_base_swa", local_theta)), rotary_dim)
    windows = _windows(keys, num_layers)
    return (full, local), tuple(int(window is not None) for window in windows), context


def _scaled(
    keys: _Keys, rope: RopeConfig, context: int, wanted: int | None
) -> tuple[RopeConfig, int]:
    """The RoPE with the file's scaling, and the context that it serves."""
    original = int(keys.get("rope.scaling.original_context_length", context))
    # fields of a RopeConfig
    common: dict[str, Any] = {
        "theta": rope.theta,
        "rotary_dim": rope.rotary_dim,
        "factor": float(keys.get("rope.scaling.factor", 1.0)),
        "original_context_length": original,
    }
    if "rope_factors_short.weight" in keys.file.tensors:
        use_long = wanted is not None and wanted > original
        factors = _tensor(keys.file, f"rope_factors_{'long' if use_long else 'short'}.weight")
        attention = keys.get("rope.scaling.attn_factor", None)
        common["factor"] = context / original
        longrope = RopeConfig(**common, kind="longrope", factors=factors,
                              attention_factor=attention)  # fmt: skip
        return longrope, context if use_long else min(context, original)
    if "rope_freqs.weight" in keys.file.tensors:
        factors = _tensor(keys.file, "rope_freqs.weight")
        return RopeConfig(rope.theta, rope.rotary_dim, factors=factors), context
    match keys.get("rope.scaling.type", "none"):
        case "none":
            return rope, context
        case "linear":
            return RopeConfig(**common, kind="linear"), context
        case "yarn":
            return RopeConfig(**common, kind="yarn"), context
        case other:
            raise ModelFormatError(
                f"{keys.file.path}: rotary scaling {other!r} is not supported; supported: none, "
                "linear, yarn, and factors stored as tensors"
            )


def _tensor(file: GgufFile, name: str) -> tuple[float, ...]:
    return tuple(dequantize(file.data(name), file.tensors[name].type_id).tolist())
