"""`radixlang serve`: a process that tells its address, answers, and ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from radixlang.cli.main import USAGE, main


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts `radixlang serve fake` on a free port; it ends by itself in any case."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, target: str = "fake") -> subprocess.Popen[str]:
        words = ["serve", target, "--port", "0", "--idle-exit", "20", *options]
        started.append(subprocess.Popen(
            [sys.executable, "-m", "radixlang", *words], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        ))  # fmt: skip
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


@pytest.mark.parametrize("told_by", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_until_it_is_told_to_stop(
    process: Any, tmp_path: Path, told_by: signal.Signals
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n\n", encoding="utf-8")
    server = process("--json", "--api-key-file", str(keys), "--served-name", "mine")
    told = json.loads(server.stdout.readline())
    assert told["model"] == "fake"
    with openai.OpenAI(base_url=told["base_url"], api_key="secret", timeout=60) as api:
        assert [model.id for model in api.models.list()] == ["mine"]
        assert api.completions.create(model="mine", prompt="a").choices[0].text
    server.send_signal(told_by)
    assert server.wait(60) == 0


def test_programs_of_a_file_are_served_beside_the_model(process: Any, tmp_path: Path) -> None:
    file = tmp_path / "towns.py"
    file.write_text(
        "from radixlang import function, gen\n\n\n"
        "@function\ndef size(s, town: str) -> int:\n"
        "    s += town + gen('people')\n    return len(s['people'])\n",
        encoding="utf-8",
    )
    server = process("--json", "--model", "fake", "--max-tokens", "3", target=str(file))
    told = json.loads(server.stdout.readline())
    assert told["programs"] == [f"{told['url']}/programs/size"]
    reply = httpx2.post(told["programs"][0], json={"town": "Rome"}, timeout=60)
    assert (reply.status_code, reply.json()["returned"]) == (200, 3)
    models = httpx2.get(f"{told['base_url']}/models", timeout=60).json()["data"]
    assert [model["id"] for model in models] == ["fake"]


def test_it_ends_when_nobody_asks(process: Any) -> None:
    server = process("--idle-exit", "0.2")
    assert "serving fake at http://127.0.0.1:" in server.stderr.readline()
    assert server.wait(60) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fake", "--model", "other"], "two models"),
        (["fake", "--max-requests", "0"], "max_requests must be above 0"),
        (["none.py", "--model", "fake"], "none.py: no such file"),
        (["fake", "--host", "203.0.113.1", "--port", "0"], "cannot listen on 203.0.113.1:0"),
        (["fake", "--timeout", "3"], "it is called --request-timeout here"),
        (["fake", "--api-key-file", "none.txt"], "cannot read none.txt"),
    ],
)
def test_wrong_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == USAGE
    assert said in capsys.readouterr().err
