"""A scripted fake model for tests of programs: no weights, fast, deterministic.

    fake = FakeBackend({"capital of France": "Paris"})
    state = program.run(country="France", runtime=fake)
    assert fake.stats().num_cached_tokens == 0

It implements Backend and passes the contract tests that the real runtime passes, streams its
answers in pieces, and counts shared and unique tokens with a real prefix trie.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn, TypeAlias

from radixlang.attention import EXACT
from radixlang.constraints.specs import Choices, JsonSchema, Regex
from radixlang.errors import (
    IncompleteError,
    InvalidConstraintError,
    ParameterError,
    PromptTooLongError,
    RuntimeClosedError,
    ScriptError,
    refuse_pickling,
)
from radixlang.protocol import (
    Branch,
    Completion,
    Delta,
    FinishReason,
    Message,
    Option,
    OptionScore,
    Origin,
    Usage,
)
from radixlang.sampling_params import SamplingParams
from radixlang.testing import fake_branch
from radixlang.testing.fake_branch import FakeBranch, Plan
from radixlang.testing.fake_tokens import SPECIAL, codec_of
from radixlang.testing.fake_worker import Worker
from radixlang.testing.token_trie import TokenTrie

Answer = str | BaseException
Script: TypeAlias = "Mapping[str, Answer] | Callable[[str, SamplingParams], Answer] | None"
Answers: TypeAlias = "Script | Sequence[Answer]"

_WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "iris", "jade"]


@dataclass(frozen=True, slots=True)
class FakeStats:
    """Counters since the last reset, under the names that the real runtime uses."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    kv_bytes_used: int = 0
    kv_bytes_peak: int = 0
    num_pages_total: int = 0
    num_pages_free: int = 0


