"""/v1/chat/completions: a conversation in, its next turn out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radixlang.constraints.specs import ToolCall
from radixlang.errors import ParameterError
from radixlang.json_types import JsonBody
from radixlang.protocol import Completion, TokenLogprob
from radixlang.serving.event_stream import unless_gone
from radixlang.serving.openai_api.asked import sampling_of, seed_of
from radixlang.serving.openai_api.completions import best
from radixlang.serving.openai_api.prompts import Pieces, chat_pieces
from radixlang.serving.openai_api.replies import (
    ReplyHead,
    chat_logprobs,
    finish_of,
    prompt_logprobs_of,
    stop_reason_of,
    usage_of,
)
from radixlang.serving.openai_api.schemas import ChatRequest
from radixlang.serving.openai_api.serving_context import Chunks, ServingContext
from radixlang.serving.openai_api.stored_replies import StoredTurn
from radixlang.serving.openai_api.tool_turns import (
    CallStream,
    ToolPlan,
    calls_body,
    has_tool_turns,
    split_safely,
    tool_pieces,
    tool_plan,
)
from radixlang.serving.sampling_job import Sample, SamplingJob, ScoredPrompt


async def chat(context: ServingContext, body: ChatRequest, request: Request) -> Response:
    """Answer a request for a chat completion."""
    context.check_model(body.model)
    num_samples = context.num_samples(body, 1)
    params = sampling_of(body, context.config, context.backend)
    plan = tool_plan(body, context.backend)
    constraint = await context.compiled(body, None if plan is None else plan.constraint)
    job = context.new_job(body, request)
    turn = context.stored_turn(body, request, "chat")
    reply = _Reply(context, body, job, plan)
    async with context.beginning(job, turn):
        pieces = _pieces(context, body, turn, plan)
        if body.prompt_logprobs is not None:
            ids = await unless_gone(request.receive, job.read_prompts([pieces]))
            scoring = job.score_prompts(ids, body.prompt_logprobs)
            (reply.scored,) = await unless_gone(request.receive, scoring)
        job.start(
            [pieces], num_samples, constraint, partial(seed_of, params),
            new_root=turn.new_root, keep=turn.keeper(reply.id),
        )  # fmt: skip
    if body.stream:
        return await context.stream(job, request, reply.chunks())
    return await context.answer(job, request, reply.body)


def _pieces(
    context: ServingContext, body: ChatRequest, turn: StoredTurn, plan: ToolPlan | None
) -> Pieces:
    """What is appended for the conversation: all of it, or its turns after a stored reply."""
    if not has_tool_turns(body):
        pieces, turn.roles = chat_pieces(body, context.backend, turn.roles)
        return pieces
    if turn.parent_id is not None or turn.is_stored:
        raise ParameterError(
            "a conversation with tools is written as a whole by the model's template; leave out "
            "parent_id and store"
        )
    return tool_pieces(body, context.backend, plan)


class _Reply:
    """The bodies of one reply."""

    def __init__(
        self, context: ServingContext, body: ChatRequest, job: SamplingJob, plan: ToolPlan | None
    ) -> None:
        self._plan = plan
        self._backend = context.backend
        self._asked = body
        self._job = job
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._head = ReplyHead("chatcmpl", kind, context.model)
        self.scored: ScoredPrompt | None = None

    @property
    def id(self) -> str:
        """The reply's own name."""
        return self._head.id

    def body(self) -> JsonBody:
        """The whole reply."""
        outcomes = [sample.outcome() for sample in self._job.samples]
        chosen = best(outcomes, self._asked.n)
        choices = [self._choice(index, each) for index, each in enumerate(chosen)]
        body = self._head.body(choices, usage_of([outcomes]))
        scored, num_top = self.scored, self._asked.prompt_logprobs
        if scored is not None and num_top is not None:
            body["prompt_logprobs"] = prompt_logprobs_of(scored, num_top, self._backend)
            body["prompt_token_ids"] = list(scored.token_ids)
        return body

    def _choice(self, index: int, completion: Completion) -> JsonBody:
        content: str | None = completion.text
        calls: Sequence[ToolCall] = ()
        if self._plan is not None:
            content, calls = split_safely(self._plan, completion.text)
        message: JsonBody = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message |= {"content": content or None, "tool_calls": calls_body(calls)}
        choice = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(completion.logprobs),
            **_ending(completion, calls),
        }
        if self._asked.return_token_ids:
            choice["token_ids"] = list(completion.token_ids)
        return choice

    def _logprobs(self, records: Sequence[TokenLogprob] | None) -> JsonBody | None:
        return chat_logprobs(records, self._backend) if self._asked.logprobs else None

    async def chunks(self) -> Chunks:
        """The reply as chunks."""
        begun: set[int] = set()
        plan = self._plan
        streams = {} if plan is None else {s.place: CallStream(plan) for s in self._job.samples}
        async for sample, delta in self._job.deltas():
            if delta is None:
                outcome = sample.outcome()  # its error, if it has failed
            if sample.place not in begun:
                begun.add(sample.place)
                yield self._chunk(sample, {"role": "assistant", "content": ""})
            stream = streams.get(sample.place)
            if delta is None:
                rest, calls = ("", []) if stream is None else stream.finish()
                if rest:
                    yield self._chunk(sample, {"content": rest})
                if calls:
                    told_calls = [{"index": i, **c} for i, c in enumerate(calls_body(calls))]
                    yield self._chunk(sample, {"tool_calls": told_calls})
                yield self._chunk(sample, {}, **_ending(outcome, calls))
            elif delta.text or delta.token_ids:
                text = delta.text if stream is None else stream.push(delta.text)
                ids = {"token_ids": list(delta.token_ids)} if self._asked.return_token_ids else {}
                told = self._logprobs(delta.logprobs)
                if text or ids or told or stream is None:
                    yield self._chunk(sample, {"content": text}, logprobs=told, **ids)
        options = self._asked.stream_options
        if options is not None and options.include_usage:
            outcomes = [s.outcome() for s in self._job.samples]
            yield self._head.body([], usage_of([outcomes]))

    def _chunk(self, sample: Sample, delta: JsonBody, **fields: Any) -> JsonBody:
        ending = {"logprobs": None, "finish_reason": None, **fields}
        return self._head.body([{"index": sample.place, "delta": delta, **ending}])


def _ending(completion: Completion, calls: Sequence[ToolCall]) -> JsonBody:
    finish = "tool_calls" if calls else finish_of(completion)
    return {"finish_reason": finish, "stop_reason": stop_reason_of(completion)}


def models_body(context: ServingContext) -> JsonBody:
    """The list of models: one."""
    return {"object": "list", "data": [model_body(context)]}


def model_body(context: ServingContext) -> JsonBody:
    """The model."""
    return {
        "id": context.model, "object": "model", "created": 0, "owned_by": "radixlang",
        "max_model_len": context.backend.context_length,
    }  # fmt: skip
