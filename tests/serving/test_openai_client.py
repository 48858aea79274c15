"""OpenAI's own client against the server, on the tiny model: what it answers is what a branch
generates."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from radixlang.errors import RadixlangError
from radixlang.protocol import Markup, Message
from radixlang.sampling_params import SamplingParams

Client = Callable[..., openai.OpenAI]
TALK: list[Any] = [
    {"role": "system", "content": "You answer."},
    {"role": "user", "content": "What plays in the theatre?"},
]
GREEDY = {"temperature": 0, "max_tokens": 8}


def of_branch(runtime: Any, prompt: Any, **params: Any) -> Any:
    """What a branch of the runtime generates after a prompt."""
    branch = runtime.new_branch()
    try:
        branch.extend(prompt)
        return branch.generate(SamplingParams(heal=False, **params)).result(60)
    finally:
        branch.release()


def test_models(client: Client, make_runtime: Callable[..., Any]) -> None:
    api = client(make_runtime())
    assert [model.id for model in api.models.list()] == ["tiny"]
    assert api.models.retrieve("tiny").owned_by == "radixlang"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        api.models.retrieve("gpt")


def test_completion_is_the_branch_s_own(client: Client, make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    expected = of_branch(runtime, "The theatre in the", temperature=0.0, max_tokens=8)
    reply = client(runtime).completions.create(
        model="tiny", prompt="The theatre in the", **GREEDY, extra_body={"return_token_ids": True}
    )
    (choice,) = reply.choices
    assert choice.text == expected.text
    assert choice.model_extra is not None
    assert tuple(choice.model_extra["token_ids"]) == expected.token_ids
    assert choice.finish_reason == ("length" if expected.finish_reason == "length" else "stop")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len(expected.token_ids)
    assert reply.usage.prompt_tokens == len(runtime.encode("The theatre in the"))


def test_token_ids_go_in(client: Client, make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    ids = runtime.encode("Paris is the capital")
    api = client(runtime)
    by_ids = api.completions.create(model="tiny", prompt=[ids, ids[:-1]], echo=True, **GREEDY)
    by_text = api.completions.create(model="tiny", prompt="Paris is the capital", **GREEDY)
    assert by_ids.choices[0].text == "Paris is the capital" + by_text.choices[0].text
    assert by_ids.choices[1].text.startswith(runtime.decode(ids[:-1]))
    with pytest.raises(openai.BadRequestError, match="not in this model's vocabulary"):
        api.completions.create(model="tiny", prompt=[100_000])


def test_chat_is_the_template_s_own(client: Client, make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    turns = [Message(turn["role"], turn["content"]) for turn in TALK]
    prompt = Markup(runtime.render_chat(turns, add_generation_prompt=True))
    expected = of_branch(runtime, prompt, temperature=0.0, max_tokens=8)
    reply = client(runtime).chat.completions.create(model="tiny", messages=TALK, **GREEDY)
    assert reply.choices[0].message.content == expected.text
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == expected.usage.num_prompt_tokens


def test_contents_are_data(client: Client, make_runtime: Callable[..., Any]) -> None:
    """A special token in a message is characters: it ends no turn."""
    runtime = make_runtime()
    reply = client(runtime).chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "a<|im_end|>b"}], **GREEDY
    )
    branch = runtime.new_branch()
    for piece in (Markup("<|im_start|>user\n"), "a<|im_end|>b", Markup("<|im_end|>\n"),
                  Markup("<|im_start|>assistant\n")):  # fmt: skip
        branch.extend(piece)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(branch.tokens().result(60))
    branch.release()


def test_stream_is_the_whole(client: Client, make_runtime: Callable[..., Any]) -> None:
    api = client(make_runtime())
    asked = {"model": "tiny", "messages": TALK, "temperature": 1, "seed": 5, "max_tokens": 12}
    whole = api.chat.completions.create(**asked)
    chunks = list(api.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ))  # fmt: skip
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_completions_stream_every_choice(client: Client, make_runtime: Callable[..., Any]) -> None:
    api = client(make_runtime())
    asked: dict[str, Any] = {"model": "tiny", "prompt": ["The town", "The moon"], "n": 2,
                             "seed": 3, "max_tokens": 6, "echo": True}  # fmt: skip
    whole = api.completions.create(**asked)
    texts = dict.fromkeys(range(4), "")
    for chunk in api.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert [text[:8] for text in texts.values()] == ["The town"] * 2 + ["The moon"] * 2


def test_n_are_forks_of_one_prompt(client: Client, make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    api = client(runtime)
    prompt = "A long shared prefix that every branch reads, and a short question. " * 4
    asked = {"model": "tiny", "prompt": prompt, "seed": 1, "max_tokens": 6}
    reply = api.completions.create(**asked, n=4)
    num = len(runtime.encode(prompt))
    assert runtime.stats().num_computed_tokens < 2 * num
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == num
    assert len({choice.text for choice in reply.choices}) > 1
    alone = api.completions.create(**asked)
    assert alone.choices[0].text == reply.choices[0].text
    assert alone.usage is not None
    assert alone.usage.prompt_tokens_details is not None
    assert alone.usage.prompt_tokens_details.cached_tokens is not None
    assert alone.usage.prompt_tokens_details.cached_tokens >= num - 1


def test_best_of_keeps_the_likeliest(client: Client, make_runtime: Callable[..., Any]) -> None:
    api = client(make_runtime())
    asked: dict[str, Any] = {"model": "tiny", "prompt": "The town", "seed": 4, "max_tokens": 5}
    all_five = api.completions.create(**asked, n=5, logprobs=0)
    best = api.completions.create(**asked, best_of=5)

    def mean(choice: Any) -> float:
        values = choice.logprobs.token_logprobs
        return float(sum(values) / len(values))

    assert best.choices[0].text == max(all_five.choices, key=mean).text
    assert best.choices[0].logprobs is None
    with pytest.raises(openai.BadRequestError, match="cannot be streamed"):
        api.completions.create(**asked, best_of=5, stream=True)


def test_logprobs_in_both_forms(client: Client, make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    api = client(runtime)
    expected = of_branch(runtime, "The town", temperature=0.0, max_tokens=4, top_logprobs=3)
    plain = api.completions.create(model="tiny", prompt="The town", temperature=0, max_tokens=4,
                                   logprobs=3).choices[0]  # fmt: skip
    assert plain.logprobs is not None
    values = [each.logprob for each in expected.logprobs]
    assert plain.logprobs.token_logprobs == pytest.approx(values, abs=1e-4)
    chat = api.chat.completions.create(model="tiny", messages=TALK, temperature=0, max_tokens=4,
                                       logprobs=True, top_logprobs=2).choices[0]  # fmt: skip
    assert chat.logprobs is not None
    assert chat.logprobs.content is not None
    for each in chat.logprobs.content:
        assert each.bytes is not None
        assert bytes(each.bytes).decode("utf-8", "replace") == each.token
        assert each.top_logprobs[0].logprob == each.logprob  # greedy
        assert len(each.top_logprobs) == 2


def test_an_echo_scores_its_prompt(client: Client, make_runtime: Callable[..., Any]) -> None:
    """Every token of the prompt as a branch scores it; the first has nothing before it."""
    runtime = make_runtime()
    api = client(runtime)
    ids = runtime.encode("The theatre in the north")
    branch = runtime.new_branch()
    branch.extend(ids[:1])
    (score,) = branch.score([ids[1:]], top_logprobs=2).result(60)
    branch.release()
    asked: dict[str, Any] = {"model": "tiny", "prompt": [ids, ids[:1]], "echo": True,
                             "logprobs": 2, "temperature": 0}  # fmt: skip
    only = api.completions.create(**asked, max_tokens=0)
    more = api.completions.create(**asked, max_tokens=2)
    for reply, num_more in ((only, 0), (more, 2)):
        records = reply.choices[0].logprobs
        assert records is not None
        assert records.tokens == [runtime.decode([i]) for i in ids] + records.tokens[len(ids) :]
        values = records.token_logprobs
        assert values is not None
        assert len(values) == len(ids) + num_more
        assert values[0] is None
        assert values[1 : len(ids)] == pytest.approx(list(score.logprobs), abs=1e-4)
        assert records.top_logprobs is not None
        greedy = [v == max(top.values()) for v, top in
                  zip(values[1 : len(ids)], records.top_logprobs[1:], strict=False)]  # fmt: skip
        assert greedy == list(score.is_greedy)
    assert only.choices[0].text == "The theatre in the north"
    assert only.usage is not None
    assert (only.usage.prompt_tokens, only.usage.completion_tokens) == (len(ids) + 1, 0)
    chunks = list(api.completions.create(**asked, max_tokens=2, stream=True))
    streamed = [v for chunk in chunks if chunk.choices[0].index == 0 and chunk.choices[0].logprobs
                for v in chunk.choices[0].logprobs.token_logprobs or ()]  # fmt: skip
    whole = more.choices[0].logprobs
    assert whole is not None
    assert whole.token_logprobs is not None
    assert streamed[1:] == pytest.approx(whole.token_logprobs[1:], abs=1e-4)


def test_prompt_logprobs_by_id(client: Client, make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    api = client(runtime)
    extra = {"prompt_logprobs": 2}
    text = api.completions.create(model="tiny", prompt="The town", max_tokens=1, extra_body=extra)
    chat = api.chat.completions.create(model="tiny", messages=TALK, max_tokens=1, extra_body=extra)
    assert text.choices[0].model_extra is not None
    assert chat.model_extra is not None
    for fields in (text.choices[0].model_extra, chat.model_extra):
        told, ids = fields["prompt_logprobs"], fields["prompt_token_ids"]
        assert told[0] is None
        for token_id, each in zip(ids[1:], told[1:], strict=True):
            assert {1, 2} <= {entry["rank"] for entry in each.values()}
            assert each[str(token_id)]["decoded_token"] == runtime.decode([token_id])


def test_streamed_logprobs_are_the_whole_s(
    client: Client, make_runtime: Callable[..., Any]
) -> None:
    """Under a constraint too, whose forced tokens have theirs one step later."""
    api = client(make_runtime())
    asked: dict[str, Any] = {
        "model": "tiny", "messages": TALK, "logprobs": True, "top_logprobs": 1, "seed": 8,
        "max_tokens": 30, "extra_body": {"structured_outputs": {"regex": "The town (is|sleeps)"}},
    }  # fmt: skip
    whole = api.chat.completions.create(**asked).choices[0]
    found = []
    for chunk in api.chat.completions.create(**asked, stream=True):
        if chunk.choices[0].logprobs is not None:
            found += chunk.choices[0].logprobs.content or []
    assert whole.logprobs is not None
    assert whole.logprobs.content is not None
    assert [each.token for each in found] == [each.token for each in whole.logprobs.content]
    assert "".join(each.token for each in found) == whole.message.content


class Town(BaseModel):
    """A structure that the client parses."""

    name: Literal["north", "south"]
    sleeps: bool


def test_response_format(client: Client, make_runtime: Callable[..., Any]) -> None:
    api = client(make_runtime())
    parsed = api.chat.completions.parse(
        model="tiny", messages=TALK, response_format=Town, seed=2, max_tokens=400
    )
    assert isinstance(parsed.choices[0].message.parsed, Town)
    reply = api.chat.completions.create(
        model="tiny", messages=TALK, max_tokens=60, seed=1,
        response_format={"type": "json_schema", "json_schema": {
            "name": "n", "strict": True, "schema": {"enum": [{"a": 1}, [True]]}}},
    )  # fmt: skip
    assert json.loads(reply.choices[0].message.content or "") in ({"a": 1}, [True])
    with pytest.raises(openai.BadRequestError):
        api.chat.completions.create(
            model="tiny", messages=TALK,
            response_format={"type": "json_schema", "json_schema": {
                "name": "n", "schema": {"type": "no such type"}}},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("outputs", "allowed"),
    [
        ({"choice": ["north", "south"]}, {"north", "south"}),
        ({"regex": "[ab]{2}"}, {"aa", "ab", "ba", "bb"}),
        ({"json": {"const": 7}}, {"7"}),
        ({"grammar": 'start: "yes" | "no"'}, {"yes", "no"}),
    ],
)
def test_structured_outputs(
    client: Client, make_runtime: Callable[..., Any], outputs: Any, allowed: set[str]
) -> None:
    reply = client(make_runtime()).completions.create(
        model="tiny", prompt="The theatre is in the", max_tokens=20, n=3,
        extra_body={"structured_outputs": outputs},
    )  # fmt: skip
    assert {choice.text for choice in reply.choices} <= allowed
    assert {choice.finish_reason for choice in reply.choices} == {"stop"}


def test_cut_inside_a_constraint_is_a_length(
    client: Client, make_runtime: Callable[..., Any]
) -> None:
    reply = client(make_runtime()).completions.create(
        model="tiny", prompt="The", max_tokens=5, seed=0,
        extra_body={"structured_outputs": {"regex": "(abc){40}"}},
    )  # fmt: skip
    assert reply.choices[0].finish_reason == "length"
    assert ("abc" * 40).startswith(reply.choices[0].text)
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (1, 5)


def test_stops(client: Client, make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    api = client(runtime)
    asked: dict[str, Any] = {"model": "tiny", "prompt": "The town", "temperature": 0}
    full = api.completions.create(**asked, max_tokens=12).choices[0].text
    stop = full[3:5]
    cut = api.completions.create(**asked, max_tokens=12, stop=[stop]).choices[0]
    assert cut.text == full[: full.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.model_extra is not None
    assert cut.model_extra["stop_reason"] == stop


def test_logit_bias(client: Client, make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    api = client(runtime)
    asked: dict[str, Any] = {"model": "tiny", "prompt": "The town", "temperature": 0,
                             "max_tokens": 3, "extra_body": {"return_token_ids": True}}  # fmt: skip
    first = api.completions.create(**asked).choices[0].model_extra["token_ids"][0]
    (wanted,) = runtime.encode("x")
    banned = api.completions.create(**asked, logit_bias={str(first): -100}).choices[0]
    pushed = api.completions.create(**asked, logit_bias={str(wanted): 100}).choices[0]
    assert first not in banned.model_extra["token_ids"]
    assert pushed.text == "xxx"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": -1}, "temperature"),
        ({"n": 0}, "n must be at least 1"),
        ({"n": 1000}, "may have 256 here"),
        ({"max_tokens": 10**6}, "may generate 65536 here"),
        ({"logit_bias": {"five": 1}}, "the keys of logit_bias are token ids"),
        ({"suffix": "x"}, "suffix is not served"),
        ({"extra_body": {"top_a": 1}}, "top_a: this server has no such field"),
        ({"extra_body": {"prompt": 5}}, "prompt"),
        ({"prompt": []}, "prompt is an empty list"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}}, "one of json"),
    ],
)
def test_refusals_name_the_field(
    client: Client, fake: Any, fields: dict[str, Any], said: str
) -> None:
    asked = {"model": "fake", "prompt": "hello", **fields}
    with pytest.raises(openai.BadRequestError, match=said):
        client(fake).completions.create(**asked)


def test_a_failed_generation_has_its_status(client: Client, make_runtime: Any) -> None:
    api = client(make_runtime())
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            api.completions.create(model="tiny", prompt="word " * 3000, stream=stream)
        assert caught.value.code == "context_length_exceeded"


def test_an_error_in_a_stream_is_an_event(client: Client) -> None:
    from radixlang.testing import FakeBackend

    def script(prompt: str, params: SamplingParams) -> Any:
        return RadixlangError("the script broke") if "b" in prompt else "fine"

    with FakeBackend(script) as backend:
        stream = client(backend).completions.create(model="fake", prompt=["a", "b"], stream=True)
        with pytest.raises(openai.APIError, match="the script broke"):
            list(stream)
        assert backend.audit() == []


def test_images_are_refused(client: Client, fake: Any) -> None:
    parts: Any = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(openai.BadRequestError, match="'image_url' is not served"):
        client(fake).chat.completions.create(
            model="fake", messages=[{"role": "user", "content": parts}]
        )


def test_a_turn_is_continued(client: Client, make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    reply = client(runtime).chat.completions.create(
        model="tiny", messages=[*TALK, {"role": "assistant", "content": "A play"}],
        extra_body={"continue_final_message": True}, **GREEDY,
    )  # fmt: skip
    turns = [Message(turn["role"], turn["content"]) for turn in TALK]
    begun = runtime.render_chat(turns, add_generation_prompt=True) + "A play"
    expected = of_branch(runtime, Markup(begun), temperature=0.0, max_tokens=8)
    assert reply.choices[0].message.content == expected.text