class FakeBackend:
    """A Backend whose answers are scripted.

    Args:
        answers: a list, used in order; a dict from a part of the prompt to the answer (the part
            that ends last in the prompt wins); a function of the prompt's text and the parameters;
            None for made-up words that depend only on prompt and seed. An answer that is an
            exception is raised by its generation.
        tokens: "byte", "char", or an object with encode(text) and decode(ids).
        delay: seconds before each piece of an answer.
        piece: characters of a streamed piece.
        scores: log-probability of a token by option, or a function of prompt and option; without
            it the option with which the script's answer begins is the likeliest.
        context_length: most tokens of prompt and answer together.
        bytes_per_token: KV bytes of a token, for the figures of stats().
        roles: roles that the ChatML template accepts.
        think_tags: the texts that open and close a thought; None for a model without any.
    """

    only_counts = False  # a dry run counts the tokens of operations that need a model's logits

    def __init__(
        self, answers: Answers = None, *, tokens: object = "byte",
        delay: float = 0.0, piece: int = 8,
        scores: Mapping[str, float] | Callable[[str, str], float] | None = None,
        context_length: int = 1 << 20, bytes_per_token: int = 1024,
        roles: Sequence[str] = ("system", "user", "assistant", "tool"),
        think_tags: tuple[str, str] | None = ("<think>\n", "\n</think>\n\n"),
        model_name: str = "fake",
    ) -> None:  # fmt: skip
        self.codec = codec_of(tokens)
        self.delay = delay
        self.think_tags = think_tags
        self.prompts: list[str] = []
        self._expected: list[tuple[str, int | None]] = []
        self.num_live_branches = 0
        self._answers: Script | list[Answer] = (
            list(answers) if isinstance(answers, Sequence) else answers
        )
        self._piece = max(1, piece)
        self._scores = scores
        self._context_length = context_length
        self._bytes_per_token = bytes_per_token
        self._roles = tuple(roles)
        self._model_name = model_name
        self._tries: dict[str, TokenTrie] = {}
        self._stats = FakeStats()
        self._worker = Worker()

    # -- Backend ------------------------------------------------------------------------

    @property
    def model_name(self) -> str:
        """The name shown in errors and views."""
        return self._model_name

    @property
    def context_length(self) -> int:
        """Most tokens of a prompt and its generation together."""
        return self._context_length

    def new_branch(self, *, namespace: str = "") -> Branch:
        """An empty branch."""
        self._worker.check_open()
        self.count_branches(1)
        return FakeBranch(self, namespace)

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """ChatML, without any text of its own."""
        for message in messages:
            if message.role not in self._roles:
                known = ", ".join(self._roles)
                raise ParameterError(f"the chat template knows {known}, got {message.role!r}")
        turns = [f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages]
        return "".join(turns) + ("<|im_start|>assistant\n" if add_generation_prompt else "")

    def encode(self, text: str) -> list[int]:
        """Token ids of a run of text."""
        return self.codec.encode_run([text], at_start=True)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""
        return self.codec.decode(token_ids)

    def compile_constraint(self, spec: object) -> object:
        """The specification itself, checked as far as the standard library can."""
        try:
            if isinstance(spec, Regex):
                re.compile(spec.pattern)
            elif isinstance(spec, JsonSchema):
                json.loads(spec.schema)
        except (re.error, ValueError) as error:
            raise InvalidConstraintError(f"{spec!r} is not valid: {error}") from error
        return spec

    # -- more of the real runtime's methods -----------------------------------------------

    special_tokens = SPECIAL

    def render_conversation(
        self, rows: Sequence[Mapping[str, object]], *, tools: Sequence[object] = (),
        add_generation_prompt: bool,
    ) -> str:  # fmt: skip
        """ChatML with the tools as JSON in front, and calls between <tool_call> and its end."""
        told = "".join(f"{json.dumps(tool)}\n" for tool in tools)
        turns = [Message("system", told)] if tools else []
        turns += [Message(str(row["role"]), _with_calls(row)) for row in rows]
        return self.render_chat(turns, add_generation_prompt=add_generation_prompt)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token."""
        is_byte = token_id < 256 and getattr(self.codec, "unit", None) == "byte"
        return bytes([token_id]) if is_byte else self.decode([token_id]).encode()

    def stats(self) -> FakeStats:
        """Counters since the last reset."""
        used = sum(trie.num_tokens for trie in self._tries.values()) * self._bytes_per_token
        return replace(self._stats, kv_bytes_used=used, kv_bytes_peak=used)

    @property
    def expected(self) -> list[tuple[str, int | None]]:
        """All hints of Branch.expect so far, each with the text of its branch."""
        self.drain()
        return self._expected

    def reset_stats(self) -> None:
        """Set the counters to zero; what is cached stays."""
        self._stats = FakeStats()

    def flush_cache(self) -> None:
        """Forget every prefix."""
        self._tries = {}

    def path_tokens(self) -> tuple[int, int, int]:
        """(tokens held once, tokens if each path had its own copy, paths) of what is cached."""
        paths = [length for trie in self._tries.values() for length in trie.path_lengths()]
        held = sum(trie.num_tokens for trie in self._tries.values())
        return held, sum(paths), len(paths)

    def tree_text(self, *, max_text: int = 40) -> str:
        """A drawing of what is cached: tokens and text of every edge."""
        held, _, num_paths = self.path_tokens()
        drawn = [trie.draw(self.decode, max_text) for trie in self._tries.values()]
        return "\n".join([f"radix tree: {held:,} tokens on {num_paths:,} paths", *drawn])

    def audit(self) -> list[str]:
        """Branches that were not released, as violations."""
        self.drain()
        left = self.num_live_branches
        return [f"{left} branches were never released"] if left else []

    def drain(self) -> None:
        """Wait until everything posted so far has run."""
        done = threading.Event()
        with suppress(RuntimeClosedError):
            self.post(done.set)
            done.wait(timeout=30)

    def close(self) -> None:
        """Refuse further work."""
        self._worker.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a FakeBackend", "make one in each process")

    def __enter__(self) -> FakeBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for branches -------------------------------------------------------------------

    def post(self, work: Callable[[], None]) -> None:
        """Run a function on the worker, in order of posting."""
        self._worker.post(work)

    def post_later(self, seconds: float, work: Callable[[], None]) -> None:
        """Run a function on the worker after some seconds."""
        self._worker.post(work, time.monotonic() + seconds)

    def count_branches(self, change: int) -> None:
        """Add to the number of branches that are not released."""
        with self._worker.lock:
            self.num_live_branches += change

    def answer(
        self, namespace: str, prompt: list[int], params: SamplingParams, constraint: object
    ) -> Plan:
        """The plan of a generation after this prompt."""
        self._check_length(len(prompt))
        for name in ("logits", "logit_bias"):
            if getattr(params, name):
                raise self.without_logits(f"gen({name}=…)")
        if params.attention not in (None, EXACT):
            raise self.without_logits(f"gen(attention={params.attention})", "attention")
        text = self.codec.decode(prompt)
        self.prompts.append(text)
        answer = self._script(text, params, constraint)
        if isinstance(answer, BaseException):
            return Plan([], None, answer)
        started = time.monotonic()
        kept, reason, stop = self._cut(answer, len(prompt), params)
        reason = _check_constraint(constraint, kept, reason)
        cached = self._trie(namespace).insert(prompt)
        ids = self.codec.encode_run([kept], at_start=False)
        deltas = self._deltas(kept)
        usage = Usage(
            num_prompt_tokens=len(prompt), num_cached_tokens=cached,
            num_computed_tokens=len(prompt) - cached, num_generated_tokens=len(ids),
            time_to_first_token_s=self.delay,
            total_s=self.delay * len(deltas) + time.monotonic() - started,
        )  # fmt: skip
        logprobs = fake_branch.fake_logprobs(prompt, ids, params)
        deltas = fake_branch.with_logprobs(deltas, logprobs)
        origin = Origin(tuple(prompt))
        completion = Completion(kept, tuple(ids), reason, stop, logprobs, usage, origin)
        return Plan(deltas, completion, None, constraint)

    def cut_short(self, plan: Plan) -> None:
        """End a plan after the deltas that it has pushed, because its owner has stopped it."""
        completion = plan.completion
        assert completion is not None
        text = "".join(delta.text for delta in plan.deltas[: plan.num_played])
        ids = tuple(self.codec.encode_run([text], at_start=False))
        logprobs = None if completion.logprobs is None else completion.logprobs[: len(ids)]
        usage = replace(completion.usage, num_generated_tokens=len(ids))
        try:
            reason = _check_constraint(plan.constraint, text, "stopped")
        except (IncompleteError, ScriptError) as error:
            plan.error = error
        else:
            plan.completion = Completion(
                text, ids, reason, None, logprobs, usage, completion.origin
            )

    def keep(self, namespace: str, tokens: list[int], completion: Completion) -> None:
        """Cache a finished generation and count it.

        A generation that ended by its length, or was stopped, has sampled its last token but not
        computed it: the next operation computes it, once.
        """
        is_cut = completion.finish_reason in ("length", "stopped")
        self._trie(namespace).insert(tokens[:-1] if is_cut else tokens)
        old, usage = self._stats, completion.usage
        self._stats = replace(
            old,
            num_prompt_tokens=old.num_prompt_tokens + usage.num_prompt_tokens,
            num_cached_tokens=old.num_cached_tokens + usage.num_cached_tokens,
            num_computed_tokens=old.num_computed_tokens + usage.num_computed_tokens,
            num_generated_tokens=old.num_generated_tokens + usage.num_generated_tokens,
        )

    def score_options(
        self, namespace: str, prompt: list[int], options: Sequence[Option], num_top: int = 0
    ) -> list[OptionScore]:
        """Log-probabilities by the script; likeliest tokens are made up below them."""
        self._check_length(len(prompt))
        text = self.codec.decode(prompt)
        wanted = self._script(text, SamplingParams(), None) if self._scores is None else ""
        if isinstance(wanted, BaseException):
            raise wanted
        self._trie(namespace).insert(prompt)
        found = [self._score_option(text, option, wanted) for option in options]
        return [replace(each, top=_made_up_tops(each, num_top)) for each in found]

    def without_logits(self, what: str, needed: str = "logits") -> ParameterError:
        """The error of an operation that needs what a script has not, a model's logits."""
        return ParameterError(
            f"{what} needs a model's {needed}, and {self._model_name!r} is a scripted fake without "
            "any; run it on a radixlang.Runtime"
        )

    def take_part(self, namespace: str, prompt: list[int], completion: Completion) -> None:
        """Count the prompt of a branch that takes part in another's generation."""
        trie, old = self._trie(namespace), self._stats
        cached = trie.insert(prompt)
        self._stats = replace(
            old,
            num_prompt_tokens=old.num_prompt_tokens + len(prompt),
            num_cached_tokens=old.num_cached_tokens + cached,
            num_computed_tokens=old.num_computed_tokens + len(prompt) - cached,
        )
        trie.insert([*prompt, *completion.token_ids][:-1])

    # -- inside -------------------------------------------------------------------------

    def _trie(self, namespace: str) -> TokenTrie:
        return self._tries.setdefault(namespace, TokenTrie())

    def _check_length(self, length: int) -> None:
        if length >= self._context_length:
            raise PromptTooLongError(
                f"the prompt has {length} tokens and the context of {self._model_name} is "
                f"{self._context_length}; shorten it"
            )

    def _script(self, prompt: str, params: SamplingParams, constraint: object) -> Answer:
        answers = self._answers
        if answers is None:
            return _made_up(prompt, params, constraint)
        if callable(answers):
            found: Answer = answers(prompt, params)
            return found
        if isinstance(answers, list):
            if not answers:
                raise ScriptError(f"the script has no answer left for the prompt {prompt[-200:]!r}")
            following: Answer = answers.pop(0)
            return following
        keys = [key for key in answers if key in prompt]
        if not keys:
            raise ScriptError(
                f"no key of the script is in the prompt {prompt[-200:]!r}; keys: "
                f"{', '.join(map(repr, answers))}"
            )
        best = max(keys, key=lambda key: (prompt.rfind(key) + len(key), len(key)))
        answer: Answer = answers[best]
        return answer

    def _cut(
        self, answer: str, prompt_length: int, params: SamplingParams
    ) -> tuple[str, FinishReason, str | None]:
        floor = len(self._within(answer, params.min_tokens))
        hits = [(at, stop) for stop in params.stop if (at := answer.find(stop, floor)) >= 0]
        for pattern in params.stop_regex:
            match = re.compile(pattern).search(answer, floor)
            hits += [(match.start(), pattern)] if match else []
        room = min(params.max_tokens, self._context_length - prompt_length)
        text, stop = (answer[: min(hits)[0]], min(hits)[1]) if hits else (answer, None)
        short = self._within(text, room)
        if len(short) < len(text):
            return short, "length", None
        return text, ("stop" if hits else "eos"), stop

    def _within(self, text: str, num_tokens: int) -> str:
        """The longest beginning of whole characters with at most this many tokens."""
        ids = self.codec.encode_run([text], at_start=False)
        if len(ids) <= num_tokens:
            return text
        return self.codec.decode(ids[:num_tokens]).rstrip("�")

    def _deltas(self, text: str) -> list[Delta]:
        pieces = [text[at : at + self._piece] for at in range(0, len(text), self._piece)]
        return [Delta(p, tuple(self.codec.encode_run([p], at_start=False))) for p in pieces]

    def text_and_ids(self, option: Option) -> tuple[str, tuple[int, ...]]:
        """An option as text and as token ids."""
        if isinstance(option, str):
            return option, tuple(self.codec.encode_run([option], at_start=False))
        return self.codec.decode(option), tuple(option)

    def _score_option(self, prompt: str, given_option: Option, wanted: str) -> OptionScore:
        option, ids = self.text_and_ids(given_option)
        if self._scores is not None:
            given = self._scores
            each = given(prompt, option) if callable(given) else given[option]
            return OptionScore(option, ids, (float(each),) * len(ids), (False,) * len(ids))
        goal = self.codec.encode_run([wanted], at_start=False)
        same = next((at for at, pair in enumerate(zip(ids, goal, strict=False))
                     if pair[0] != pair[1]), min(len(ids), len(goal)))  # fmt: skip
        greedy = tuple(index < same for index in range(len(ids)))
        return OptionScore(option, ids, tuple(-0.1 if hit else -3.0 for hit in greedy), greedy)


