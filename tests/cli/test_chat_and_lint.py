"""`radixlang chat` and `radixlang lint`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixlang.cli import _runtime
from radixlang.cli.commands import chat
from radixlang.cli.main import main
from radixlang.testing import FakeBackend

Talk = Callable[..., int]
ANSWERS = {"Name one.": "Ash.", "Another?": "Elm."}


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Runs a conversation of some lines on a fake model; gives the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RADIXLANG_HOME", str(tmp_path / "home"))

    def run(*lines: str, options: tuple[str, ...] = (), answers: Any = None, **fake: Any) -> int:
        backend = FakeBackend(ANSWERS if answers is None else answers, **fake)
        monkeypatch.setattr(_runtime, "_fake", lambda: backend)
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
        return main(["chat", "--model", "fake", *options])

    return run


def test_answers_go_on_from_what_was_said(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    prompts: list[str] = []

    def answer(prompt: str, params: Any) -> str:
        prompts.append(prompt)
        return "Ash." if len(prompts) == 1 else "Elm."

    assert talk("Name one.", "", "Another?", options=("--system", "Brief."), answers=answer) == 0
    assert capsys.readouterr().out == "Ash.\nElm.\n"
    assert prompts[1] == (
        "<|im_start|>system\nBrief.<|im_end|>\n<|im_start|>user\nName one.<|im_end|>\n"
        "<|im_start|>assistant\nAsh.<|im_end|>\n<|im_start|>user\nAnother?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_quit_ends_it_and_unknown_commands_show_what_there_is(
    talk: Talk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk("/quot", "/help", "/quit", "Name one.") == 0
    out = capsys.readouterr().out
    assert out.startswith("there is no /quot\n")
    assert out.count("/save FILE") == 2
    assert "Ash" not in out


def test_tree_is_shown_and_left_for_later(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    assert talk("Name one.", "/tree", "Another?") == 0
    out = capsys.readouterr().out
    assert "radix tree: " in out
    assert "generated tokens" in out
    assert main(["tree", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["program"] == "chat"


def test_a_conversation_is_saved(
    talk: Talk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        talk("Name one.", "/save a.json", "/save a.txt", "/save a.html", "/save", "/save x/y") == 0
    )
    assert json.loads((tmp_path / "a.json").read_text()) == [
        {"role": "user", "content": "Name one."},
        {"role": "assistant", "content": "Ash."},
    ]
    assert (tmp_path / "a.txt").read_text() == "user: Name one.\n\nassistant: Ash.\n"
    assert "Ash." in (tmp_path / "a.html").read_text()
    err = capsys.readouterr().err
    assert "saved 2 messages in a.json" in err
    assert "/save needs a name" in err
    assert "x/y" in err


def test_json_has_an_answer_a_line(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    assert talk("Name one.", "Another?", options=("--json", "--max-tokens", "2")) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        {"role": "assistant", "content": "As", "finish_reason": "length"},
        {"role": "assistant", "content": "El", "finish_reason": "length"},
    ]


def test_an_answer_that_is_cut_is_told(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    assert talk("Name one.", options=("--max-tokens", "2")) == 0
    printed = capsys.readouterr()
    assert printed.out == "As\n"
    assert "cut at 2 tokens; --max-tokens N" in printed.err


def test_an_interrupt_stops_the_answer_and_keeps_its_text(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[str] = []

    def interrupted(text: str) -> str:
        pieces.append(text)
        if len(pieces) == 2:
            raise KeyboardInterrupt
        return text

    monkeypatch.setattr(chat, "printable", interrupted)
    answers = iter(["word " * 100_000, "Elm."])
    code = talk("Name one.", "Another?", "/save a.json", piece=5, delay=0.001,
                options=("--max-tokens", "1000000"), answers=lambda *_: next(answers))  # fmt: skip
    assert code == 0
    first, second = [
        message["content"]
        for message in json.loads((tmp_path / "a.json").read_text())
        if message["role"] == "assistant"
    ]
    assert first.startswith("word word")
    assert len(first) < 500_000
    assert second == "Elm."


def test_a_failed_answer_is_an_error(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    assert talk("What?") == 1
    assert "ScriptError" in capsys.readouterr().err


def test_escapes_of_an_answer_do_not_reach_the_terminal(
    talk: Talk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk("Name one.", answers=["\x1b[2J"]) == 0
    assert capsys.readouterr().out == "\\x1b[2J\n"


# -- lint ------------------------------------------------------------------------------------

DOUBTFUL = """\
from radixlang import function, gen


@function
def unnamed(s):
    s += "Say: " + gen()


@function
def twice(s, name):
    s += name + gen("a") + gen("a")


@function
def looks(s):
    s += gen("a")
    if s["a"] == "x":
        s += gen("b")
"""


@pytest.fixture
def doubtful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.py").write_text(DOUBTFUL)
    (tmp_path / "fine.radix").write_text("{{ gen answer }}")
    (tmp_path / "t.radix").write_text("a\n{{ gen }}\n")
    return tmp_path


def test_lints_have_file_line_and_code(doubtful: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "p.py"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("p.py:6: RL003 this gen has no name")
    assert out[1].startswith("p.py:11: RL006 'a' is bound a second time")
    assert out[2].startswith("p.py:17: here the program looks at a generated value")
    assert out[3] == "2 doubtful places in 3 programs"
    assert main(["lint", "p.py:twice", "--set", "name=x"]) == 1
    assert "1 doubtful place in 1 program" in capsys.readouterr().out


def test_lints_of_templates_and_json(doubtful: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "fine.radix"]) == 0
    assert capsys.readouterr().out == "nothing doubtful in 1 program\n"
    assert main(["lint", "t.radix", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (only,) = found["lints"]
    assert (only["program"], only["file"], only["line"]) == ("t", "t.radix", 2)
    assert only["code"] == "RL003"
    assert found["ends_at"] == []


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        (["lint", "none.py"], 2, "none.py: no such file"),
        (["lint", "p.py:none"], 2, "no program 'none'"),
        (["lint", "broken.radix"], 1, "broken.radix:1:1: there is no tag 'whle'"),
        (["chat", "--system", "@none.txt", "--model", "fake"], 2, "cannot read none.txt"),
        (["chat", "--model-path", "x"], 2, "it is called --model here"),
        (["chat", "--chat-template", "none.jinja", "--model", "x"], 2, "none.jinja"),
    ],
)
def test_what_is_wrong_is_said(
    doubtful: Path, capsys: pytest.CaptureFixture[str], command: list[str], code: int, told: str
) -> None:
    (doubtful / "broken.radix").write_text("{% whle %}")
    assert main(command) == code
    assert told in capsys.readouterr().err
