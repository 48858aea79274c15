"""Every other causal model: transformers' own classes, with attention through our plan and pool.

The model runs on a flat batch as one sequence with explicit positions; each attention layer calls
a function of ours instead of its own, which writes to the pool and attends over the tree. That
function is registered with transformers for each model, as a method of its layers' state: not every
architecture passes further keyword arguments of `forward` to its attention (StableLM does not), so
a step's plan and pool cannot be passed that way.

`load_transformers_model` checks that attention is all the model does between tokens: it compares a
short prompt, computed in two steps, with transformers' eager attention, and refuses a model that
differs (ALiBi, recurrent state, layers that bypass the hook).

Projections are not fused here, so the lean decoder is faster for the families that it serves.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from radixlang.errors import ModelFormatError
from radixlang.kernels.attention import StepPlan, attend
from radixlang.kernels.layer_kv import KVLayers, LayerKV
from radixlang.kernels.native.library import Library
from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import chain
from radixlang.progress import doing
from radixlang.runtime.models.config import ModelConfig, as_ids
from radixlang.runtime.models.model import plan_for

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


ATTENTION_NAME = "radixlang"
_NUM_PROBE, _PROBE_SPLIT = 8, 5


_numbers = itertools.count()


class _LayerCalls:
    """The attention function of one model's layers, which call it in their order."""

    def __init__(self) -> None:
        self._plan: StepPlan | None = None
        self._kv: KVLayers | None = None
        self.count = 0

    @contextmanager
    def during(self, plan: StepPlan, kv: KVLayers) -> Iterator[None]:
        """One forward pass over a plan and a pool."""
        self._plan, self._kv, self.count = plan, kv, 0
        try:
            yield
        finally:
            self._plan = self._kv = None

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **_: object,
    ) -> tuple[torch.Tensor, None]:
        """transformers' attention interface over our plan.

        query [1, num_heads, num_tokens, head_dim], key and value with num_kv_heads; returns
        [1, num_tokens, num_heads, value_dim].
        """
        if self._plan is None or self._kv is None:
            raise RuntimeError("this model's attention runs inside TransformersModel.forward only")
        layer_kv = self._kv[self.count]
        self.count += 1
        q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
        value_dim = v.shape[-1]
        v = F.pad(v, (0, q.shape[-1] - value_dim))  # multi-head latent attention: narrower values
        scale = q.shape[-1] ** -0.5 if scaling is None else float(scaling)
        options = AttentionOptions(scale, sliding_window or None, softcap, s_aux)
        return attend(q, k, v, layer_kv, self._plan, options)[None, ..., :value_dim], None


@dataclass(frozen=True, slots=True)
class _LayerShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None


class TransformersModel:
    """A `CausalModel` over a transformers model; see the module's docstring.

    `library` attends, on a CPU; None: plain torch.
    """

    def __init__(
        self, model: PreTrainedModel, config: ModelConfig, library: Library | None = None
    ) -> None:
        from transformers import AttentionInterface

        self.config = config
        self.library = library
        self._model = model
        self._layers = _LayerCalls()
        name = f"{ATTENTION_NAME}_{next(_numbers)}"
        AttentionInterface.register(name, self._layers.attend)
        model.set_attn_implementation(name)
        self._base = model.base_model
        self._head = _head_only(model)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self._model.device
        return device

    @property
    def batch_invariant(self) -> bool:
        """False: torch's products may round a row otherwise in other company."""
        return False

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(weight.nbytes for weight in self._model.parameters())

    def weights(self) -> list[torch.Tensor]:
        """Every parameter and buffer, in the model's own order."""
        return [*self._model.parameters(), *self._model.buffers()]

    @torch.no_grad()
    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, plan: StepPlan, kv: KVLayers
    ) -> torch.Tensor:
        """Run the layers over a flat batch; returns hidden states [num_tokens, hidden_size].

        Raises:
            ModelFormatError: a layer did not go through our attention.
        """
        with self._layers.during(plan, kv):
            output = self._base(
                input_ids=input_ids[None], position_ids=positions[None], use_cache=False
            )
        if self._layers.count != self.config.num_layers:
            raise ModelFormatError(
                f"{self.config.name}: {self._layers.count} of {self.config.num_layers} layers went "
                f"through our attention; architecture {self.config.family!r} is not supported"
            )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    @torch.no_grad()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab_size] in float32 of the given rows of `forward`'s result."""
        logits: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits.float()


def _shape_recorder(shapes: list[_LayerShape]) -> Callable[..., tuple[torch.Tensor, None]]:
    """An attention function that only records the shapes of each layer."""

    def record(
        module: object, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        *args: object, sliding_window: int | None = None, **_: object,
    ) -> tuple[torch.Tensor, None]:  # fmt: skip
        shapes.append(
            _LayerShape(query.shape[1], key.shape[1], query.shape[3], sliding_window or None)
        )
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3])), None

    return record