def _with_calls(row: Mapping[str, object]) -> str:
    given = row.get("tool_calls")
    calls = [call["function"] for call in given] if isinstance(given, list) else []
    texts = (f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
    return "\n".join(filter(None, (str(row["content"] or ""), *texts)))


def _made_up_tops(score: OptionScore, num: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    pairs = zip(score.token_ids, score.logprobs, strict=False)
    tops = (tuple((i + step, value - step) for step in range(num)) for i, value in pairs)
    return tuple(tops) if num else ()


def _made_up(prompt: str, params: SamplingParams, constraint: object) -> Answer:
    digest = hashlib.blake2b(f"{params.seed}|{prompt}".encode("utf-8", "surrogatepass")).digest()
    if isinstance(constraint, Choices):
        return constraint.options[digest[0] % len(constraint.options)]
    if constraint is not None:
        return ScriptError(f"the script is empty and cannot make up a text for {constraint!r}")
    return " ".join(_WORDS[byte % len(_WORDS)] for byte in digest[:3])


def _check_constraint(constraint: object, text: str, reason: FinishReason) -> FinishReason:
    """Check an answer as far as the standard library can, which catches a wrong script."""
    if constraint is None:
        return reason
    if isinstance(constraint, Regex):
        fits = re.fullmatch(constraint.pattern, text, re.DOTALL) is not None
    elif isinstance(constraint, Choices):
        fits = text in constraint.options
    elif isinstance(constraint, JsonSchema):
        fits = _is_json(text)
    else:
        fits = True
    if not fits and reason in ("length", "stopped"):
        what = "max_tokens was reached" if reason == "length" else "the generation was stopped"
        raise IncompleteError(f"{what} inside {constraint!r}: {text!r}", text)
    if not fits:
        raise ScriptError(f"the script's answer {text!r} does not satisfy {constraint!r}")
    return "constraint"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
