"""Bodies of replies and of the chunks of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from radixlang.json_types import JsonBody
from radixlang.protocol import Completion, FinishReason, TokenLogprob
from radixlang.serving.sampling_job import ScoredPrompt
from radixlang.serving.served_backend import ServedBackend

_FINISH: dict[FinishReason, str] = {"length": "length"}  # every other reason is "stop"


class ReplyHead:
    """What every body of one reply begins with."""

    def __init__(self, prefix: str, kind: str, model: str) -> None:
        self.id = f"{prefix}-{secrets.token_hex(12)}"
        self._fields = {"id": self.id, "object": kind, "created": int(time.time()), "model": model}

    def body(self, choices: Sequence[JsonBody], usage: JsonBody | None = None) -> JsonBody:
        """A whole body, or a chunk."""
        body = {**self._fields, "choices": list(choices)}
        return body if usage is None else {**body, "usage": usage}


def finish_of(completion: Completion) -> str:
    """The finish reason, as OpenAI's API names it."""
    return _FINISH.get(completion.finish_reason, "stop")


def stop_reason_of(completion: Completion) -> str | int | None:
    """The stop string or token id that ended it; None for the model's own end."""
    return completion.stop_reason if completion.finish_reason == "stop" else None


def usage_of(completions: Sequence[Sequence[Completion]]) -> JsonBody:
    """Tokens of a request; each inner sequence has the samples of one prompt.

    A prompt counts once, however many samples it has; what is cached is what was there before.
    """
    num_prompt = num_cached = num_generated = 0
    for samples in completions:
        known = [each.usage for each in samples if each.usage.num_prompt_tokens]
        num_prompt += max((usage.num_prompt_tokens for usage in known), default=0)
        num_cached += min((usage.num_cached_tokens for usage in known), default=0)
        num_generated += sum(len(each.token_ids) for each in samples)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def prompt_logprobs_of(
    scored: ScoredPrompt, num_top: int, backend: ServedBackend
) -> list[JsonBody | None]:
    """Log-probabilities of a prompt's tokens by token id, as vLLM has them; None at the first."""
    return [None if each is None else _ranked(each, num_top, backend) for each in scored.logprobs]


def _ranked(each: TokenLogprob, num_top: int, backend: ServedBackend) -> JsonBody:
    told = [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(each.top, 1)]
    found: JsonBody = {
        str(token_id): {
            "logprob": logprob, "rank": rank, "decoded_token": backend.decode([token_id])
        }
        for token_id, logprob, rank in told[:num_top]
    }  # fmt: skip
    own = {"logprob": each.logprob, "rank": None, "decoded_token": backend.decode([each.token_id])}
    found.setdefault(str(each.token_id), own)
    return found


def chat_logprobs(
    logprobs: Sequence[TokenLogprob] | None, backend: ServedBackend
) -> JsonBody | None:
    """Log-probabilities in the form of chat completions."""
    if logprobs is None:
        return None
    content = [
        {
            **_token(each.token_id, each.logprob, backend),
            "top_logprobs": [_token(*pair, backend) for pair in each.top],
        }
        for each in logprobs
    ]
    return {"content": content, "refusal": None}


def _token(token_id: int, logprob: float, backend: ServedBackend) -> JsonBody:
    data = backend.token_bytes(token_id)
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


def completion_logprobs(
    logprobs: Sequence[TokenLogprob] | None,
    backend: ServedBackend,
    offset: int = 0,
    prompt: ScoredPrompt | None = None,
    *,
    as_ids: bool = False,
) -> JsonBody | None:
    """Log-probabilities in the form of completions; `offset` is that of the first character.

    The tokens of a scored prompt come first, the very first without a log-probability. `as_ids`
    names tokens "token_id:7", for two may have one text.
    """
    if logprobs is None:
        return None
    ids = [*(prompt.token_ids if prompt else ()), *(each.token_id for each in logprobs)]
    records = [*(prompt.logprobs if prompt else ()), *logprobs]
    tokens = [backend.decode([token_id]) for token_id in ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": [f"token_id:{token_id}" for token_id in ids] if as_ids else tokens,
        "token_logprobs": [None if each is None else each.logprob for each in records],
        "top_logprobs": [
            None if each is None else _tops(each, backend, as_ids) for each in records
        ],
        "text_offset": offsets,
    }


def _tops(each: TokenLogprob, backend: ServedBackend, as_ids: bool) -> dict[str, float]:
    """The likeliest tokens by their text; of two with one text, the likelier."""
    found: dict[str, float] = {}
    for token_id, logprob in each.top:
        name = f"token_id:{token_id}" if as_ids else backend.decode([token_id])
        found.setdefault(name, logprob)
    return found
