"""The facts that all models of a family share: one entry for each family that the decoder serves.

`config.py` reads the facts of a single model from a folder, `gguf/` from a GGUF file; neither
knows a family by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """A family by its name in transformers (`model_type`).

    Args:
        gguf: its `general.architecture` in GGUF files; None: it has none of its own.
        activation: of the gated MLP, if a file does not name it: a name of `activations`.
        qk_norm: queries and keys are normalised by head.
        post_norms: attention and MLP have a norm after them too.
        norm_offset: added to stored norm weights (Gemma keeps w for a gain of 1 + w).
        scales_embedding: embedded tokens are multiplied by the root of the hidden size.
        attention_soft_cap, logit_soft_cap: for files without them.
        window_period: if a file does not list its layers, every such layer has full attention and
            the others a window. None: all layers are alike.
        reads_gguf_window: whether a window in a GGUF file is in use; Qwen's is stored but off.
        rope_theta: for files without it.
        local_rope_theta: of the layers with a window; None: all layers have one rotation.
        depths_scaled_by_width: numbers of layers of the models whose attention scale is that of
            hidden_size / num_heads and not of head_dim. GGUF files have no key for it.
        gguf_pairs_side_by_side: llama.cpp's converter has put the rows of q and k in pairs.
        gguf_spaces: how a SentencePiece vocabulary in GGUF writes spaces: "prefix" puts one before
            the text, "prefix_pieces" before every piece between special tokens, "literal" none,
            and its tokens hold runs of spaces as they are.
        close_in_8_bits: `benchmarks/quality.py` found its 8-bit models within KL 0.01 and top-1
            0.95 of float32, so "auto" may choose 8 bits.
    """

    name: str
    gguf: str | None = None
    activation: str = "silu"
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    scales_embedding: bool = False
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    window_period: int | None = None
    reads_gguf_window: bool = True
    rope_theta: float = 10_000.0
    local_rope_theta: float | None = None
    depths_scaled_by_width: frozenset[int] = frozenset()
    gguf_pairs_side_by_side: bool = False
    gguf_spaces: Literal["prefix", "prefix_pieces", "literal"] = "prefix"
    close_in_8_bits: bool = False

    def embed_scale(self, hidden_size: int) -> float:
        """The factor of embedded tokens."""
        return hidden_size**0.5 if self.scales_embedding else 1.0


FAMILIES = (
    ModelFamily(name="llama", gguf="llama", gguf_pairs_side_by_side=True, close_in_8_bits=True),
    ModelFamily(name="mistral"),  # its GGUF files say llama
    ModelFamily(name="qwen2", gguf="qwen2", reads_gguf_window=False),
    ModelFamily(name="qwen3", gguf="qwen3", qk_norm=True, reads_gguf_window=False),
    ModelFamily(
        name="gemma2",
        gguf="gemma2",
        activation="gelu_tanh",
        post_norms=True,
        norm_offset=1.0,
        scales_embedding=True,
        attention_soft_cap=50.0,
        logit_soft_cap=30.0,
        window_period=2,
        depths_scaled_by_width=frozenset({46}),  # 27B
        gguf_spaces="literal",
    ),
    ModelFamily(
        name="gemma3_text",
        gguf="gemma3",
        activation="gelu_tanh",
        qk_norm=True,
        post_norms=True,
        norm_offset=1.0,
        scales_embedding=True,
        window_period=6,
        rope_theta=1_000_000.0,
        local_rope_theta=10_000.0,
        depths_scaled_by_width=frozenset({62}),  # 27B
        gguf_spaces="literal",
        close_in_8_bits=True,
    ),
    ModelFamily(name="phi3", gguf="phi3", gguf_spaces="prefix_pieces"),
)
BY_NAME = {family.name: family for family in FAMILIES}
BY_GGUF = {family.gguf: family for family in FAMILIES if family.gguf is not None}
CLOSE_IN_8_BITS = frozenset(family.name for family in FAMILIES if family.close_in_8_bits)
