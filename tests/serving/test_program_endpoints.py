"""Programs as endpoints: what their signature says is what is asked and answered."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import radixlang
from radixlang import State, gen
from radixlang.cli.programs import load_programs
from radixlang.errors import ParameterError
from radixlang.program.program import Program
from radixlang.serving.config import ServerConfig
from radixlang.serving.server import serving
from radixlang.testing import FakeBackend

FILE = Path(__file__).with_name("served_programs.py")
Api = Callable[..., httpx2.Client]


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    return {program.name: program for program in load_programs(str(FILE))}


@pytest.fixture
def api(programs: dict[str, Program]) -> Iterator[Api]:
    """A client of a backend that serves the programs; an open branch at the end is a leak."""
    with contextlib.ExitStack() as stack:

        def start(backend: Any, **settings: Any) -> httpx2.Client:
            stack.callback(_until_free, backend)
            config = ServerConfig(port=0, **settings)
            url = stack.enter_context(serving(backend, config, list(programs.values())))
            return stack.enter_context(httpx2.Client(base_url=f"{url}/programs", timeout=60))

        yield start


def _until_free(backend: Any) -> None:
    begun = time.monotonic()
    while not _is_free(backend) and time.monotonic() - begun < 30:
        time.sleep(0.01)
    assert _is_free(backend)


def _is_free(backend: Any) -> bool:
    if isinstance(backend, FakeBackend):
        return backend.audit() == []
    stats = backend.stats()
    return bool(stats.num_branches == stats.num_running == stats.num_waiting == 0)


def events_of(reply: httpx2.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_program_answers_as_in_its_own_process(
    api: Api, programs: dict[str, Program], make_runtime: Callable[..., Any]
) -> None:
    runtime = make_runtime()
    client = api(runtime)
    reply = client.post("/counts?seed=3", json={"tokens": 6})
    here = programs["counts"].run(tokens=6, runtime=runtime, seed=3)
    body = reply.json()
    assert reply.status_code == 200
    assert (body["text"], body["values"]) == (here.text(), here.values())
    assert body["returned"] is None
    assert body["usage"]["num_generated_tokens"] == 6


def test_types_of_the_signature(api: Api) -> None:
    client = api(FakeBackend(lambda *_: "fine", delay=0))
    asked = client.post("/ask", json={"question": "why?", "mood": "loud"}).json()
    assert (asked["text"], asked["returned"]) == ("Q: why? (loud)\nA:fine", 4)
    assert asked["values"] == {"answer": "fine"}
    place = {"place": {"town": "Rome", "people": 2}, "copy": ["a", "b"]}
    assert client.post("/visit", json=place).json()["returned"] == {"town": "Romeab", "people": 3}
    assert client.post("/hello").json()["text"] == "Hellofine"
    assert client.post("/hello", json={}).json()["returned"] is None
    assert client.post("/waits").json()["returned"] == ["fine", "fine"]
    assert client.post("/waits", json={"times": 1}).json()["values"] == {"part0": "fine"}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/reads", {"body": 1}, "body: Input should be a valid string"),
        ("/reads", {"body": "a", "query": "b"}, "query: Input should be a valid integer"),
        ("/ask", {"question": 3}, "question: Input should be a valid string"),
        ("/ask", {"mood": "calm"}, "question: Field required"),
        ("/ask", {"question": "a", "mood": "sad"}, "mood: Input should be 'calm' or 'loud'"),
        ("/ask", {"question": "a", "other": 1}, "other: this server has no such field"),
        ("/visit", {"place": {"town": "Rome", "people": "x"}}, "place.people: Input should be a"),
        ("/visit", {"place": {"town": "Rome"}, "copy": [1]}, "copy.0: Input should be a valid"),
        ("/ask?timeout_s=0", {"question": "a"}, "timeout_s: Input should be greater than 0"),
        ("/ask?sed=1", {"question": "a"}, "sed: this server has no such field"),
        ("/ask", [], "body: Input should be"),
    ],
)
def test_a_wrong_argument_is_named(
    api: Api, fake: FakeBackend, path: str, body: Any, said: str
) -> None:
    reply = api(fake).post(path, json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["message"].startswith(said)
    assert error["param"] == (said.partition(":")[0] if body else None)
    assert fake.prompts == []


def test_openapi_has_the_signatures(api: Api, fake: FakeBackend) -> None:
    told = api(fake).get("../openapi.json").json()
    schemas = told["components"]["schemas"]
    post = told["paths"]["/programs/ask"]["post"]
    assert post["description"] == "Answer a question."
    asked = schemas["ask_arguments"]
    assert asked["required"] == ["question"]
    assert asked["properties"]["mood"]["enum"] == ["calm", "loud"]
    assert asked["properties"]["mood"]["default"] == "calm"
    assert schemas["ask_result"]["properties"]["returned"]["type"] == "integer"
    assert schemas["visit_arguments"]["properties"]["place"] == {
        "$ref": "#/components/schemas/Place-Input"
    }
    needs_body = {name: told["paths"][f"/programs/{name}"]["post"]["requestBody"].get("required")
                  for name in ("ask", "hello")}  # fmt: skip
    assert needs_body == {"ask": True, "hello": None}


@pytest.mark.parametrize("asks", ["?stream=true", "Accept"])
def test_a_stream_is_the_programs_own(api: Api, asks: str) -> None:
    client = api(FakeBackend(lambda *_: "one two three", piece=4))
    headers = {"Accept": "text/event-stream"} if asks == "Accept" else {}
    path = "/ask" if asks == "Accept" else "/ask?stream=true"
    *pieces, last = events_of(client.post(path, json={"question": "a"}, headers=headers))
    assert {(each["type"], each["name"], *each["branch"]) for each in pieces} == {
        ("text", "answer")
    }
    assert len(pieces) > 1
    assert "".join(each["text"] for each in pieces) == "one two three"
    assert (last["type"], last["returned"]) == ("result", 13)
    assert last["text"] == "Q: a (calm)\nA:one two three"


def test_an_error_has_its_type_and_its_place(api: Api) -> None:
    client = api(FakeBackend(lambda *_: "word"))
    line = FILE.read_text(encoding="utf-8").splitlines().index("    return 1 / by") + 1
    fault = {"type": "ZeroDivisionError", "message": "division by zero",
             "location": f"served_programs.py:{line}", "param": None, "code": None}  # fmt: skip
    reply = client.post("/divides", json={"by": 0})
    assert (reply.status_code, reply.json()) == (500, {"error": fault})
    *_, last = events_of(client.post("/divides?stream=true", json={"by": 0}))
    assert last == {"type": "error", "error": fault}
    assert client.post("/divides", json={"by": 4}).json()["returned"] == 0.25


@pytest.mark.parametrize(("path", "body"), [("/counts", {"tokens": 900}),
                                            ("/sleeps", {"seconds": 20})])  # fmt: skip
def test_a_deadline_ends_a_program(api: Api, path: str, body: dict[str, Any]) -> None:
    with FakeBackend(lambda *_: "word " * 100, delay=0.1) as backend:
        reply = api(backend, timeout_s=0.2).post(path, json=body)
        assert reply.status_code == 504
        assert reply.json()["error"]["type"] == "DeadlineError"
        assert "timeout of 0.2 s" in reply.json()["error"]["message"]
        _until_free(backend)


def test_limits_are_those_of_the_server(api: Api) -> None:
    client = api(FakeBackend(lambda *_: "word " * 9), max_tokens=5, max_body_bytes=100)
    spent = client.post("/counts", json={"tokens": 40})
    assert (spent.status_code, spent.json()["error"]["type"]) == (400, "BudgetError")
    assert client.post("/ask", json={"question": "a" * 200}).status_code == 413


def test_a_key_is_asked_for_and_has_a_tree_of_its_own(
    api: Api, make_runtime: Callable[..., Any]
) -> None:
    client = api(make_runtime(), api_keys=("one", "two"))
    assert client.post("/counts", json={"tokens": 1}).status_code == 401

    def num_cached(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        reply = client.post("/counts", json={"tokens": 1}, headers=headers)
        return int(reply.json()["usage"]["num_cached_tokens"])

    assert (num_cached("one"), num_cached("two")) == (0, 0)
    assert num_cached("one") > 3


@pytest.mark.parametrize("path", ["/counts", "/counts?stream=true"])
def test_a_client_that_goes_away_ends_its_run(api: Api, path: str) -> None:
    with FakeBackend(lambda *_: "word " * 1000, delay=0.2) as backend:  # longer than is waited
        client = api(backend)
        with pytest.raises(httpx2.ReadTimeout):
            _leave(client, path)
        _until_free(backend)


def test_what_a_client_leaves_behind_is_free(api: Api, make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    with pytest.raises(httpx2.ReadTimeout):
        _leave(api(runtime), "/counts?stream=true")
    _until_free(runtime)
    stats = runtime.stats()
    assert (stats.num_protected_tokens, stats.num_pinned_tokens) == (0, 0)


def _leave(client: httpx2.Client, path: str) -> None:
    """Ask for more than can come, and go away inside the answer or before it."""
    body = {"tokens": 100_000}
    with client.stream("POST", path, json=body, timeout=0.5) as reply:
        next(reply.iter_lines())
    raise httpx2.ReadTimeout("left while it is read")


def test_what_cannot_be_served_is_refused(fake: FakeBackend) -> None:
    @radixlang.function
    def takes(s: State, call: type[State] | FakeBackend) -> None:
        s += "a" + gen("x")

    @radixlang.function(name="two words")
    def named(s: State) -> None:
        s += "a" + gen("x")

    for programs, said in (
        ([takes], "its argument 'call' is of"),
        ([named], "/programs/two words"),
        ([named.with_options(), named], "is not one of one program"),
    ):
        with (
            pytest.raises(ParameterError, match=said),
            serving(fake, ServerConfig(port=0), programs),
        ):
            raise AssertionError("it was served")
