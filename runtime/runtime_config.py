"""`RuntimeConfig`: how a runtime serves its model, as one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from radixlang.attention import EXACT, Attention, Exact, TopMass, TopPages
from radixlang.errors import ParameterError
from radixlang.runtime.cache.eviction import POLICIES
from radixlang.runtime.scheduling.waiting_queue import ORDERS
from radixlang.spellings import hint_for
from radixlang.suggestions import suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """How a runtime serves its model; every field is a keyword of `Runtime`, too.

    Args:
        device: "cpu", "cuda", "cuda:1" or "auto", which takes a GPU if there is one.
        dtype: "float32", "float16", "bfloat16" or "auto".
        quantization: "file" for a GGUF file's own blocks, "int8", None for the checkpoint's own
            values, or "auto"; see load_model.
        kv_dtype: of the cache: "float32", "float16", "bfloat16" or "auto"; see load_model.
        context_length: most tokens of a prompt and its generation together.
        page_size: tokens of a page of the KV pool, 1 to 256.
        num_pages, kv_bytes: size of the KV pool, in pages or bytes; by default a part of the free
            memory.
        max_batch_tokens: most tokens computed in one step.
        max_running: most generations that decode at once.
        eviction: "lru", "slru" or "lookahead".
        order: "depth_first" or "fcfs", the order of waiting requests.
        seed: key of the random numbers of generations without a seed; None draws one.
        deterministic: a generation has the same bits in any batch and with any cache, as far as
            the model can; see "One answer" in docs/runtime.md.
        draft_tokens: most tokens that prompt lookup drafts for a generation in a step; 0 goes
            token by token. By default 8 on a CPU and 0 on a GPU.
        cold_tokens: tokens that the 8-bit tier holds: nodes that are idle for cold_idle_s seconds,
            or would be evicted, move there. 0, the default, keeps all keys and values exact; a
            deterministic runtime has none, as what is idle depends on time.
        attention: how much of their paths generated tokens read, where a generation does not say:
            `Exact()`, `TopPages(k)` or `TopMass(epsilon)`.
        cuda_graphs: on a GPU, capture decode steps and replay them; False runs every step eagerly.
        warm_up: on a GPU, compile kernels and capture decode steps at the start, with a bar; False
            starts sooner, and the first requests wait for it instead.
        max_pinned_tokens: cap on prebuilt prefixes; by default half of the pool.
        compaction: make hot paths contiguous now and then.
        debug: audit all invariants after every step.
        chat_template: the text of a Jinja template, or a file with it, in place of the model's own.
        disk: a folder for keys and values that are evicted, or cached at close; later prompts, of
            this process or of another with the same model, read them from there.
        disk_bytes: the most that the folder holds; the least recently used goes first.

    Raises:
        ParameterError: a value is out of range, or contradicts another.
    """

    device: str = "auto"
    dtype: str = "auto"
    quantization: str | None = "auto"
    kv_dtype: str = "auto"
    context_length: int | None = None
    page_size: int = 1
    num_pages: int | None = None
    kv_bytes: int | None = None
    max_batch_tokens: int | None = None
    max_running: int = 256
    eviction: str = "lru"
    order: str = "depth_first"
    seed: int | None = None
    deterministic: bool = False
    draft_tokens: int | None = None
    cold_tokens: int = 0
    cold_idle_s: float = 60.0
    attention: Attention = EXACT
    cuda_graphs: bool = True
    warm_up: bool = True
    max_pinned_tokens: int | None = None
    compaction: bool = True
    debug: bool = False
    chat_template: str | Path | None = None
    disk: str | Path | None = None
    disk_bytes: int = 8 << 30

    def __post_init__(self) -> None:
        self.check()

    @classmethod
    def of(cls, config: RuntimeConfig | None, options: Mapping[str, Any]) -> RuntimeConfig:
        """A configuration with some of its fields changed; None is the default one.

        Raises:
            ParameterError: an option is unknown; the message has the nearest name.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise ParameterError(
                    f"unknown Runtime parameter {name!r}; "
                    f"{hint_for(name, (*known, 'model'), 'Runtime')}"
                )
        return cls(**options) if config is None else replace(config, **options)

    def check(self) -> None:
        """Raise a ParameterError for values with which no model could be served."""
        for name, known in (("eviction", POLICIES), ("order", ORDERS)):
            value = getattr(self, name)
            if value not in known:
                hint = suggestion(str(value), known)
                raise ParameterError(f"{name} {value!r} is unknown; {hint}")
        for name in ("max_batch_tokens", "max_running", "context_length", "disk_bytes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ParameterError(f"{name} must be an integer of at least 1, got {value!r}")
        if not isinstance(self.page_size, int) or not 1 <= self.page_size <= 256:
            raise ParameterError(
                f"page_size must be an integer from 1 to 256, got {self.page_size!r}"
            )
        if self.num_pages is not None and self.kv_bytes is not None:
            raise ParameterError(
                "give the size of the KV pool as num_pages or as kv_bytes, not both"
            )
        if self.deterministic and self.cold_tokens:
            raise ParameterError(
                f"cold_tokens={self.cold_tokens} rounds what has been idle to 8 bits, so that "
                "answers depend on time; leave it out, or give deterministic=False"
            )
        self._check_drafts()
        if not isinstance(self.attention, (Exact, TopPages, TopMass)):
            raise ParameterError(
                "attention must be Exact(), TopPages(k) or TopMass(epsilon), got "
                f"{self.attention!r}"
            )

    def _check_drafts(self) -> None:
        asked = self.draft_tokens
        if asked is not None and (not isinstance(asked, int) or asked < 0):
            raise ParameterError(f"draft_tokens must be 0 or more, got {asked!r}")


class RuntimeOptions(TypedDict, total=False):
    """The fields of `RuntimeConfig` as keywords of `Runtime`, for editors and type checkers."""

    device: str
    dtype: str
    quantization: str | None
    kv_dtype: str
    context_length: int | None
    page_size: int
    num_pages: int | None
    kv_bytes: int | None
    max_batch_tokens: int | None
    max_running: int
    eviction: str
    order: str
    seed: int | None
    deterministic: bool
    draft_tokens: int | None
    cold_tokens: int
    cold_idle_s: float
    attention: Attention
    cuda_graphs: bool
    warm_up: bool
    max_pinned_tokens: int | None
    compaction: bool
    debug: bool
    chat_template: str | Path | None
    disk: str | Path | None
    disk_bytes: int
