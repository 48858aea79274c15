"""The configuration of a model as one frozen record, from any source.

`from_transformers` reads the configurations of the families that `decoder.py` serves
(`families.py`); `gguf/config.py` reads GGUF metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from radixlang.errors import ModelFormatError
from radixlang.kernels.options import AttentionOptions
from radixlang.runtime.models.activations import ACTIVATIONS
from radixlang.runtime.models.families import BY_NAME, ModelFamily

if TYPE_CHECKING:
    from transformers import PretrainedConfig


RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding of one kind of layer.

    `rotary_dim` is how many of a head's dimensions are rotated. `factors` divide the inverse
    frequencies one by one (LongRoPE; GGUF files store Llama 3's scaling this way), and
    `attention_factor` multiplies cosine and sine.
    """

    theta: float
    rotary_dim: int
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and arithmetic of a causal model.

    `windows[i]` is the sliding window of layer i in tokens, None for full attention;
    `layer_rope[i]` indexes `ropes`. `vocab_size` is the width of the logits.
    `norm_offset` is added to stored norm weights (Gemma keeps w for a gain of 1 + w).
    `kv_dtype` is that of the cache, by default `dtype`.
    """

    name: str
    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    windows: tuple[int | None, ...]
    ropes: tuple[RopeConfig, ...]
    layer_rope: tuple[int, ...]
    activation: str = "silu"
    attention_scale: float = 0.0
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    tie_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    kv_dtype: str = ""

    def __post_init__(self) -> None:
        if not self.kv_dtype:
            object.__setattr__(self, "kv_dtype", self.dtype)
        rotated = [rope.rotary_dim for rope in self.ropes]
        sizes = ["num_layers", "hidden_size", "num_heads", "head_dim"]
        if self.family in BY_NAME:  # other architectures may not name it
            sizes.append("intermediate_size")
        wrong = [f"{name}={getattr(self, name)!r}" for name in sizes if getattr(self, name) < 1]
        problems = {
            f"{', '.join(wrong)}: not positive": bool(wrong),
            f"{self.num_heads} query heads do not divide among {self.num_kv_heads} key heads":
                self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads,
            f"rotary dimensions {rotated} are not even numbers up to the head's {self.head_dim}":
                any(dim % 2 or not 0 < dim <= self.head_dim for dim in rotated),
            f"context length {self.context_length} is not positive": self.context_length < 1,
        }  # fmt: skip
        for problem, found in problems.items():
            if found:
                raise ModelFormatError(f"{self.name}: {problem}; the configuration is corrupt")

    def of(self, family: ModelFamily) -> ModelConfig:
        """A copy with the facts that all models of the family share."""
        return replace(
            self,
            family=family.name,
            qk_norm=family.qk_norm,
            post_norms=family.post_norms,
            norm_offset=family.norm_offset,
            embed_scale=family.embed_scale(self.hidden_size),
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values one token takes over all layers, in `kv_dtype`."""
        width = 4 if self.kv_dtype == "float32" else 2
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * width

    def attention_options(self) -> list[AttentionOptions]:
        """How each layer attends."""
        return [
            AttentionOptions(self.attention_scale, window, self.attention_soft_cap)
            for window in self.windows
        ]


def activation_of(name: str, source: str) -> str:
    """Our name of an activation function.

    Raises:
        ModelFormatError: the decoder has no such activation.
    """
    if name not in ACTIVATIONS:
        raise ModelFormatError(
            f"{source}: activation {name!r} is not one of {', '.join(sorted(ACTIVATIONS))}"
        )
    return ACTIVATIONS[name].names[0]


def from_transformers(
    config: PretrainedConfig, *, name: str, dtype: str, context_length: int | None = None
) -> ModelConfig:
    """Read a lean family's transformers configuration.

    LongRoPE models are served up to their original context with the short factors, unless
    `context_length` asks for more: then the long factors hold at every position, as one cache
    cannot hold keys rotated both ways.

    Raises:
        ModelFormatError: an option that the decoder does not have.
    """
    text = config.get_text_config()
    family = BY_NAME[text.model_type]
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    layer_types = _layer_types(text)
    ropes, layer_rope, context = _ropes(text, layer_types, head_dim, context_length, name)
    scalar = getattr(text, "query_pre_attn_scalar", None) or head_dim
    activation = getattr(text, "hidden_activation", None) or text.hidden_act
    return ModelConfig(
        name=name,
        family=family.name,
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_heads=text.num_attention_heads,
        num_kv_heads=text.num_key_value_heads,
        head_dim=head_dim,
        vocab_size=text.vocab_size,
        context_length=context,
        norm_eps=text.rms_norm_eps,
        windows=tuple(
            text.sliding_window if kind == "sliding_attention" else None for kind in layer_types
        ),
        ropes=ropes,
        layer_rope=layer_rope,
        activation=activation_of(activation, name),
        attention_scale=scalar**-0.5,
        attention_soft_cap=getattr(text, "attn_logit_softcapping", None),
        logit_soft_cap=getattr(text, "final_logit_softcapping", None),
        tie_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
        bos_token_id=text.bos_token_id,
        eos_token_ids=as_ids(text.eos_token_id),
        dtype=dtype,
    ).of(family)


