"""Keys, limits and deadlines: who may ask, how much, and for how long."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import openai
import pytest

from radixlang.errors import ParameterError
from radixlang.serving.config import ServerConfig
from radixlang.testing import FakeBackend

Client = Callable[..., openai.OpenAI]


def posted(url: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON of a reply to a body."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_key_is_asked_for(client: Client, fake: FakeBackend) -> None:
    api = client(fake, key="right", api_keys=("right", "other"))
    assert api.completions.create(model="fake", prompt="a").choices
    for key in ("wrong", "righ", "right2"):
        with pytest.raises(openai.AuthenticationError, match="API key is missing or wrong"):
            api.with_options(api_key=key).models.list()


def test_health_needs_no_key(serve: Callable[..., str], fake: FakeBackend) -> None:
    url = serve(fake, api_keys=("k",))
    with urllib.request.urlopen(f"{url}/health", timeout=60) as reply:
        assert json.load(reply) == {"status": "ok", "model": "fake"}
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{url}/metrics", timeout=60)


def test_a_closed_backend_is_not_healthy(serve: Callable[..., str]) -> None:
    backend = FakeBackend()
    url = serve(backend)
    backend.close()
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"{url}/health", timeout=60)
    assert posted(f"{url}/v1/completions", b'{"prompt": "a"}')[0] == 503


def test_keys_share_no_cached_tokens(client: Client, make_runtime: Callable[..., Any]) -> None:
    """What one key has cached is a miss for another, and for another salt of the same key."""
    api = client(make_runtime(), key="one", api_keys=("one", "two"))
    prompt = "The theatre in the north of the town plays every night."

    def num_cached(key: str, **extra: str) -> int:
        reply = api.with_options(api_key=key).completions.create(
            model="tiny", prompt=prompt, max_tokens=1, extra_body=extra
        )
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        return reply.usage.prompt_tokens_details.cached_tokens or 0

    assert num_cached("one") == 0
    assert num_cached("one") > 5
    assert num_cached("two") == 0
    assert num_cached("two") > 5
    assert num_cached("one", cache_salt="s") == 0
    assert num_cached("one", cache_salt="s") > 5


def test_a_large_body_is_refused(serve: Callable[..., str], fake: FakeBackend) -> None:
    url = serve(fake, max_body_bytes=1000) + "/v1/completions"
    status, reply = posted(url, json.dumps({"prompt": "a" * 2000}).encode())
    assert (status, reply["error"]["message"]) == (413, "the body is larger than 1000 bytes")
    assert posted(url, b'{"prompt": "a"}')[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": NaN}', b"[" * 100_000,
        b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "stop": ""}', b'{"prompt": "a", "seed": 1e99}',
        b'{"prompt": "a", "max_tokens": 0}', b'{"prompt": [-1]}', b'{"prompt": {"a": 1}}',
        b'{"prompt": "a", "structured_outputs": {"regex": "("}}', b'{"prompt": "a", "n": -1}',
        b'{"prompt": "a", "timeout_s": -1}', b'{"prompt": "a", "n": true, "logprobs": 1000}',
    ],
)  # fmt: skip
def test_nonsense_is_a_400(serve: Callable[..., str], fake: FakeBackend, body: bytes) -> None:
    url = serve(fake)
    status, reply = posted(f"{url}/v1/completions", body)
    assert (status, reply["error"]["type"]) == (400, "invalid_request_error")
    assert posted(f"{url}/v1/completions", b'{"prompt": "a"}')[0] == 200


def test_too_many_requests(serve: Callable[..., str]) -> None:
    with FakeBackend(["a", "long", "answer"] * 50, delay=0.2) as backend:
        url = serve(backend, max_requests=2) + "/v1/completions"
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(posted(url, b'{"prompt": "a"}')[0]))
            for _ in range(5)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(found) == [200, 200, 429, 429, 429]
        assert posted(url, b'{"prompt": "a"}')[0] == 200


def test_a_deadline_ends_a_request(client: Client) -> None:
    with FakeBackend(lambda *_: "word " * 100, delay=0.05) as backend:
        api = client(backend, timeout_s=0.2)
        with pytest.raises(openai.InternalServerError) as caught:
            api.completions.create(model="fake", prompt="a", max_tokens=500)
        assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
        stream = api.completions.create(model="fake", prompt="a", max_tokens=500, stream=True)
        with pytest.raises(openai.APIError, match=r"longer than 0\.2 s"):
            list(stream)
        begun = time.monotonic()
        while backend.audit() and time.monotonic() - begun < 30:
            time.sleep(0.01)
        assert backend.audit() == []


def test_metrics_are_the_statistics(serve: Callable[..., str], make_runtime: Any) -> None:
    runtime = make_runtime()
    url = serve(runtime)
    posted(f"{url}/v1/completions", b'{"prompt": "The town", "max_tokens": 3}')
    posted(f"{url}/v1/nothing", b"{}")
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines
                                                         if not line.startswith("#"))}  # fmt: skip
    stats = runtime.stats()
    assert values["radixlang_generated_tokens_total"] == stats.num_generated_tokens == 3
    assert values["radixlang_pages_total"] == stats.num_pages_total
    assert values['radixlang_http_requests_total{path="/v1/completions",status="200"}'] == 1
    assert values['radixlang_http_requests_total{path="other",status="404"}'] == 1
    assert values['radixlang_http_request_seconds_count{path="/v1/completions"}'] == 1
    assert values["radixlang_http_running"] == 1  # this one


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"port": 70_000}, "port"),
        ({"max_requests": 0}, "max_requests"),
        ({"api_keys": (" ",)}, "API key"),
        ({"sampling": {"temperature": -1}}, "temperature"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        ServerConfig(**settings)