class _Hidden:
    """Hidden states in place of a base model's output; every other field is None."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class _PassThrough(torch.nn.Module):
    """Replaces the layers and returns the hidden states it is given."""

    @property
    def decoder(self) -> _PassThrough:
        """Itself, for heads that use the decoder inside their base model."""
        return self

    def forward(self, *_: object, inputs_embeds: torch.Tensor, **__: object) -> _Hidden:
        return _Hidden(inputs_embeds)


def _head_only(model: PreTrainedModel) -> PreTrainedModel:
    """The model without layers: its own path from hidden states to logits, with scales and caps."""
    head = copy.copy(model)
    head._modules = dict(model._modules)
    head._modules[model.base_model_prefix] = _PassThrough()
    return head


@contextmanager
def bars_at_a_terminal_only() -> Iterator[None]:
    """Within this context transformers draws bars only at a terminal, as ours are."""
    from transformers.utils import logging as theirs

    logging: Any = theirs  # untyped in transformers
    quiet = logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    if quiet:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if quiet:
            logging.enable_progress_bar()


def load_transformers_model(
    folder: Path,
    config: PretrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    context_length: int | None = None,
    library: Library | None = None,
) -> TransformersModel:
    """Load a folder through transformers and check it against eager attention.

    Raises:
        ModelFormatError: transformers cannot load it, or our plan gives other logits.
    """
    with doing("importing transformers"):
        from transformers import AutoModelForCausalLM

    try:
        with bars_at_a_terminal_only():
            # transformers gives to() no type
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=dtype, local_files_only=True,
                attn_implementation="eager",
            )  # fmt: skip
    except Exception as error:
        raise ModelFormatError(
            f"{folder}: transformers cannot load this model ({type(error).__name__}: {error})"
        ) from error
    with doing(f"checking {folder.name} against transformers"):
        return wrap(model.to(device), folder.name, context_length, library)


def wrap(
    model: PreTrainedModel,
    name: str,
    context_length: int | None = None,
    library: Library | None = None,
) -> TransformersModel:
    """Wrap a loaded transformers model.

    Raises:
        ModelFormatError: the architecture does something between tokens that our attention
            does not see, or its layers differ in their heads.
    """
    untyped: Any = model  # transformers gives eval() no type
    untyped.eval().requires_grad_(False)
    probe = (
        torch.arange(_NUM_PROBE, device=model.device) % model.config.get_text_config().vocab_size
    )
    with torch.no_grad():
        expected = model(input_ids=probe[None], use_cache=False).logits[0].float()
    try:
        shapes = _layer_shapes(model, probe)
        config = _config(model, name, shapes, context_length)
        ours = TransformersModel(model, config, library)
        found = _probe(ours, probe)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise ModelFormatError(
            f"{name}: architecture {model.config.model_type!r} cannot run through our attention "
            f"({type(error).__name__}: {error})"
        ) from error
    _compare(found, expected, ours.config)
    return ours


def _layer_shapes(model: PreTrainedModel, probe: torch.Tensor) -> list[_LayerShape]:
    from transformers import AttentionInterface

    shapes: list[_LayerShape] = []
    AttentionInterface.register(f"{ATTENTION_NAME}_shapes", _shape_recorder(shapes))
    model.set_attn_implementation(f"{ATTENTION_NAME}_shapes")
    with torch.no_grad():
        model.base_model(input_ids=probe[None], use_cache=False)
    if not shapes:
        raise ValueError("no layer uses transformers' attention interface")
    if len({(s.num_heads, s.num_kv_heads, s.head_dim) for s in shapes}) > 1:
        raise ValueError("its layers differ in their number or size of heads")
    return shapes


def _config(
    model: PreTrainedModel, name: str, shapes: list[_LayerShape], context_length: int | None
) -> ModelConfig:
    text = model.config.get_text_config()
    own = getattr(text, "max_position_embeddings", None) or 2**20
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return ModelConfig(
        name=name,
        family=text.model_type,
        num_layers=len(shapes),
        hidden_size=text.hidden_size,
        intermediate_size=getattr(text, "intermediate_size", None) or 0,
        num_heads=shapes[0].num_heads,
        num_kv_heads=shapes[0].num_kv_heads,
        head_dim=shapes[0].head_dim,
        vocab_size=head.weight.shape[0] if head is not None else text.vocab_size,
        context_length=own if context_length is None else min(own, context_length),
        norm_eps=0.0,
        windows=tuple(shape.window for shape in shapes),
        ropes=(),
        layer_rope=(),
        bos_token_id=getattr(text, "bos_token_id", None),
        eos_token_ids=as_ids(getattr(text, "eos_token_id", None)),
        dtype=str(model.dtype).removeprefix("torch."),
    )


def _probe(model: TransformersModel, probe: torch.Tensor) -> torch.Tensor:
    """Logits of the probe in two steps, as a shared segment and a branch below it."""
    config = model.config
    size = (_NUM_PROBE, config.num_kv_heads, config.head_dim)
    dtype = getattr(torch, config.dtype)
    kv = [LayerKV(torch.zeros(size, dtype=dtype, device=model.device),
                  torch.zeros(size, dtype=dtype, device=model.device))
          for _ in range(config.num_layers)]  # fmt: skip
    logits = []
    for start, stop in ((0, _PROBE_SPLIT), (_PROBE_SPLIT, _NUM_PROBE)):
        cuts = [0, stop] if not start else [0, start, stop]
        plan = plan_for(model, chain(cuts, start))
        hidden = model.forward(probe[start:stop], plan.positions, plan, kv)
        logits.append(model.logits(hidden))
    return torch.cat(logits)


def _compare(found: torch.Tensor, expected: torch.Tensor, config: ModelConfig) -> None:
    """Largest difference in float32; in half precision the mean one, as single logits stray."""
    error = (found - expected) / (float(expected.std()) or 1.0)
    if config.dtype == "float32":
        kind, size, tolerance = "largest", float(error.abs().max()), 1e-3
    else:
        kind, size, tolerance = "mean", float(error.square().mean().sqrt()), 0.1
    if not size < tolerance:
        raise ModelFormatError(
            f"{config.name}: architecture {config.family!r} gives other logits through our "
            f"attention than in transformers ({kind} difference {size:.2g} standard deviations in "
            f"{config.dtype}): it does something between tokens that radixlang does not support"
        )
