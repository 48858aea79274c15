"""Bodies of requests. An unknown field is refused, so that none is ignored without a word."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from radixlang.json_types import JsonBody

TokenIdList = list[int]


class StreamOptions(BaseModel):
    """What a stream tells besides text."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False


class JsonSchemaFormat(BaseModel):
    """The `json_schema` of a response format."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", populate_by_name=True)

    name: str = "answer"
    description: str | None = None
    json_schema: JsonBody | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The form of the answer: text, any JSON object, or JSON under a schema."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(BaseModel):
    """One constraint on the answer, under the names that vLLM uses."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", populate_by_name=True)

    json_value: str | JsonBody | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace: int | None = None


class SamplingFields(BaseModel):
    """What completions and chat completions have in common.

    The first block is OpenAI's, the second is understood by other servers too, the third is ours.
    Fields of the last block are accepted and change nothing here.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    response_format: ResponseFormat | None = None

    best_of: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    prompt_logprobs: int | None = None
    cache_salt: str | None = None

    stop_regex: str | list[str] | None = None
    heal: bool = False
    timeout_s: float | None = None
    parent_id: str | None = None

    store: bool | None = None
    user: str | None = None
    metadata: JsonBody | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class CompletionRequest(SamplingFields):
    """A body of /v1/completions."""

    prompt: str | list[str] | TokenIdList | list[TokenIdList]
    echo: bool = False
    logprobs: int | None = None
    suffix: str | None = None
    markup: bool = True  # special tokens in a text prompt are recognised


class TextPiece(BaseModel):
    """A piece of a run of text; special tokens are recognised in markup only."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    text: str
    markup: bool = False


class RenderRequest(BaseModel):
    """A body of /render: turns for the model's chat template."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    messages: list[dict[str, str]]
    add_generation_prompt: bool = True


class TokenizeRequest(BaseModel):
    """A body of /tokenize."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model: str | None = None
    prompt: str | None = None
    pieces: list[TextPiece] | None = None  # a run of text in pieces, with its place
    at_start: bool = True
    add_special_tokens: bool = True


class DetokenizeRequest(BaseModel):
    """A body of /detokenize."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model: str | None = None
    tokens: TokenIdList


class ChatTurn(BaseModel):
    """A message of a conversation."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    role: str
    content: str | list[JsonBody] | None = None
    name: str | None = None
    tool_calls: list[JsonBody] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class ChatRequest(SamplingFields):
    """A body of /v1/chat/completions."""

    messages: list[ChatTurn]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: list[JsonBody] | None = None
    tool_choice: str | JsonBody | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool = True
