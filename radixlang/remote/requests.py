"""Requests of branches: prompts out, deltas and completions back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from radixlang.errors import IncompleteError, ParameterError, UnsupportedConstraintError
from radixlang.json_types import JsonBody
from radixlang.protocol import (
    Completion,
    Delta,
    FinishReason,
    Generation,
    Markup,
    OptionScore,
    TokenLogprob,
    Usage,
)
from radixlang.remote.abilities import Abilities
from radixlang.remote.endpoint import Endpoint
from radixlang.remote.fields import constraint_fields, sampling_fields
from radixlang.remote.turns import read_turns
from radixlang.reply import Reply
from radixlang.sampling_params import SamplingParams

_ID = "token_id:"


@dataclass(slots=True)
class RemotePrompt:
    """The content of a branch: token ids that do not change any more, and the run of text since."""

    ids: list[int] = field(default_factory=list)
    run: list[str] = field(default_factory=list)

    def copy(self) -> RemotePrompt:
        """A prompt that grows by itself."""
        return RemotePrompt(list(self.ids), list(self.run))


class ReadingQueue(Protocol):
    """What a generation needs of its branch's queue."""

    prompt: RemotePrompt
    reading: asyncio.Future[None] | None


@dataclass(slots=True)
class _Answer:
    """A generation as its stream is read."""

    generation: Generation
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    stop_reason: str | int | None = None
    usage: Usage = field(default_factory=Usage)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)

    def take(self, event: JsonBody) -> None:
        """Take one event, and publish its text."""
        usage = event.get("usage")
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            num_prompt, num_cached = usage["prompt_tokens"], details.get("cached_tokens") or 0
            self.usage = Usage(num_prompt, num_cached, num_prompt - num_cached,
                               usage["completion_tokens"])  # fmt: skip
        for choice in event.get("choices") or ():
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            ids = tuple(choice.get("token_ids") or ())
            logprobs = _records(choice.get("logprobs"))
            self.texts.append(text)
            self.ids += ids
            self.logprobs += logprobs
            self.finish = choice.get("finish_reason") or self.finish
            self.stop_reason = choice.get("stop_reason") or self.stop_reason
            if text or ids:
                self.generation.push(Delta(text, ids, 0, tuple(logprobs)))


