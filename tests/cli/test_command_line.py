"""The command line: what it prints, its exit codes, and what it says of wrong usage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from radixlang.cli.main import main

TEMPLATE = """\
{% user %}Name a {{ thing }}.{% end %}
{% assistant %}{{ gen answer, max_tokens=8, temperature=0 }}{% end %}
"""
PROGRAM = """\
import radixlang
from radixlang import gen

@radixlang.function
def ask(s, thing):
    s += f"A {thing}: " + gen("answer", max_tokens=8)

@radixlang.function
def fail(s, thing):
    s += gen("answer")
    raise ValueError(f"no {thing}")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ask.radix").write_text(TEMPLATE)
    (tmp_path / "programs.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RADIXLANG_HOME", str(tmp_path / "home"))
    return tmp_path


def test_run_prints_the_variables_of_a_template(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "ask.radix", "--set", "thing=fruit", "--model", "fake"]) == 0
    name, answer = capsys.readouterr().out.split(maxsplit=1)
    assert name == "answer"
    assert answer.strip()


def test_run_picks_a_function_of_a_file_and_prints_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "programs.py:ask", "--set", "thing=tree", "--model", "fake", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["program"] == "ask"
    assert found["text"].startswith("A tree: ")
    assert found["values"]["answer"] in found["text"]
    assert found["savings"]["num_generated_tokens"] > 0


def test_rows_are_saved_as_they_come_and_not_run_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"thing": thing} for thing in ("fruit", "river", "stone")]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["run", "ask.radix", "--rows", "rows.jsonl", "--out", "out.jsonl",
               "--model", "fake", "--json"]  # fmt: skip
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["rows"], first["failed"], first["resumed"]) == (3, 0, 0)
    written = (folder / "out.jsonl").read_text()
    assert len(written.splitlines()) == 3
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == 3
    assert (folder / "out.jsonl").read_text() == written


def test_a_failing_row_gives_code_1_and_keeps_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rows.jsonl").write_text('{"thing": "fruit"}\n{"thing": "river"}\n')
    command = ["run", "programs.py:fail", "--rows", "rows.jsonl", "--model", "fake"]
    assert main(command) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["error"] is not None for line in lines] == [True, True]
    assert "no fruit" in str(lines[0]["error"])


def test_explain_needs_no_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "ask.radix", "--set", "thing=fruit"]) == 0
    assert "1 generations" in capsys.readouterr().out


def test_prefixes_can_be_listed_before_there_are_any(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prefix", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) in ([], {"prefixes": []})


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["run", "nothing.py"], 2, "nothing.py: no such file"),
        (["run", "programs.py", "--model", "fake"], 2, "fail"),
        (["run", "ask.radix", "--set", "thng=x", "--model", "fake"], 2, "thing"),
        (["run", "ask.radix", "--model", "fake"], 2, "thing"),
        (["run", "ask.radix", "--set", "thing=x", "--out", "o", "--model", "fake"], 2, "--rows"),
        (["run", "programs.py:fail", "--set", "thing=x", "--model", "fake"], 1, "no x"),
        (["run", "ask.radix", "--set", "thing=x", "--model", "./none.gguf"], 3, "none.gguf"),
        (["prefix", "drop", "../x"], 2, "../x"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_said_with_its_exit_code(
    folder: Path, capsys: pytest.CaptureFixture[str], command: list[str], code: int, said: str
) -> None:
    assert main(command) == code
    printed = capsys.readouterr()
    assert said in printed.err
    assert "Traceback" not in printed.err


def test_an_error_is_json_where_json_was_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "nothing.py", "--json"]) == 2
    assert "nothing.py" in json.dumps(json.loads(capsys.readouterr().out))


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from radixlang.cli.main import build_parser; build_parser().format_help(); "
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "transformers", "numpy", "lark"} & set(loaded)
