"""Programs on a server: the same answers as here, and refusals by name where it cannot follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import httpx2
import pytest

import radixlang
from radixlang import EndpointOptions, Remote, State, assistant, function, gen, select, system, user
from radixlang.errors import (
    DeadlineError,
    ParameterError,
    ProgramError,
    RequestError,
    UnsupportedConstraintError,
)
from radixlang.remote.abilities import abilities_of
from radixlang.serving import ServerConfig, serving
from radixlang.testing import FakeBackend


@radixlang.function
def everything(s, town):
    s += system("You know towns.")
    s += user(f"What is {town} like?")
    s += assistant(gen("answer", max_tokens=8, temperature=1, stop="z"))
    s += f"Plain: {town} is "
    with s.fork(3) as group:
        group += lambda index: f"fact {index}:" + gen("fact", max_tokens=5, temperature=1)
    s.join(group, "fact")
    s += "\nIt lies in the " + gen("way", Literal["north", "south"])
    s += ", and one" + select("verb", [" sleeps", " plays"])


@radixlang.function
def conversation(s):
    """After a select the next turn is rendered by a callback of the backend."""
    s += user("Way?") + assistant(select("way", ["north", "south"]))
    s += user("Sure?") + assistant(select("sure", ["yes", "no"]))


@radixlang.function
def talk(s, question):
    s += system("You answer.") + user(question)
    s += assistant(gen("answer", max_tokens=20, temperature=0))
    s += user("Are you sure?") + assistant(gen("sure", choices=["yes", "no"]))


@pytest.fixture
def remote_of() -> Iterator[Callable[..., Remote]]:
    """Serves a backend, and opens a Remote on it."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def make(backend: Any, config: dict[str, Any] | None = None, **options: Any) -> Remote:
            url = stack.enter_context(serving(backend, ServerConfig(port=0, **(config or {}))))
            return stack.enter_context(Remote(f"{url}/v1", **options))

        yield make


def test_a_program_gives_what_it_gives_here(make_runtime: Any, remote_of: Any) -> None:
    """Token by token, on a server of ours, with seeds, forks, scores and constraints."""
    runtime = make_runtime()
    here = everything(town="Ghent", seed=5, heal=False, runtime=runtime)
    there = everything(town="Ghent", seed=5, heal=False, runtime=remote_of(runtime))
    assert there.text() == here.text()
    assert there.values() == here.values()


def test_turns_are_rendered_while_others_run(make_runtime: Any, remote_of: Any) -> None:
    runtime = make_runtime()
    there = conversation(runtime=remote_of(runtime))
    assert there.text() == conversation(runtime=runtime).text()


def test_a_stream_and_a_batch(make_runtime: Any, remote_of: Any) -> None:
    remote = remote_of(make_runtime())
    with everything.stream(town="Ghent", seed=5, runtime=remote) as stream:
        text = "".join(event.text for event in stream if event.name == "answer")
        assert text == stream.state["answer"]
    rows = [{"town": name} for name in ("Ghent", "Bruges", "Lille")]
    results = everything.run_batch(rows, seed=1, runtime=remote)
    assert [result.error for result in results] == [None] * 3


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_other_kinds_are_sent_conversations(remote_of: Any, kind: str) -> None:
    with FakeBackend(["It is Paris.", "yes"]) as backend:
        remote = remote_of(backend, kind=kind)
        program = talk if kind == "vllm" else without_choices
        state = program(question="Capital of France?", runtime=remote)
        assert state["answer"] == "It is Paris."
        assert backend.prompts[-1] == (
            "<|im_start|>system\nYou answer.<|im_end|>\n<|im_start|>user\nCapital of France?"
            "<|im_end|>\n<|im_start|>assistant\nIt is Paris.<|im_end|>\n<|im_start|>user\n"
            "Are you sure?<|im_end|>\n<|im_start|>assistant\n"
        )


@radixlang.function
def without_choices(s, question):
    s += system("You answer.") + user(question)
    s += assistant(gen("answer", max_tokens=20, temperature=0))
    s += user("Are you sure?") + assistant(gen("sure", max_tokens=5))


@radixlang.function
def begun(s):
    s += user("Name?") + assistant("My name is" + gen("name", max_tokens=4))


@radixlang.function
def plain(s):
    s += "Once" + gen("text", max_tokens=4)


@radixlang.function
def long(s):
    s += "Once" + gen("text", max_tokens=500)


@radixlang.function
def chosen(s):
    s += user("Way?") + assistant(select("way", ["north", "south"]))


@pytest.mark.parametrize(
    ("program", "kind", "options", "said"),
    [
        (plain, "openai", {}, "takes conversations only"),
        (begun, "openai", {}, "begins a turn itself"),
        (chosen, "vllm", {}, "use gen(choices=…) in place of select"),
        (without_choices, "openai", {"top_k": 3}, "top_k is not possible here"),
        (plain, "vllm", {"stop_regex": "a"}, "stop_regex is not possible here"),
        (without_choices, "openai", {"namespace": "a"}, "namespace= is not possible here"),
        (without_choices, "vllm", {"logprobs": True}, "log-probabilities by token id"),
    ],
)
def test_what_a_kind_cannot_do_is_refused_by_name(
    remote_of: Any, program: Any, kind: str, options: Any, said: str
) -> None:
    with FakeBackend() as backend:
        remote = remote_of(backend, kind=kind)
        arguments = {"question": "?"} if program is without_choices else {}
        with pytest.raises(ProgramError) as caught:
            program(runtime=remote, **arguments, **options)
        assert said in str(caught.value)