class RemoteRequests:
    """The requests of all branches of one Remote."""

    def __init__(self, endpoint: Endpoint, able: Abilities, model: str) -> None:
        self._endpoint = endpoint
        self.able = able
        self._model = model
        self.num_requests = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_generated_tokens = 0

    # ---- tokens

    async def run_ids(self, prompt: RemotePrompt) -> list[int]:
        """Token ids of a prompt's run of text."""
        return await self._ids_of(prompt.run, at_start=not prompt.ids)

    async def settle(self, prompt: RemotePrompt) -> None:
        """Tokenise the run, which ends here."""
        prompt.ids += await self.run_ids(prompt)
        prompt.run.clear()

    async def _ids_of(self, run: Sequence[str], *, at_start: bool) -> list[int]:
        self._need_tokens("token ids")
        if not run and not at_start:
            return []
        pieces = [{"text": str(text), "markup": isinstance(text, Markup)} for text in run]
        body = {"pieces": pieces, "at_start": at_start}
        return list((await self._endpoint.post("/tokenize", body))["tokens"])

    def _need_tokens(self, what: str) -> None:
        if not self.able.tokens:
            raise ParameterError(
                f"{what} are not possible here: {self.able.kind} does not tokenise runs of text "
                "as the model sees them"
            )

    async def encode(self, text: str) -> list[int]:
        """Token ids of plain text at the start of a prompt, BOS excluded."""
        begin = await self._ids_of([], at_start=True)
        ids = await self._ids_of([text], at_start=True)
        return ids[len(begin) :] if begin and ids[: len(begin)] == begin else ids

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""
        self._need_tokens("token ids")
        found = await self._endpoint.post("/detokenize", {"tokens": list(token_ids)})
        return str(found["prompt"])

    async def render(self, messages: Sequence[JsonBody], add_generation_prompt: bool) -> str:
        """The server's own chat template."""
        body = {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        return str((await self._endpoint.post("/render", body))["text"])

    # ---- generations

    async def generate(
        self, queue: ReadingQueue, namespace: str, params: SamplingParams, constraint: object,
        generation: Generation,
    ) -> None:  # fmt: skip
        """Read one generation to its end."""
        answer = _Answer(generation)
        prompt = queue.prompt
        path, body = await self._request(prompt, namespace, params, constraint)
        if not generation.is_stopping:
            queue.reading = asyncio.ensure_future(self._read(path, body, answer))
            try:
                await queue.reading
            except asyncio.CancelledError:
                if not (generation.is_stopping and queue.reading.cancelled()):
                    raise
            finally:
                queue.reading = None
        await self._finish(prompt, params, constraint, answer)

    async def _read(self, path: str, body: JsonBody, answer: _Answer) -> None:
        self.num_requests += 1
        async for event in self._endpoint.events(path, body):
            answer.take(event)
            if answer.generation.is_stopping:
                return

    async def _request(
        self, prompt: RemotePrompt, namespace: str, params: SamplingParams, constraint: object
    ) -> tuple[str, JsonBody]:
        able = self.able
        body: JsonBody = {
            "model": self._model, "stream": True, "stream_options": {"include_usage": True},
            **sampling_fields(params, able), **constraint_fields(constraint, able),
            **self._salt(namespace),
        }  # fmt: skip
        if able.tokens:
            await self.settle(prompt)
            ids = {"prompt": prompt.ids, "return_token_ids": True}
            return "completions", {**body, **ids, **_logprobs_of_text(params)}
        outside, turns, opened = read_turns(prompt.run)
        if not turns and opened is None:
            if not able.completions:
                raise ParameterError(
                    f"plain text is not possible here: {able.kind} takes conversations only; "
                    "write the prompt in turns"
                )
            if (params.logprobs or params.top_logprobs) and not able.ids_in_logprobs:
                raise ParameterError(
                    f"log-probabilities by token id are not possible here: {able.kind} names "
                    "tokens by their text"
                )
            return "completions", {**body, "prompt": outside, **_logprobs_of_text(params)}
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        if opened:
            if able.kind != "vLLM":
                raise ParameterError(
                    f"an answer that goes on after {opened[-40:]!r} is not possible here: "
                    f"{able.kind} begins a turn itself"
                )
            messages.append({"role": "assistant", "content": opened})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if params.logprobs or params.top_logprobs:
            raise ParameterError(
                f"log-probabilities by token id are not possible here: {able.kind} names tokens "
                "by their text in conversations"
            )
        return "chat/completions", {**body, "messages": messages}

    def _salt(self, namespace: str) -> JsonBody:
        if namespace and not self.able.constraints:
            raise ParameterError(
                f"namespace= is not possible here: {self.able.kind} shares its cache"
            )
        return {"cache_salt": namespace} if namespace else {}

    async def _finish(
        self, prompt: RemotePrompt, params: SamplingParams, constraint: object, answer: _Answer
    ) -> None:
        generation = answer.generation
        self.num_prompt_tokens += answer.usage.num_prompt_tokens
        self.num_cached_tokens += answer.usage.num_cached_tokens
        self.num_generated_tokens += answer.usage.num_generated_tokens
        reason = _reason(answer, constraint)
        if constraint is not None and reason in ("length", "stopped"):
            raise IncompleteError(
                f"generation ended ({reason}) before its constraint was satisfied; text so far: "
                f"{answer.text!r}. Raise max_tokens={params.max_tokens}", answer.text,
            )  # fmt: skip
        if self.able.tokens:
            prompt.ids += answer.ids
            if answer.stop_reason is not None and isinstance(answer.stop_reason, str):
                whole = await self.decode(answer.ids)
                rest = answer.text[len(whole) :] if answer.text.startswith(whole) else ""
                prompt.run += [rest] if rest else []
        elif answer.text:
            prompt.run.append(answer.text)
        wants = params.logprobs or params.top_logprobs > 0
        completion = Completion(
            answer.text, tuple(answer.ids), reason,
            answer.stop_reason if reason == "stop" else None,
            tuple(answer.logprobs) if wants else None, answer.usage,
        )  # fmt: skip
        if not generation.done():
            generation.set_result(completion)

    # ---- scores

    async def score(
        self, prompt: RemotePrompt, namespace: str,
        options: tuple[str, ...] | tuple[tuple[int, ...], ...], num_top: int,
        future: Reply[list[OptionScore]],
    ) -> None:  # fmt: skip
        """Score options by the log-probabilities of prompts that end with them."""
        if not self.able.scores:
            raise ParameterError(
                f"scores are not possible here: {self.able.kind} tells no log-probabilities of a "
                "prompt; use gen(choices=…) in place of select"
            )
        plain, texts, runs = await self._option_runs(prompt, options)
        shared = _num_shared([plain, *runs])
        base = [*prompt.ids, *plain[:shared]]
        if not base:
            raise ParameterError("options cannot be scored after an empty prompt")
        body: JsonBody = {
            "model": self._model, "prompt": [[*prompt.ids, *run] or [0] for run in runs],
            "max_tokens": 0, "echo": True, "logprobs": max(1, num_top),
            "return_tokens_as_token_ids": True, **self._salt(namespace),
        }  # fmt: skip
        self.num_requests += 1
        reply = await self._endpoint.post("completions", body)
        choices = sorted(reply["choices"], key=lambda choice: int(choice["index"]))
        scores = [
            _score(text, run[shared:], choice["logprobs"], len(base), num_top)
            for text, run, choice in zip(texts, runs, choices, strict=True)
        ]
        if not future.done():
            future.set_result(scores)

    async def _option_runs(
        self, prompt: RemotePrompt, options: tuple[str, ...] | tuple[tuple[int, ...], ...]
    ) -> tuple[list[int], list[str], list[list[int]]]:
        plain = await self.run_ids(prompt)
        texts, runs = [], []
        for option in options:
            if isinstance(option, str):
                texts.append(option)
                runs.append(await self._ids_of([*prompt.run, option], at_start=not prompt.ids))
            else:
                texts.append(await self.decode(option))
                runs.append([*plain, *option])
        return plain, texts, runs

    def check(self, constraint: object) -> None:
        """Raise an UnsupportedConstraintError unless a constraint can be sent."""
        if constraint is not None and not hasattr(constraint, "finish"):
            raise UnsupportedConstraintError(f"{constraint!r:.80} is no constraint")
        constraint_fields(constraint, self.able)


def _logprobs_of_text(params: SamplingParams) -> JsonBody:
    if not (params.logprobs or params.top_logprobs):
        return {}
    return {"logprobs": params.top_logprobs, "return_tokens_as_token_ids": True}


def _records(logprobs: JsonBody | None) -> list[TokenLogprob]:
    """Records of tokens that are named by their ids."""
    if not logprobs or "tokens" not in logprobs:
        return []
    parts = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"] or [],
                strict=True)  # fmt: skip
    return [TokenLogprob(_id(name), value, _tops(top)) for name, value, top in parts]


def _id(name: str) -> int:
    return int(name.removeprefix(_ID))


def _tops(top: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    pairs = ((_id(name), value) for name, value in (top or {}).items())
    return tuple(sorted(pairs, key=lambda pair: -pair[1]))


def _reason(answer: _Answer, constraint: object) -> FinishReason:
    if answer.finish == "length":
        return "length"
    if answer.finish is None:
        return "stopped"
    if answer.stop_reason is not None:
        return "stop"
    return "constraint" if constraint is not None else "eos"


def _score(text: str, ids: list[int], told: JsonBody, first: int, num_top: int) -> OptionScore:
    values = told["token_logprobs"][first:]
    tops = told["top_logprobs"][first:]
    greedy = tuple(v >= max(top.values()) for v, top in zip(values, tops, strict=True))
    likeliest = tuple(_tops(top)[:num_top] for top in tops) if num_top else ()
    return OptionScore(text, tuple(ids), tuple(values), greedy, likeliest)


def _num_shared(runs: Sequence[list[int]]) -> int:
    first, last = min(runs), max(runs)
    pairs = enumerate(zip(first, last, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(last)))
