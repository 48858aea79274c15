"""The seam between the language and whatever runs it: Backend and Branch.

The language knows these types and nothing else of a runtime. The engine in
`radixlang.runtime`, the scripted fake in `radixlang.testing` and the dry run behind
`explain` implement them and pass the same contract tests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import index
from queue import SimpleQueue
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeAlias, runtime_checkable

from radixlang.errors import CancelledError, ParameterError, refuse_pickling
from radixlang.reply import Reply, guarded
from radixlang.sampling_params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FinishReason = Literal["eos", "stop", "length", "constraint", "stopped"]
Option: TypeAlias = "str | Sequence[int]"  # text or token ids


class Markup(str):
    """Text in which special tokens are recognised, such as that of a chat template. In a plain str
    they are ordinary characters, so that data never becomes syntax."""

    __slots__ = ()


_ROLE = re.compile(r"[^\W\d][\w-]*")


def check_role(role: object) -> None:
    """Raise a ParameterError unless the role is a name: a template writes it unescaped, and special
    tokens in it would be recognised."""
    if not isinstance(role, str) or _ROLE.fullmatch(role) is None:
        raise ParameterError(
            f"a role must be a name of letters, digits, '_' and '-' such as 'user', got {role!r}"
        )


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, content byte for byte as the program wrote it.

    Raises:
        ParameterError: the role is not a name.
    """

    role: str
    content: str

    def __post_init__(self) -> None:
        check_role(self.role)


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An adapter of the runtime, as a branch uses it.

    Attributes:
        name: under which `Runtime.load_adapter` has it.
        scale: factor on what it adds; 0 is the model without it.
        layers: indices of the layers in which it acts; None for all.

    Raises:
        ParameterError: the name is empty, the scale is not finite, or a layer is no index.
    """

    name: str
    scale: float = 1.0
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ParameterError(f"an adapter is given by its name, got {self.name!r}")
        is_number = isinstance(self.scale, (int, float)) and not isinstance(self.scale, bool)
        if not (is_number and math.isfinite(self.scale)):
            raise ParameterError(f"an adapter's scale must be a finite number, got {self.scale!r}")
        object.__setattr__(self, "scale", float(self.scale))
        if self.layers is not None:
            object.__setattr__(self, "layers", _layers(self.layers))


def _layers(layers: Iterable[int]) -> tuple[int, ...]:
    """Layer indices, ascending and each once."""
    found = tuple(layers) if isinstance(layers, Iterable) else (None,)
    if any(type(layer) is not int or layer < 0 for layer in found):
        raise ParameterError(
            f"an adapter's layers are indices from 0, as in range(8, 24), got {layers!r}"
        )
    return tuple(sorted(set(found)))


def adapter_use(
    adapter: str | AdapterUse | None, scale: float | None = None,
    layers: Iterable[int] | None = None,
) -> AdapterUse | None:  # fmt: skip
    """The arguments adapter, scale and layers as one record; None without an adapter.

    Raises:
        ParameterError: one of them is wrong, or scale or layers stand alone.
    """
    if isinstance(adapter, AdapterUse) and scale is None and layers is None:
        return adapter
    if adapter is None:
        if scale is not None or layers is not None:
            given = "scale" if scale is not None else "layers"
            raise ParameterError(f"{given} belongs to an adapter; name one with adapter=")
        return None
    if isinstance(adapter, AdapterUse):
        raise ParameterError("scale and layers are in the AdapterUse already; give a name instead")
    found = None if layers is None else _layers(layers)
    return AdapterUse(adapter, 1.0 if scale is None else scale, found)


@dataclass(frozen=True, slots=True)
class Contrast:
    """How the logits of two branches, a and b, become those of one generation.

    A token's logit is log p_b + weight * (log p_a - log p_b), as in classifier-free guidance for
    text (Sanchez et al. 2023): 1 is branch a alone, 0 branch b alone, above 1 leads away from b.
    With weight 1 + β and a plausibility it is the contrastive decoding of O'Brien and Lewis (2023).

    Attributes:
        weight: a finite number.
        plausibility: from 0 to 1; a token is dropped if a gives it less than this share of the
            probability of its likeliest token (Li et al. 2022), of those that the constraint,
            biases and bans leave. 0 drops none.

    Raises:
        ParameterError: one of them is out of range.
    """

    weight: float
    plausibility: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("weight", self.weight), ("plausibility", self.plausibility)):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value)):
                raise ParameterError(f"{name} must be a finite number, got {value!r}")
            object.__setattr__(self, name, float(value))
        if not 0 <= self.plausibility <= 1:
            raise ParameterError(f"plausibility is a share from 0 to 1, got {self.plausibility!r}")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (natural log) of a generated token, and its likeliest alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Where the tokens of one generation came from, in tokens, and how long it took.

    prompt = cached + computed. Forced tokens are appended by a constraint without sampling;
    generated = forced + sampled.

    Where `attention` is not exact, `num_pages` are the pages of all tokens that it was asked of,
    over all layers and key heads, `num_pages_read` those of them that were read, and
    `omitted_mass` is the largest bound met on the share of a head's mass in the others.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    num_forced_tokens: int = 0
    time_to_first_token_s: float = 0.0
    total_s: float = 0.0
    num_pages: int = 0
    num_pages_read: int = 0
    omitted_mass: float = 0.0


def sum_usage(usages: Sequence[Usage]) -> Usage:
    """The sums of all counts, the earliest first token, the longest time (seconds) and the largest
    bound."""
    return Usage(
        num_prompt_tokens=sum(usage.num_prompt_tokens for usage in usages),
        num_cached_tokens=sum(usage.num_cached_tokens for usage in usages),
        num_computed_tokens=sum(usage.num_computed_tokens for usage in usages),
        num_generated_tokens=sum(usage.num_generated_tokens for usage in usages),
        num_forced_tokens=sum(usage.num_forced_tokens for usage in usages),
        time_to_first_token_s=min((usage.time_to_first_token_s for usage in usages), default=0.0),
        total_s=max((usage.total_s for usage in usages), default=0.0),
        num_pages=sum(usage.num_pages for usage in usages),
        num_pages_read=sum(usage.num_pages_read for usage in usages),
        omitted_mass=max((usage.omitted_mass for usage in usages), default=0.0),
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """What a generation continued, and what made it.

    `prompt_ids` int32 [n] are the tokens before it (the last one without its healed part), `forced`
    the indices of generated tokens that a constraint forced. `weights_version` counts
    `Runtime.update_weights` before it began; `adapter` is the name of the adapter, "" without one.
    """

    prompt_ids: NDArray[np.int32] | Sequence[int]
    forced: tuple[int, ...] = ()
    weights_version: int = 0
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished generation.

    `text` excludes the stop string or end token that ended it; `token_ids` are the tokens
    that stay on the branch. `stop_reason` is the stop string or token id that matched, if any.
    A `finish_reason` of "stopped" means that `Generation.stop` ended it; its text is partial.
    `origin` tells the tokens before it, if the backend knows them.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    usage: Usage = field(default_factory=Usage)
    origin: Origin | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class OptionScore:
    """Log-probabilities of one option's tokens under the branch's prompt.

    `is_greedy[i]` tells whether token i was the model's most likely one at its position. If an
    option of text merges with the end of the prompt into other tokens, the scored tokens start
    before the option, at the last boundary that prompt and options share. Token ids are scored as
    given, directly after the prompt; `text` is then the text of these tokens. `top[i]` are the
    likeliest tokens at the position of token i, if the scoring was asked for them.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_greedy: tuple[bool, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()

    @property
    def total(self) -> float:
        """Summed log-probability."""
        return sum(self.logprobs)

    @property
    def mean(self) -> float:
        """Mean log-probability of a token."""
        return self.total / max(1, len(self.logprobs))


@dataclass(frozen=True, slots=True)
class NextToken:
    """The model's distribution of the token after a prompt, or a part of it, likeliest first.

    `logprobs` are natural logs under the whole vocabulary, whatever part was asked for; `entropy`
    is that of the whole distribution, in nats. The text of a token that is no whole character has
    U+FFFD in it.
    """

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    logprobs: tuple[float, ...]
    entropy: float
    usage: Usage = field(default_factory=Usage)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def probabilities(self) -> dict[str, float]:
        """By text, the chance that a token of it follows."""
        found: dict[str, float] = {}
        for text, logprob in zip(self.texts, self.logprobs, strict=True):
            found[text] = found.get(text, 0.0) + math.exp(logprob)
        return found

    @property
    def shares(self) -> dict[str, float]:
        """By text, its chance given that one of these tokens follows: they sum to 1.

        Computed from differences of log-probabilities, so that unlikely tokens share out as well.
        """
        best = max(self.logprobs, default=0.0)
        found: dict[str, float] = {}
        for text, logprob in zip(self.texts, self.logprobs, strict=True):
            found[text] = found.get(text, 0.0) + math.exp(logprob - best)
        total = sum(found.values())
        return {text: weight / total for text, weight in found.items()}


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a stream: text that is final (never half a character), and its tokens, with
    their log-probabilities if the generation records them."""

    text: str
    token_ids: tuple[int, ...] = ()
    num_forced: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


class Generation(Reply[Completion]):
    """A future of a Completion that is also a stream of Deltas.

    Backends call `push` and then `set_result` or `set_exception`, from one thread. Iterating
    yields each Delta as it comes and raises the generation's error, if there is one, at the end.

    Until somebody asks for deltas (`is_followed`), a backend may hold them back. It then publishes
    them together, with the next token at the latest, and all of them before the end. `on_follow`
    tells a backend that cannot look at `is_followed` with every token.
    """

    def __init__(
        self,
        on_cancel: Callable[[], None] | None = None,
        on_stop: Callable[[], None] | None = None,
        on_follow: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._on_cancel = on_cancel
        self._on_stop = on_stop
        self._on_follow = on_follow
        self.is_followed = False
        self.is_stopping = False  # `stop` was called
        self._lock = RLock()  # of deltas and readers
        self._deltas: list[Delta] = []
        self._readers: list[Callable[[Delta | None], None]] = []
        self.when_done(lambda: self._notify(None))

    def push(self, delta: Delta) -> None:
        """Publish a delta to all readers, present and future."""
        with self._lock:
            self._deltas.append(delta)
            readers = tuple(self._readers)
        for reader in readers:
            guarded(partial(reader, delta))

    def subscribe(self, reader: Callable[[Delta | None], None]) -> None:
        """Call reader(delta) for every delta, past and to come, and reader(None) at the end.

        Calls come from the publishing thread, so a reader must be quick and must not block.
        """
        self._follow()
        with self._lock:
            past = tuple(self._deltas)
            self._readers.append(reader)
            for delta in past:
                reader(delta)
            ended = self.done()
        if ended:
            reader(None)

    @property
    def deltas(self) -> tuple[Delta, ...]:
        """What has been published so far."""
        self._follow()
        with self._lock:
            return tuple(self._deltas)

    def cancel(self) -> bool:
        """Ask the backend to stop; the future then raises our CancelledError."""
        if self.done():
            return False
        if self._on_cancel is not None:
            self._on_cancel()
        else:
            self.fail(CancelledError("the generation was cancelled"))
        return True

    def stop(self) -> bool:
        """Ask the backend to end here and keep the text so far; False if it had ended already.

        The future's Completion then has the finish reason "stopped" (and no text if nothing was
        generated yet), and the branch goes on after it. Under a constraint this acts as if
        max_tokens had been reached: `finish="close"` completes the text, otherwise the future
        raises an IncompleteError.
        """
        if self.done():
            return False
        self.is_stopping = True
        if self._on_stop is not None:
            self._on_stop()
        return True

    def fail(self, error: BaseException) -> None:
        """Set the error unless the future has ended already."""
        if not self.done():
            self.set_exception(error)

    def __iter__(self) -> Iterator[Delta]:
        queue: SimpleQueue[Delta | None] = SimpleQueue()
        self.subscribe(queue.put)
        if not self.done():
            self._owner.check()
        while (delta := queue.get()) is not None:
            yield delta
        self.result()

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a running generation", "pickle its result()")

    def _follow(self) -> None:
        if not self.is_followed:
            self.is_followed = True
            if self._on_follow is not None and not self.done():
                self._on_follow()

    def _notify(self, delta: Delta | None) -> None:
        for reader in tuple(self._readers):
            guarded(partial(reader, delta))


def checked_options(options: Sequence[Option]) -> tuple[str, ...] | tuple[tuple[int, ...], ...]:
    """The options of a scoring: all text, or all token ids.

    Raises:
        ParameterError: there is none, one is neither, or both kinds are mixed.
    """
    if isinstance(options, str):
        raise ParameterError(f"score needs a list of options, got the text {options!r}")
    given = tuple(options)
    if not given:
        raise ParameterError("score needs at least one option, got none")
    texts = tuple(option for option in given if isinstance(option, str))
    if len(texts) == len(given):
        return texts
    if texts:
        raise ParameterError(
            "options are either all text or all token ids, got both: a text may change the token "
            "before it, and token ids are scored as they are. Score them in two calls"
        )
    return tuple(_token_ids(option) for option in given if not isinstance(option, str))


def _token_ids(option: Sequence[int]) -> tuple[int, ...]:
    try:
        if not isinstance(option, bytes):
            return tuple(index(token_id) for token_id in option)
    except TypeError:
        pass
    raise ParameterError(f"options must be text or lists of token ids, got {option!r:.80}")


def check_next_token(among: Any, top: Any) -> tuple[tuple[str | int, ...] | None, int | None]:
    """The arguments of Branch.next_token; raises a ParameterError if they are none."""
    if top is not None and (type(top) is not int or top < 1):
        raise ParameterError(f"top must be an integer of at least 1, or None, got {top!r}")
    if among is None:
        return None, top
    tokens = () if isinstance(among, str) else tuple(among)
    if not tokens or not all(isinstance(each, str) or type(each) is int for each in tokens):
        raise ParameterError(
            f"among must be a list of token ids, or of texts that are one token, got {among!r}"
        )
    return tokens, top


def check_num_top(num_top: object) -> None:
    """Raise a ParameterError unless it is a number of likeliest tokens, from 0 to 100."""
    if type(num_top) is not int or not 0 <= num_top <= 100:
        raise ParameterError(f"top_logprobs must be between 0 and 100, got {num_top!r}")


def check_next_in(next_in: object) -> int | None:
    """The argument of Branch.expect; raises a ParameterError unless it is None or at least 1."""
    if next_in is None or (type(next_in) is int and next_in >= 1):
        return next_in
    raise ParameterError(f"expect takes a number of at least 1, or None for never; got {next_in!r}")


@runtime_checkable
class Branch(Protocol):
    """A path from the root of the radix tree to a point, held by a lease.

    Operations are queued and run in the order they were called; every method returns at once.
    After the first error of a branch every later future of it fails with that error.
    A branch may be used from any one thread at a time.
    """

    def extend(self, content: str | Sequence[int]) -> None:
        """Queue text, Markup or token ids. Text between two generations is tokenised as one run."""
        ...

    # `constraint` is of the backend's own type, which it checks
    def generate(self, params: SamplingParams, constraint: Any | None = None) -> Generation:
        """Queue a generation; its tokens are appended to the branch."""
        ...

    def contrast(
        self, other: Branch, params: SamplingParams, how: Contrast, constraint: Any | None = None
    ) -> Generation:
        """Queue one generation from the logits of this branch (a) and another (b).

        It begins once both branches have come to it, and its tokens are appended to both. An
        error of it, or of either branch before it, fails both. Log-probabilities are those of this
        branch. A backend without logits fails the future with a ParameterError.

        Raises:
            ParameterError: `other` is no branch of this backend, or is this branch.
        """
        ...

    def score(
        self, options: Sequence[Option], *, top_logprobs: int = 0
    ) -> Reply[list[OptionScore]]:
        """Queue the scoring of options after the prompt so far; the branch itself is unchanged.

        Options are all text or all token ids. Their shared beginnings are computed once, and the
        last token of an option is not computed at all. `top_logprobs` likeliest tokens are told at
        the position of each of their tokens.

        Raises:
            ParameterError: there is no option, or text and token ids are mixed.
        """
        ...

    def next_token(
        self, among: Sequence[str | int] | None = None, top: int | None = None
    ) -> Reply[NextToken]:
        """Queue a reading of the next token's distribution; the branch itself is unchanged.

        Args:
            among: only these tokens, by id or by a text that is one token; None: the vocabulary.
            top: the likeliest so many of them; None: all of `among`, or 20 of the vocabulary.

        A backend without logits fails the future with a ParameterError, as for a wrong argument;
        the branch goes on.
        """
        ...

    def fork(self, n: int) -> Sequence[Branch]:
        """n branches that start where this one is once its queued operations have run.

        Nothing is copied or computed twice; the shared prefix stays pinned until the last of
        them is released. This branch stays usable.
        """
        ...

    def use_adapter(self, use: AdapterUse | None) -> None:
        """Queue a change of adapter: what follows is computed with it (None: the model alone).

        Text, generations and scorings after it are. So is the last token of a prompt, from whose
        logits a generation or scoring takes the first token. Everything before keeps its keys and
        values. Raises a ParameterError if the backend has no such adapter.
        """
        ...

    def tokens(self) -> Reply[tuple[int, ...]]:
        """Queue a reading of the branch's token ids, pending text tokenised."""
        ...

    def expect(self, next_in: int | None) -> None:
        """Queue a hint on when the branch's tokens are read next.

        Args:
            next_in: the generation or scoring that reads them, counted from here (1: the next
                one); None: none will.

        It changes no result; a backend may use it to choose what to keep cached.
        """
        ...

    def keep(self) -> None:
        """Queue a note that the branch's tokens may be read after a restart.

        It changes no result; a backend with a disk tier writes what it has of them there.
        """
        ...

    def cancel(self) -> None:
        """Fail queued and running operations with a CancelledError, then release."""
        ...

    def release(self) -> None:
        """Free the memory that only this branch holds, once its queued operations have run.
        Idempotent."""
        ...


class Backend(Protocol):
    """What a program runs on."""

    @property
    def model_name(self) -> str:
        """The name shown in errors and views."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens of a prompt and its generation together."""
        ...

    def new_branch(self, *, namespace: str = "") -> Branch:
        """An empty branch. Namespaces share no cached tokens, so timing tells nothing of others."""
        ...

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The model's own chat template applied to the messages.

        Raises:
            ParameterError: the template refuses the messages (unknown role, wrong order).
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a text run at the start of a prompt, BOS excluded."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        ...

    def compile_constraint(self, spec: object) -> Any:  # for `generate` of its own branches
        """Compile a constraint specification for this model's vocabulary (cached by content)."""
        ...
