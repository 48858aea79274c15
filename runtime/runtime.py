"""`Runtime`: a model, its radix cache and its engine, in one process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from radixlang.errors import ParameterError, PoolExhaustedError, refuse_pickling
from radixlang.protocol import AdapterUse, Message, adapter_use
from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.adapters.peft_folder import read_peft_folder
from radixlang.runtime.adapters.registry import Adapters
from radixlang.runtime.cache.radix_tree import Namespace
from radixlang.runtime.cache.snapshot import draw, path_tokens
from radixlang.runtime.cache.tree_changes import TreeChanges
from radixlang.runtime.diagnostics import float64_check as comparison
from radixlang.runtime.diagnostics.invariants import Violation
from radixlang.runtime.diagnostics.nan_scan import WildNode, find_wild_nodes
from radixlang.runtime.engine.assemble import build_engine
from radixlang.runtime.engine.engine import EngineCore
from radixlang.runtime.metrics.events import Listener
from radixlang.runtime.metrics.stats import RuntimeStats
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.model import LoadedModel
from radixlang.runtime.process.cores import fit_threads
from radixlang.runtime.process.openmp import end_team, leaves_no_team
from radixlang.runtime.requests.branch import EngineBranch
from radixlang.runtime.requests.branch_state import BranchState, next_name
from radixlang.runtime.requests.prefill_request import prefill
from radixlang.runtime.requests.score_rows import TokenRow, score_rows
from radixlang.runtime.runtime_config import RuntimeConfig, RuntimeOptions
from radixlang.runtime.scheduling.sequence import TokenIds
from radixlang.runtime.text.chat_template import template_text, think_tags_of
from radixlang.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from radixlang.runtime.constraints.compiled import CompiledConstraint


class Runtime:
    """Runs programs on a model; implements `radixlang.protocol.Backend`.

    Args:
        model: a folder of safetensors, a GGUF file, a hub name, a LoadedModel, or None for the
            default model.
        config: how it is served; the fields of `RuntimeConfig` may also be given as keywords
            here, alone or over those of `config`.

    Raises:
        ModelNotFoundError, ModelFormatError: the model cannot be loaded.
        ParameterError: an argument is unknown or out of range, or the pool is too small.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel | None = None,
        *,
        config: RuntimeConfig | None = None,
        **options: Unpack[RuntimeOptions],
    ) -> None:
        self.config = config = RuntimeConfig.of(config, options)
        template = None if config.chat_template is None else template_text(config.chat_template)
        self._owns_weights = not isinstance(model, LoadedModel)
        fit_threads()
        if not isinstance(model, LoadedModel):
            model = load_model(
                model,
                device=config.device,
                dtype=config.dtype,
                quantization=config.quantization,
                kv_dtype=config.kv_dtype,
                context_length=config.context_length,
            )
        if template is not None:
            model = replace(model, tokenizer=model.tokenizer.with_chat_template(template))
        self._loaded = model
        self.num_token_ids = model.config.vocab_size
        self.core = build_engine(model, config)
        self.adapters = Adapters(model.config.num_layers)
        end_team()
        self._thread = threading.Thread(target=self.core.run, name="radixlang-engine", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _stop, self.core, self._thread)

    # ---- Backend

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self._loaded.config.name

    @property
    def context_length(self) -> int:
        """Most tokens of a prompt and its generation together."""
        return self._loaded.config.context_length

    @property
    def loaded(self) -> LoadedModel:
        """The model with its tokenizer and configuration."""
        return self._loaded

    def new_branch(self, *, namespace: str = "") -> EngineBranch:
        """An empty branch. Namespaces share no cached tokens, so timing tells nothing of others."""
        if self.core.is_closed:
            raise self.core.closed_error()
        return EngineBranch(self, BranchState(Namespace(namespace), next_name(), is_born=True))

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The model's own chat template applied to the messages."""
        return self._loaded.tokenizer.render_chat(
            messages, add_generation_prompt=add_generation_prompt
        )

    def render_conversation(
        self, rows: Sequence[Mapping[str, object]], *, tools: Sequence[object] = (),
        add_generation_prompt: bool,
    ) -> str:  # fmt: skip
        """The chat template's own output for messages with all their fields, such as tool calls,
        and for tools as OpenAI's API describes them."""
        return self._loaded.tokenizer.render_conversation(
            rows, tools=tools, add_generation_prompt=add_generation_prompt
        )

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts that are syntax in Markup, and ordinary characters anywhere else."""
        return self._loaded.tokenizer.special_tokens

    @property
    def think_tags(self) -> tuple[str, str] | None:
        """The texts that open and close a thought, if the chat template tells of any."""
        return think_tags_of(self._loaded.tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text run at the start of a prompt, BOS excluded."""
        return self._loaded.tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        return self._loaded.tokenizer.decode(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; empty for an id that the vocabulary does not hold."""
        return self._loaded.tokenizer.token_bytes(token_id)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, which `explain` takes."""
        return self._loaded.tokenizer

    def compile_constraint(self, spec: object) -> CompiledConstraint:
        """Compile a constraint specification for this model's vocabulary (cached by content)."""
        from radixlang.runtime.constraints.compiled import compile_constraint

        loaded = self._loaded
        return compile_constraint(
            spec, loaded.tokenizer, loaded.config.vocab_size, loaded.eos_token_ids
        )

    # ---- adapters

    def load_adapter(self, name: str, folder: str | Path) -> LoraAdapter:
        """Load a LoRA adapter from a folder of PEFT's, under a name for `gen(adapter=…)`.

        The model's weights are not changed. Another adapter of that name is replaced: branches that
        use it go on with the old one, and nothing cached under the old one is read by the new one.

        Raises:
            AdapterFormatError: the folder holds no such adapter, one of a kind that is not served,
                or one for another model.
        """
        if not isinstance(name, str) or not name:
            raise ParameterError(f"an adapter's name must be a string, got {name!r}")
        adapter = read_peft_folder(folder, name)
        self.core.call(lambda: self.core.admin.bind_adapter(adapter))
        self.adapters.put(adapter)
        return adapter

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; branches that use it go on. Raises a ParameterError if there is none
        of that name."""
        self.adapters.remove(name)

    def list_adapters(self) -> list[LoraAdapter]:
        """The loaded adapters, in the order of loading."""
        return self.adapters.all()

    # ---- prefixes and weights

    def prebuild(
        self, content: str | Sequence[int], *, name: str = "prebuilt", namespace: str = ""
    ) -> int:
        """Compute a prefix now and pin it; returns its number of tokens.

        Several prefixes may have one name; `unpin(name)` unpins all of them.

        Raises:
            PoolExhaustedError: pinned prefixes leave no room under `max_pinned_tokens`.
        """
        branch = self.new_branch(namespace=namespace)
        try:
            branch.extend(content)
            tokens = np.array(prefill(branch, lambda: self.stats().num_prompt_tokens), np.int32)
            space = Namespace(namespace)
            num_tokens: int = self.core.call(lambda: self.core.admin.pin(name, space, tokens))
        finally:
            branch.release()
        if num_tokens < len(tokens):
            raise PoolExhaustedError(
                f"the prefix {name!r} of {len(tokens)} tokens cannot be kept: "
                f"{self.stats().num_pinned_tokens} of max_pinned_tokens="
                f"{self.core.pins.max_tokens} are taken. unpin() another one, or raise the cap"
            )
        return num_tokens

    def unpin(self, name: str = "prebuilt") -> None:
        """Unpin the prefixes of a name; there may be none."""
        self.core.call(lambda: self.core.pins.release(name))

    def update_weights(self, model: str | Path | LoadedModel) -> None:
        """Replace the weights by others of the same model, without stopping.

        Running requests keep their tokens; everything cached under the old weights is dropped, and
        never read again. On a GPU, weights that this runtime has loaded are overwritten where they
        are, from a copy in the host's memory; a LoadedModel that was given takes the old one's
        place instead, which is left as it is.

        Raises:
            ParameterError: the model differs in more than its weights.
        """
        in_place = False
        if not isinstance(model, LoadedModel):
            in_place = self._owns_weights and not self.core.device.is_host
            config = self._loaded.config
            model = load_model(
                model,
                device="cpu" if in_place else str(self._loaded.model.device),
                dtype=config.dtype,
                quantization=self._loaded.quantization,
                kv_dtype=config.kv_dtype,
            )
        old, new = (_shape(each) for each in (self._loaded, model))
        for field, value in old.items():
            if new[field] != value:
                raise ParameterError(
                    f"update_weights needs the same model: {field} is {new[field]!r}, not "
                    f"{value!r} as in the one that runs. Make a new Runtime for another model"
                )
        held, causal = self._loaded.model, model.model
        if in_place:
            self.core.call(lambda: self.core.admin.update_weights(held, causal))
            self._loaded = replace(model, model=held)
            return
        self.core.call(lambda: self.core.admin.update_weights(causal))
        self._loaded, self._owns_weights = model, False

    @property
    def weights_version(self) -> int:
        """How many times `update_weights` has replaced the weights."""
        return self.core.branches.weights_version

    def score(
        self, rows: Sequence[TokenRow], *, namespace: str = "",
        adapter: str | AdapterUse | None = None,
    ) -> list[tuple[float, ...]]:  # fmt: skip
        """Log-probabilities of the rows' completions under the weights in use, a tuple a row.

        What rows share is computed once, prompts and completions alike; no token is tokenised.

        Args:
            rows: `Rollout`s, or any objects with `prompt_ids` (at least one) and `completion_ids`.
            adapter: computes all of their tokens.
        """
        return score_rows(self, rows, namespace, adapter_use(adapter))

    # ---- looking inside

    def on_event(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(event)` for every event from now on, see `EngineEvent`.

        It is called on a separate thread, in the order of events; it may be slow, and may call this
        runtime. Its exceptions are logged. Returns a function that ends it, after it has received
        the events so far.
        """
        events = self.core.memory.events
        self.core.call(lambda: events.listen(listener))

        def end() -> None:
            for courier in self.core.call(lambda: events.leave(listener)):
                courier.end()

        return end

    def stats(self) -> RuntimeStats:
        """Statistics since the last reset, as of the last step. Never blocks."""
        return self.core.stats

    def reset_stats(self) -> None:
        """Count from zero again; the peak starts at what is held now."""
        self.core.call(self.core.admin.reset_counters)

    def watch_tree(self) -> TreeChanges:
        """Keep what enters and leaves the tree from here on, until it is taken from the result."""
        changes = TreeChanges()
        self.core.call(lambda: self.core.admin.watch_tree(changes))
        return changes

    def flush_cache(self) -> int:
        """Evict everything that no branch holds; returns the number of tokens."""
        num_tokens: int = self.core.call(self.core.admin.flush)
        return num_tokens

    def audit(self) -> list[Violation]:
        """Violated invariants: the current ones, and in debug mode those of every step so far."""
        found: list[Violation] = self.core.call(lambda: self.core.all_violations())
        return found

    def find_wild_nodes(self, *, max_abs: float = 1e4) -> list[WildNode]:
        """Cached nodes with a key or value that is NaN, infinite, or larger than max_abs."""
        memory = self.core.memory
        found: list[WildNode] = self.core.call(
            lambda: find_wild_nodes(memory.tree, memory.cache, max_abs=max_abs)
        )
        return found

    @leaves_no_team
    def compare_with_float64(
        self, content: str | Sequence[int], *, namespace: str = "", tolerance: float | None = None
    ) -> comparison.Float64Comparison:
        """Compare the cached path of a text, node by node, with that text alone in float64.

        Slow (a second for some hundred tokens), but on the caller's thread: the engine goes on.

        Args:
            content: text, or the token ids of a branch (`branch.tokens().result()`).
            tolerance: error from which a node counts as diverged; see `NodeError.error`. By
                default 0.001 for a model in float32, and 1 for one in 16 or 8 bits.
        """
        core, model = self.core, self.core.runner.model
        tokens = self._tokens_of(content, namespace)
        path: comparison.CachedPath = core.call(
            lambda: comparison.read_path(
                core.memory.tree,
                core.memory.cache,
                model,
                core.branches.current(Namespace(namespace)),
                tokens,
            )
        )
        loaded = self._loaded
        is_exact = loaded.quantization is None and loaded.config.dtype == "float32"
        limit = tolerance if tolerance is not None else (1e-3 if is_exact else 1.0)
        return comparison.compare(path, model, tokens, limit)

    def _tokens_of(self, content: str | Sequence[int], namespace: str) -> TokenIds:
        branch = self.new_branch(namespace=namespace)
        branch.extend(content)
        tokens = np.array(branch.tokens().result(), np.int32)
        branch.release()
        return tokens

    def tree_text(self, *, max_text: int = 40, max_children: int = 20) -> str:
        """A drawing of the radix tree: tokens, leases, hits and text of every node."""
        snapshot = self.core.call(self.core.admin.snapshot)
        return draw(snapshot, self.decode, max_text=max_text, max_children=max_children)

    def path_tokens(self) -> tuple[int, int, int]:
        """(tokens held once, tokens if each path had its own copy, paths) of the current tree."""
        snapshot = self.core.call(self.core.admin.snapshot)
        num_unshared, num_paths = path_tokens(snapshot)
        return snapshot.num_cached_tokens, num_unshared, num_paths

    def profile(self) -> dict[str, float]:
        """Seconds that the engine spent, by part, since the last reset, and `num_steps`.

        "model" is the forward pass and the logits, "plan" the attention plan, "tree" insertions
        into the radix tree, "text" decoding tokens and delivering text, and "other" the engine's
        Python outside these parts: requests, statistics, the step's own code. Waiting for work is
        in none.
        """
        return self.core.profile.report()

    # ---- the end

    def close(self) -> None:
        """Fail pending requests with a RuntimeClosedError and end the engine's thread."""
        self._finalizer()

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a Runtime", "make one in each process, or serve all from one process")

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Runtime({self.model_name!r}, {self._loaded.model.device})"


def _shape(loaded: LoadedModel) -> dict[str, object]:
    """The properties that two sets of weights must share."""
    config = loaded.config
    names = ("family", "num_layers", "num_kv_heads", "head_dim", "vocab_size", "context_length",
             "windows", "ropes", "dtype", "kv_dtype")  # fmt: skip
    tokens = [loaded.tokenizer.token_bytes(i) for i in range(loaded.tokenizer.vocab_size)]
    return {name: getattr(config, name) for name in names} | {"tokenizer": hash(tuple(tokens))}


def _stop(core: EngineCore, thread: threading.Thread) -> None:
    if not core.is_here:
        return
    core.stop()
    if thread is not threading.current_thread():
        thread.join()
        for courier in core.memory.events.leave_all():
            courier.end()
