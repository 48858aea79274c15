"""What a request asks of the backend: sampling parameters, a constraint, numbers of choices."""

from __future__ import annotations

import math

from radixlang.constraints.specs import (
    Choices,
    Constraint,
    Grammar,
    JsonSchema,
    JsonSchemaKeywords,
    Regex,
)
from radixlang.errors import ParameterError
from radixlang.json_types import JsonBody
from radixlang.protocol import Backend
from radixlang.sampling_params import MAX_SEED, PARAM_NAMES, SamplingKeywords, SamplingParams
from radixlang.serving.config import ServerConfig
from radixlang.serving.openai_api.schemas import (
    ChatRequest,
    CompletionRequest,
    ResponseFormat,
    SamplingFields,
    StructuredOutputs,
)

_OF_THEIR_OWN = ("max_tokens", "heal", "logit_bias")  # read by rules of their own below
_SAME_NAMES = tuple(
    name
    for name in PARAM_NAMES
    if name in SamplingFields.model_fields and name not in _OF_THEIR_OWN
)
_DEFAULT_MAX_TOKENS = 16  # of a completion, as OpenAI's API has it
_SEED_STEP = 0x9E3779B97F4A7C15  # odd, so that no two choices of a request share a seed


def sampling_of(
    body: CompletionRequest | ChatRequest, config: ServerConfig, backend: Backend
) -> SamplingParams:
    """The sampling parameters of each choice of a request.

    Raises:
        ParameterError: a value is out of range, or is something that this server does not do.
    """
    named: JsonBody = {name: getattr(body, name) for name in _SAME_NAMES}
    given = {name: value for name, value in named.items() if value is not None}
    if given.get("top_k") in (-1, 0):  # other servers' words for all tokens
        given["top_k"] = None
    if given.get("seed", 0) < 0:
        given["seed"] %= MAX_SEED + 1
    merged = SamplingKeywords(**{**config.sampling, **given})  # type: ignore[typeddict-item]
    merged["heal"] = body.heal
    if body.logit_bias:
        merged["logit_bias"] = _bias(body.logit_bias)
    merged["max_tokens"] = _max_tokens(body, config, backend)
    _add_logprobs(merged, body)
    return SamplingParams.from_kwargs(**merged)


def _bias(given: dict[str, float]) -> dict[str | int, float]:
    """Numbers by token id; the keys of a JSON object are text, and -100 bans, as OpenAI has it."""
    if not all(key.isascii() and key.isdigit() for key in given):
        raise ParameterError('the keys of logit_bias are token ids, such as {"50256": -100}')
    return {int(key): -math.inf if value <= -100 else value for key, value in given.items()}


def _max_tokens(
    body: CompletionRequest | ChatRequest, config: ServerConfig, backend: Backend
) -> int:
    asked = body.max_tokens
    if isinstance(body, ChatRequest):
        asked = body.max_completion_tokens if body.max_completion_tokens is not None else asked
        default = config.sampling.get("max_tokens", backend.context_length)
    else:
        default = config.sampling.get("max_tokens", _DEFAULT_MAX_TOKENS)
    num_samples = max(1, body.n, body.best_of or 1)
    if asked is None:
        return max(1, min(default, config.max_tokens // num_samples))
    if asked * num_samples > config.max_tokens:
        raise ParameterError(
            f"the request asks for {asked * num_samples} tokens, and one request may generate "
            f"{config.max_tokens} here; lower max_tokens or n"
        )
    return 1 if is_echo_alone(body) else asked


def is_echo_alone(body: CompletionRequest | ChatRequest) -> bool:
    """Whether a request wants its prompt back and nothing generated."""
    return isinstance(body, CompletionRequest) and body.echo and body.max_tokens == 0


def num_prompt_top(body: CompletionRequest | ChatRequest) -> int | None:
    """Likeliest tokens to tell at each token of the prompt; None if the prompt is not scored."""
    asked = [] if body.prompt_logprobs is None else [body.prompt_logprobs]
    if isinstance(body, CompletionRequest) and body.echo and body.logprobs is not None:
        asked.append(body.logprobs)
    return max(asked, default=None)


def _add_logprobs(merged: SamplingKeywords, body: CompletionRequest | ChatRequest) -> None:
    if isinstance(body, ChatRequest):
        if body.top_logprobs is not None and not body.logprobs:
            raise ParameterError("top_logprobs needs logprobs=true")
        merged["logprobs"] = body.logprobs
        merged["top_logprobs"] = body.top_logprobs or 0
    elif body.logprobs is not None:
        merged["logprobs"] = True
        merged["top_logprobs"] = body.logprobs
    if body.best_of is not None:
        merged["logprobs"] = True  # the best are those with the highest mean


def seed_of(params: SamplingParams, index: int) -> SamplingParams:
    """The parameters of the index-th choice: the first has the request's seed."""
    if params.seed is None or index == 0:
        return params
    return params.with_seed((params.seed + index * _SEED_STEP) % (MAX_SEED + 1))


def num_samples_of(body: SamplingFields) -> int:
    """Samples of each prompt, of which `n` are returned.

    Raises:
        ParameterError: n or best_of is out of range.
    """
    best_of = body.n if body.best_of is None else body.best_of
    if body.n < 1 or best_of < body.n:
        raise ParameterError(f"n must be at least 1 and at most best_of, got {body.n}, {best_of}")
    if body.best_of is not None and best_of > body.n and body.stream:
        raise ParameterError("best_of chooses at the end, so it cannot be streamed")
    return best_of


def constraint_of(body: SamplingFields) -> Constraint | None:
    """The constraint that a request asks for, None without one.

    Raises:
        ParameterError: it asks for two.
        InvalidConstraintError: it is wrong.
    """
    found = [
        constraint
        for constraint in (_of_format(body.response_format), _of_outputs(body.structured_outputs))
        if constraint is not None
    ]
    if len(found) > 1:
        raise ParameterError("response_format and structured_outputs both constrain; keep one")
    return found[0] if found else None


def _of_format(wanted: ResponseFormat | None) -> Constraint | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return JsonSchema.of({"type": "object"})
    inner = wanted.json_schema
    if inner is None or inner.json_schema is None:
        raise ParameterError("response_format of type json_schema needs json_schema.schema")
    return JsonSchema.of(inner.json_schema, strict=inner.strict is not False)


def _of_outputs(wanted: StructuredOutputs | None) -> Constraint | None:
    if wanted is None:
        return None
    spacing: JsonSchemaKeywords = {}
    if wanted.whitespace is not None:
        spacing["whitespace"] = wanted.whitespace
    found: list[Constraint] = []
    if wanted.json_value is not None:
        found.append(JsonSchema.of(wanted.json_value, **spacing))
    if wanted.json_object:
        found.append(JsonSchema.of({"type": "object"}, **spacing))
    if wanted.regex is not None:
        found.append(Regex(wanted.regex))
    if wanted.choice is not None:
        found.append(Choices(tuple(wanted.choice)))
    if wanted.grammar is not None:
        found.append(Grammar(wanted.grammar))
    if len(found) != 1:
        raise ParameterError(
            "structured_outputs takes one of json, json_object, regex, choice and grammar, "
            f"got {len(found)}"
        )
    return found[0]
