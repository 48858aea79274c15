"""`store` and `parent_id`: requests that go on from a reply, and what bounds what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

Client = Callable[..., openai.OpenAI]
TALK: list[Any] = [{"role": "system", "content": "You answer."},
                   {"role": "user", "content": "What plays in the theatre?"}]  # fmt: skip
NEXT: list[Any] = [{"role": "user", "content": "And then?"}]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8}


def told(answer: Any) -> list[Any]:
    return [{"role": "assistant", "content": answer}]


def test_a_conversation_goes_on_from_a_reply(
    client: Client, make_runtime: Callable[..., Any]
) -> None:
    """Answers are words, whose text is the same tokens when the whole conversation is sent."""
    api = client(make_runtime())

    def ask(messages: list[Any], parent: str | None = None, **options: Any) -> Any:
        extra = {} if parent is None else {"parent_id": parent}
        if "word" in options:
            extra["structured_outputs"] = {"choice": [options.pop("word")]}
        return api.chat.completions.create(messages=messages, extra_body=extra, **GREEDY, **options)

    first = ask(TALK, word="theatre", store=True)
    talk = [*TALK, *told("theatre"), *NEXT]
    whole, forked = ask(talk), ask(NEXT, first.id)
    assert forked.choices == whole.choices
    assert forked.usage.prompt_tokens == whole.usage.prompt_tokens
    chunks = ask(NEXT, first.id, stream=True)
    parts = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert parts == whole.choices[0].message.content
    second = ask(NEXT, first.id, word="house", store=True)  # another fork, and one of that
    talk = [*talk, *told("house"), *NEXT]
    deeper = ask(NEXT, second.id)
    assert deeper.choices == ask(talk).choices
    assert deeper.usage.prompt_tokens_details.cached_tokens >= second.usage.total_tokens - 1


def test_every_choice_of_a_completion_may_be_gone_on_from(
    client: Client, make_runtime: Callable[..., Any]
) -> None:
    api = client(make_runtime())
    asked = {"model": "tiny", "max_tokens": 6, "n": 3, "seed": 1}
    ids = {"return_token_ids": True}
    first = api.completions.create(
        prompt=["The theatre", "A house"], extra_body={"store": True, **ids}, **asked
    )
    for place in (0, 2, 4):
        prompt = ["The theatre", "A house"][place // 3]
        rest = api.completions.create(
            prompt=" in the", extra_body={"parent_id": f"{first.id}:{place}"}, **GREEDY
        )
        tokens = api.completions.create(prompt=prompt, echo=True, extra_body=ids, **GREEDY)
        assert tokens.choices[0].text.startswith(prompt)
        assert rest.usage is not None
        before = first.choices[place].model_extra or {}
        assert rest.usage.prompt_tokens > len(before["token_ids"])
        assert rest.choices[0].text


@pytest.mark.parametrize(
    "wrong", [{"parent_id": "chatcmpl-none"}, {"parent_id": "ID:1"}, {"cache_salt": "s"}]
)
def test_what_is_not_kept_for_a_client_is_not_found(
    client: Client, make_runtime: Callable[..., Any], wrong: dict[str, str]
) -> None:
    api = client(make_runtime())
    first = api.chat.completions.create(messages=TALK, store=True, **GREEDY)
    extra = {"parent_id": first.id, **wrong}
    extra["parent_id"] = extra["parent_id"].replace("ID", first.id)
    with pytest.raises(openai.NotFoundError, match="no stored reply"):
        api.chat.completions.create(messages=NEXT, extra_body=extra, **GREEDY)
    with pytest.raises(openai.NotFoundError, match="no stored reply"):
        api.completions.create(prompt="a", extra_body={"parent_id": first.id}, **GREEDY)


@pytest.mark.parametrize(
    "limits", [{"max_stored": 2}, {"max_stored_tokens": 110}, {"stored_s": 0.001}]
)
def test_what_is_kept_is_bounded(
    client: Client, make_runtime: Callable[..., Any], limits: dict[str, Any]
) -> None:
    runtime = make_runtime()
    api = client(runtime, **limits)
    replies = [api.chat.completions.create(messages=TALK, store=True, **GREEDY) for _ in range(6)]
    kept = runtime.stats().num_branches
    assert kept <= 2
    with pytest.raises(openai.NotFoundError):
        api.chat.completions.create(
            messages=NEXT, extra_body={"parent_id": replies[0].id}, **GREEDY
        )


def test_a_server_that_ends_releases_what_it_kept(fake: Any, client: Client) -> None:
    """The fake complains of a branch that is left."""
    api = client(fake)
    asked: dict[str, Any] = {"model": "fake", "messages": TALK, "max_tokens": 5}
    first = api.chat.completions.create(store=True, **asked)
    assert first.choices[0].message.content
    api.chat.completions.create(extra_body={"parent_id": first.id}, store=True, **asked)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"store": True, "best_of": 3}, "best_of cannot be above n"),
        ({"parent_id": "x", "prompt_logprobs": 1}, "leave out echo and prompt_logprobs"),
        ({"parent_id": 3}, "parent_id"),
    ],
)
def test_what_does_not_go_together_is_refused(
    client: Client, fake: Any, extra: dict[str, Any], said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        client(fake).chat.completions.create(model="fake", messages=NEXT, extra_body=extra)
