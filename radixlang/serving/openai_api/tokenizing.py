"""/tokenize, /detokenize and /tokenizer_info, as vLLM spells them: for tools that count tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radixlang.errors import ParameterError
from radixlang.protocol import Markup, Message
from radixlang.serving.event_stream import unless_gone
from radixlang.serving.failures import TextJSONResponse
from radixlang.serving.openai_api.prompts import check_text
from radixlang.serving.openai_api.schemas import (
    DetokenizeRequest,
    RenderRequest,
    SamplingFields,
    TextPiece,
    TokenizeRequest,
)
from radixlang.serving.openai_api.serving_context import ServingContext


async def tokenize(context: ServingContext, body: TokenizeRequest, request: Request) -> Response:
    """The token ids of a text, in which special tokens are recognised."""
    context.check_model(body.model)
    if (body.prompt is None) == (body.pieces is None):
        raise ParameterError("give either prompt or pieces")
    if body.pieces is not None:
        return TextJSONResponse({"tokens": await _run_ids(context, body.pieces, body.at_start)})
    assert body.prompt is not None
    check_text(body.prompt)
    job = context.new_job(SamplingFields(), request)
    try:
        ((*ids,),) = await unless_gone(request.receive, job.read_prompts([[Markup(body.prompt)]]))
    finally:
        job.close()
    begin = getattr(_tokenizer(context), "bos_token_id", None)
    adds = not body.prompt.startswith(_text(context, begin)) if begin is not None else False
    if not body.add_special_tokens and adds and ids[:1] == [begin]:
        ids = ids[1:]
    return TextJSONResponse(
        {"tokens": ids, "count": len(ids), "max_model_len": context.backend.context_length}
    )


async def _run_ids(
    context: ServingContext, pieces: Sequence[TextPiece], at_start: bool
) -> list[int]:
    """Token ids of a run of text, tokenised as one."""
    codec = _tokenizer(context) or getattr(context.backend, "codec", None)
    if codec is None:
        raise ParameterError("this backend has no tokenizer for pieces")
    for piece in pieces:
        check_text(piece.text)
    texts = [Markup(piece.text) if piece.markup else piece.text for piece in pieces]
    return list(await asyncio.to_thread(codec.encode_run, texts, at_start=at_start))


async def render(context: ServingContext, body: RenderRequest) -> Response:
    """The chat template's output for turns, as programs on this runtime have it."""
    try:
        turns = [Message(turn["role"], turn["content"]) for turn in body.messages]
    except KeyError as error:
        raise ParameterError(f"a message has no {error}") from None
    text = context.backend.render_chat(turns, add_generation_prompt=body.add_generation_prompt)
    return TextJSONResponse({"text": text})


async def detokenize(context: ServingContext, body: DetokenizeRequest) -> Response:
    """The text of token ids."""
    context.check_model(body.model)
    return TextJSONResponse({"prompt": context.backend.decode(body.tokens)})


def tokenizer_info(context: ServingContext) -> Response:
    """The texts of the model's own tokens, and its chat template."""
    tokenizer = _tokenizer(context)
    ends = getattr(tokenizer, "eos_token_ids", ())
    config = getattr(tokenizer, "config", None)
    end = _text(context, ends[0]) if ends else None
    begin = getattr(tokenizer, "bos_token_id", None)
    return TextJSONResponse(
        {
            "bos_token": None if begin is None else _text(context, begin),
            "eos_token": end,
            "pad_token": end,
            "chat_template": getattr(config, "chat_template", None),
            "model_max_length": context.backend.context_length,
        }
    )


def _tokenizer(context: ServingContext) -> Any:
    return getattr(context.backend, "tokenizer", None)


def _text(context: ServingContext, token_id: int) -> str:
    return context.backend.decode([token_id])