RopeParameters: TypeAlias = dict[str, Any]  # of config.json, by transformers' names


def as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """Token ids from the several forms in configurations."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _layer_types(text: PretrainedConfig) -> list[str]:
    types = getattr(text, "layer_types", None)
    if types:
        return list(types)
    window = getattr(text, "sliding_window", None)
    return ["sliding_attention" if window else "full_attention"] * int(text.num_hidden_layers)


def _ropes(
    text: PretrainedConfig, layer_types: list[str], head_dim: int, wanted: int | None, source: str
) -> tuple[tuple[RopeConfig, ...], tuple[int, ...], int]:
    """The RoPE of each kind of layer, the kind of each layer, and the context that they allow."""
    params = text.rope_parameters
    context = int(text.max_position_embeddings)
    if "full_attention" not in params:
        rope, context = _rope(params, head_dim, context, wanted, source)
        return (rope,), (0,) * len(layer_types), context
    full, context = _rope(params["full_attention"], head_dim, context, wanted, source)
    local, context = _rope(params["sliding_attention"], head_dim, context, wanted, source)
    return (full, local), tuple(int(t == "sliding_attention") for t in layer_types), context


def _rope(
    params: RopeParameters, head_dim: int, context: int, wanted: int | None, source: str
) -> tuple[RopeConfig, int]:
    kind = params.get("rope_type", "default")
    rotary_dim = int(head_dim * params.get("partial_rotary_factor", 1.0))
    rope = RopeConfig(theta=float(params["rope_theta"]), rotary_dim=rotary_dim)
    match kind:
        case "default":
            return rope, _at_most(context, wanted)
        case "dynamic":
            # Dynamic NTK rotates every key again once the prompt exceeds the trained length, which
            # a cache of shared prefixes cannot do: serve only lengths that need no scaling.
            trained = int(params.get("original_max_position_embeddings") or context)
            return rope, _at_most(min(context, trained), wanted)
        case "linear":
            scaled = replace(rope, kind="linear", factor=float(params["factor"]))
            return scaled, _at_most(context, wanted)
        case "llama3" | "yarn":
            return replace(rope, kind=kind, **_scaling(params, context)), _at_most(context, wanted)
        case "longrope":
            return _longrope(rope, params, context, wanted)
    raise ModelFormatError(
        f"{source}: rotary scaling {kind!r} is not supported; supported: default, linear, "
        "llama3, yarn, longrope, dynamic (up to the trained context)"
    )


def _scaling(params: RopeParameters, context: int) -> RopeParameters:
    original = int(params.get("original_max_position_embeddings") or context)
    given: RopeParameters = {
        "factor": float(params.get("factor") or context / original),
        "original_context_length": original,
        "attention_factor": params.get("attention_factor"),
        "truncate": bool(params.get("truncate", True)),
    }
    floats = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale",
              "mscale_all_dim")  # fmt: skip
    given |= {key: float(params[key]) for key in floats if params.get(key) is not None}
    return given


def _longrope(
    rope: RopeConfig, params: RopeParameters, context: int, wanted: int | None
) -> tuple[RopeConfig, int]:
    original = int(params.get("original_max_position_embeddings") or context)
    use_long = wanted is not None and wanted > original
    factors = params["long_factor"] if use_long else params["short_factor"]
    scaled = replace(
        rope,
        kind="longrope",
        factor=float(params.get("factor") or context / original),
        original_context_length=original,
        attention_factor=params.get("attention_factor"),
        factors=tuple(float(f) for f in factors),
    )
    return scaled, _at_most(context if use_long else min(context, original), wanted)


def _at_most(context: int, wanted: int | None) -> int:
    return context if wanted is None else min(context, wanted)
