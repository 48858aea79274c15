"""/v1/completions: text or token ids in, text after them out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import ParameterError
from radixlang.json_types import JsonBody
from radixlang.protocol import Completion, Delta, Markup, Usage
from radixlang.serving.event_stream import unless_gone
from radixlang.serving.openai_api.asked import (
    is_echo_alone,
    num_prompt_top,
    sampling_of,
    seed_of,
)
from radixlang.serving.openai_api.prompts import completion_prompts
from radixlang.serving.openai_api.replies import (
    ReplyHead,
    completion_logprobs,
    finish_of,
    prompt_logprobs_of,
    stop_reason_of,
    usage_of,
)
from radixlang.serving.openai_api.schemas import CompletionRequest
from radixlang.serving.openai_api.serving_context import Chunks, ServingContext
from radixlang.serving.sampling_job import Prompt, Sample, SamplingJob, ScoredPrompt


async def complete(context: ServingContext, body: CompletionRequest, request: Request) -> Response:
    """Answer a request for completions."""
    context.check_model(body.model)
    if body.suffix:
        raise ParameterError("suffix is not served: this model writes after its prompt only")
    prompts = completion_prompts(body)
    num_samples = context.num_samples(body, len(prompts))
    params = sampling_of(body, context.config, context.backend)
    constraint = await context.compiled(body)
    job = context.new_job(body, request)
    turn = context.stored_turn(body, request, "completion")
    reply = _Reply(context, body, prompts, job, num_samples)
    async with context.beginning(job, turn):
        pieces = [_pieces(prompt, body) for prompt in prompts]
        num_top = num_prompt_top(body)
        if num_top is not None or is_echo_alone(body):
            ids = await unless_gone(request.receive, job.read_prompts(pieces))
            reply.prompt_ids = ids
            if num_top is not None:
                reply.scored = await unless_gone(request.receive, job.score_prompts(ids, num_top))
        if not is_echo_alone(body):
            job.start(
                pieces, num_samples, constraint, partial(seed_of, params),
                new_root=turn.new_root, keep=turn.keeper(reply.id),
            )  # fmt: skip
    if body.stream:
        return await context.stream(job, request, reply.chunks())
    return await context.answer(job, request, reply.body)


def _pieces(prompt: str | list[int], body: CompletionRequest) -> Prompt:
    if isinstance(prompt, str):
        return [Markup(prompt) if body.markup else prompt]
    return [prompt]


class _Reply:
    """The bodies of one reply."""

    def __init__(
        self, context: ServingContext, body: CompletionRequest, prompts: Sequence[str | list[int]],
        job: SamplingJob, num_samples: int,
    ) -> None:  # fmt: skip
        self._backend = context.backend
        self._asked = body
        self._prompts = prompts
        self._job = job
        self._num_samples = num_samples
        self._head = ReplyHead("cmpl", "text_completion", context.model)
        self.prompt_ids: Sequence[tuple[int, ...]] = ()
        self.scored: Sequence[ScoredPrompt] = ()
        self._as_ids = body.return_tokens_as_token_ids
        self._offsets: dict[int, int] = {}  # characters that a choice's chunks have had

    def _outcomes(self) -> list[Completion]:
        if not is_echo_alone(self._asked):
            return [sample.outcome() for sample in self._job.samples]
        return [
            Completion("", (), "length", logprobs=(), usage=Usage(len(ids)))
            for ids in self.prompt_ids for _ in range(self._num_samples)
        ]  # fmt: skip

    @property
    def id(self) -> str:
        """The reply's own name."""
        return self._head.id

    def body(self) -> JsonBody:
        """The whole reply."""
        outcomes = self._outcomes()
        groups = [
            outcomes[first : first + self._num_samples]
            for first in range(0, len(outcomes), self._num_samples)
        ]
        choices: list[JsonBody] = []
        for number, group in enumerate(groups):
            for completion in best(group, self._asked.n):
                choices.append(self._choice(len(choices), number, completion))
        return self._head.body(choices, usage_of(groups))

    def _choice(self, index: int, number: int, completion: Completion) -> JsonBody:
        text, offset = completion.text, 0
        if self._asked.echo:
            prompt = self._prompt_text(number)
            text, offset = prompt + text, len(prompt)
        logprobs = completion.logprobs if self._asked.logprobs is not None else None
        scored = self.scored[number] if self.scored and self._asked.echo else None
        if scored is not None:
            offset = 0
        choice = {
            "index": index,
            "text": text,
            "logprobs": completion_logprobs(
                logprobs, self._backend, offset, scored, as_ids=self._as_ids
            ),
            "finish_reason": finish_of(completion),
            "stop_reason": stop_reason_of(completion),
            **self._of_prompt(number),
        }
        if self._asked.return_token_ids:
            choice["token_ids"] = list(completion.token_ids)
        return choice

    def _of_prompt(self, number: int) -> JsonBody:
        num_top = self._asked.prompt_logprobs
        if num_top is None:
            return {}
        scored = self.scored[number]
        return {"prompt_logprobs": prompt_logprobs_of(scored, num_top, self._backend),
                "prompt_token_ids": list(scored.token_ids)}  # fmt: skip

    def _prompt_text(self, number: int) -> str:
        prompt = self._prompts[number]
        return prompt if isinstance(prompt, str) else self._backend.decode(prompt)

    async def chunks(self) -> Chunks:
        """The reply as chunks."""
        begun: set[int] = set()
        async for sample, delta in self._job.deltas():
            if self._asked.echo and sample.place not in begun:
                begun.add(sample.place)
                yield self._echo(sample)
            if delta is None:
                yield self._end(sample)
            elif delta.text or delta.token_ids:
                yield self._chunk(sample, delta)
        options = self._asked.stream_options
        if options is not None and options.include_usage:
            outcomes = [[s.outcome()] for s in self._job.samples]
            yield self._head.body([], usage_of(outcomes))

    def _echo(self, sample: Sample) -> JsonBody:
        scored = self.scored[sample.prompt] if self.scored else None
        logprobs = () if scored is not None and self._asked.logprobs is not None else None
        choice = {
            "index": sample.place, "text": self._prompt_text(sample.prompt),
            "logprobs": completion_logprobs(
                logprobs, self._backend, 0, scored, as_ids=self._as_ids
            ),
            "finish_reason": None,
        }  # fmt: skip
        return self._head.body([choice])

    def _chunk(self, sample: Sample, delta: Delta) -> JsonBody:
        logprobs = delta.logprobs if self._asked.logprobs is not None else None
        offset = self._offsets.get(sample.place, 0)
        self._offsets[sample.place] = offset + len(delta.text)
        choice: JsonBody = {
            "index": sample.place, "text": delta.text,
            "logprobs": completion_logprobs(logprobs, self._backend, offset, as_ids=self._as_ids),
            "finish_reason": None,
        }  # fmt: skip
        if self._asked.return_token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return self._head.body([choice])

    def _end(self, sample: Sample) -> JsonBody:
        completion = sample.outcome()
        choice = {
            "index": sample.place, "text": "", "logprobs": None,
            "finish_reason": finish_of(completion), "stop_reason": stop_reason_of(completion),
        }  # fmt: skip
        return self._head.body([choice])


def best(samples: Sequence[Completion], num: int) -> list[Completion]:
    """The samples with the highest mean log-probability, likeliest first; all in their order if
    none is left out."""
    if num >= len(samples):
        return list(samples)
    return sorted(samples, key=_mean_logprob, reverse=True)[:num]


def _mean_logprob(completion: Completion) -> float:
    values = [each.logprob for each in completion.logprobs or ()]
    return sum(values) / len(values) if values else float("-inf")