def test_constraints_are_sent_or_refused(remote_of: Any) -> None:
    with FakeBackend() as backend:
        remote = remote_of(backend, kind="openai")
        assert remote.compile_constraint(radixlang.JsonSchema.of({"type": "integer"}))
        with pytest.raises(UnsupportedConstraintError, match="enforces JSON schemas only"):
            remote.compile_constraint(radixlang.Regex("a"))
        with pytest.raises(UnsupportedConstraintError, match="cannot close a text"):
            remote.compile_constraint(radixlang.Regex("a", finish="close"))


def test_explain_says_it_beforehand(remote_of: Any) -> None:
    with FakeBackend() as backend:
        for kind, expected in {
            "radixlang": {"fork": "served", "select": "served", "gen under Choices": "served"},
            "vllm": {"fork": "emulated", "select": "refused", "gen under Choices": "served"},
            "openai": {"fork": "emulated", "select": "refused", "gen under Choices": "refused"},
        }.items():
            needs = remote_of(backend, kind=kind).explain(everything, town="Ghent")
            assert {need.what: need.how for need in needs} == expected
        assert backend.prompts == []


def test_a_deadline_of_the_program(remote_of: Any) -> None:
    with FakeBackend(lambda *_: "word " * 100, delay=0.05) as backend:
        remote = remote_of(backend)
        with pytest.raises(ProgramError) as caught:
            long(timeout=0.3, runtime=remote)
        assert isinstance(caught.value.__cause__, DeadlineError)


def test_no_such_model_and_no_server(remote_of: Any) -> None:
    with FakeBackend() as backend:
        with pytest.raises(ParameterError, match="has no model 'gpt'; it has: fake"):
            remote_of(backend, model="gpt")
        with pytest.raises(ParameterError, match="API key is missing or wrong"):
            remote_of(backend, config={"api_keys": ("secret",)}, key="other")
        assert remote_of(backend, config={"api_keys": ("secret",)}, key="secret").model_name
    options = EndpointOptions(retries=1, first_pause_s=0.01)
    with pytest.raises(RequestError, match="does not answer"):
        Remote("http://127.0.0.1:9/v1", options=options)


@pytest.mark.parametrize(
    ("owner", "kind"), [("me", "llama.cpp"), ("vllm", "vLLM"), ("someone", "OpenAI's API")]
)
def test_a_server_is_known_by_the_owner_of_its_models(owner: str, kind: str) -> None:
    assert abilities_of(owner).kind == kind


def test_logprobs_by_text_are_refused_by_name() -> None:
    """llama.cpp's servers name the tokens of log-probabilities by their text."""

    @function
    def likely(s: State) -> None:
        s += "One" + gen("a", max_tokens=2, logprobs=True)

    with Remote("http://x/v1", kind="llamacpp", transport=Scripted(events("a"))) as remote:
        assert [(need.what, need.how) for need in remote.explain(likely)] == [
            ("logprobs", "refused")
        ]
        with pytest.raises(ProgramError, match="names tokens by their text"):
            likely(runtime=remote)


# ---- retries, over a scripted transport

MODELS = {"data": [{"id": "m", "owned_by": "someone"}]}


class Scripted(httpx2.AsyncBaseTransport):
    """Answers in order; an answer that is an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.bodies: list[Any] = []
        self.num_at_once = self.most_at_once = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await asyncio.sleep(0.005)
        self.num_at_once -= 1
        if request.url.path.endswith("/models"):
            return httpx2.Response(200, json=MODELS)
        self.bodies.append(json.loads(request.content))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def events(*texts: str) -> httpx2.Response:
    chunks = [{"choices": [{"delta": {"content": text}, "finish_reason": None}]} for text in texts]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return httpx2.Response(200, text="".join([*lines, "data: [DONE]\n\n"]))


QUICK = EndpointOptions(retries=3, first_pause_s=0.005)


def ask(transport: Scripted, **options: Any) -> Any:
    with Remote("http://x/v1", transport=transport, options=QUICK) as remote:
        state = without_choices(question="?", runtime=remote, **options)
        return state["answer"], remote.stats().num_retries


@pytest.mark.parametrize(
    "failure",
    [httpx2.Response(429, headers={"Retry-After": "0"}), httpx2.Response(503, text="busy"),
     httpx2.ConnectError("no"), httpx2.ReadTimeout("late")],
)  # fmt: skip
def test_refusals_of_the_moment_are_asked_again(failure: Any) -> None:
    answer, num_retries = ask(Scripted(failure, failure, events("a ", "word")))
    assert (answer, num_retries) == ("a word", 2)


def test_a_refusal_for_good_is_not() -> None:
    transport = Scripted(httpx2.Response(400, json={"error": {"message": "no such field"}}))
    with pytest.raises(ProgramError, match="no such field"):
        ask(transport)
    assert len(transport.bodies) == 1


def test_retries_end() -> None:
    transport = Scripted(httpx2.Response(500, json={"error": "broken"}))
    with pytest.raises(ProgramError, match="broken"):
        ask(transport)
    assert len(transport.bodies) == 4


def test_a_broken_answer_is_an_error() -> None:
    for text in ("data: {nonsense\n\n", 'data: {"error": {"message": "died"}}\n\n'):
        with pytest.raises(ProgramError, match=r"JSON object|died"):
            ask(Scripted(httpx2.Response(200, text=text)))


def test_only_so_many_requests_at_once() -> None:
    transport = Scripted(events("word"))
    options = EndpointOptions(max_at_once=3)
    with Remote("http://x/v1", transport=transport, options=options) as remote:
        rows = [{"question": str(number)} for number in range(12)]
        results = without_choices.run_batch(rows, runtime=remote)
        assert all(result.error is None for result in results)
    assert transport.most_at_once == 3
    assert transport.bodies[0]["messages"][0] == {"role": "system", "content": "You answer."}
