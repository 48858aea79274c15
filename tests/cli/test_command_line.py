"""The command line: what it prints, its exit codes, and what it says of wrong usage."""

from __future__ import annotations

import json
import signal
import stat
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

@radixlang.function
def typo(s):
    s += "Is it? " + gen("answer")
    return s["anser"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ask.radix").write_text(TEMPLATE)
    (tmp_path / "programs.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("import radixlang\nx = (\n")
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


def test_a_failed_run_leaves_its_page_and_its_tree(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "programs.py:fail", "--set", "thing=fruit", "--model", "fake"]
    assert main([*command, "--html", "view.html", "--tree"]) == 1
    page = (folder / "view.html").read_text(encoding="utf-8")
    assert "<b>ValueError</b> <span>no fruit</span>" in page
    told = capsys.readouterr()
    assert "│ ValueError: no fruit\n│ not reached: gen answer" in told.out
    assert main(["tree", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["program"] == "fail"


def test_a_live_page_ends_with_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "ask.radix", "--set", "thing=fruit", "--model", "fake", "--json"]
    assert main([*command, "--live", "view.html"]) == 0
    answer = json.loads(capsys.readouterr().out)["values"]["answer"]
    page = (folder / "view.html").read_text(encoding="utf-8")
    assert answer.strip() in page
    assert 'data-live=""' in page


def test_every_row_has_a_page_where_it_is_asked_for(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"thing": "fruit"}\n{"thing": "river"}\n')
    for program, code in (("programs.py:fail", 1), ("programs.py:ask", 0)):
        command = ["run", program, "--rows", "rows.jsonl", "--model", "fake"]
        assert main([*command, "--html", "view.html"]) == code
        assert sorted(path.name for path in folder.glob("*.html")) == ["view-0.html", "view-1.html"]
        second = (folder / "view-1.html").read_text(encoding="utf-8")
        assert "river" in second
        assert ("<b>ValueError</b>" in second) is bool(code)


def test_nothing_printed_drives_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--text"], ["--tree"]):
        argument = "thing=a\x1b]0;owned\x07\x9b31m"
        assert main(["run", "programs.py:ask", "--set", argument, "--model", "fake", *more]) == 0
        assert main(["run", "programs.py:fail", "--set", argument, "--model", "fake", *more]) == 1
        told = capsys.readouterr()
        assert not any(control in told.out + told.err for control in "\x1b\x07\x9b")
        assert "\\x1b]0;owned\\x07\\x9b31m" in told.err


def test_what_the_last_run_left_is_its_owners_alone(folder: Path) -> None:
    kept = folder / "home" / "last_run.json"
    kept.parent.mkdir()
    kept.write_text("of an earlier version", encoding="utf-8")
    kept.chmod(0o644)
    assert main(["run", "ask.radix", "--set", "thing=fruit", "--model", "fake"]) == 0
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


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
        (["run", "ask.radix", "--rows", "r", "--tree", "--model", "fake"], 2, "--html FILE writes"),
        (["run", "ask.radix", "--rows", "r", "--live", "x", "--model", "fake"], 2, "single run"),
        (["run", "ask.radix", "--html", "none/x.html", "--model", "fake"], 2, "no folder none"),
        (["run", "ask.radix", "--set", "thing=x", "--model", "./none.gguf"], 3, "none.gguf"),
        (["prefix", "drop", "../x"], 2, "../x"),
        (["run", "ask.radix", "--sed", "1"], 2, "did you mean --seed?"),
        (["run", "ask.radix", "--seed", "one"], 2, "radixlang run --help"),
        (["run", "ask.radix", "more.radix"], 2, "takes no 'more.radix'"),
        (["rn"], 2, "choose from"),
        (["explain", "programs.py:typo"], 1, "programs.py:16: no variable 'anser'"),
        (["prefix", "build", "x", "--program", "programs.py:typo"], 1, "programs.py:16"),
        (["run", "broken.py"], 1, "broken.py:2: SyntaxError"),
        (["prefix", "drop"], 2, "NAME"),
        (["tree"], 2, "no run has left a tree"),
        (["tree", "--seed", "0"], 2, "--seed goes with FILE"),
        (["tree", "--no-cuda-graphs"], 2, "--no-cuda-graphs goes with FILE"),
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
    for words in (["nothing.py"], ["ask.radix", "--nothing"]):
        assert main(["run", *words, "--json"]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["type"] == "ParameterError"
        assert words[-1] in error["message"]


def test_tree_shows_what_the_last_run_left(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "ask.radix", "--set", "thing=fruit", "--model", "fake", "--seed", "1"]) == 0
    capsys.readouterr()
    assert main(["tree"]) == 0
    title, _, *drawing = capsys.readouterr().out.splitlines()
    assert title.startswith("ask on fake")
    assert "Name a fruit." in "\n".join(drawing)
    ran = ["tree", "ask.radix", "--set", "thing=fruit", "--model", "fake", "--seed", "1"]
    assert main(ran) == 0
    assert capsys.readouterr().out.splitlines() == drawing


def test_tree_as_json_is_the_same_of_a_file_and_of_the_last_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tree", "programs.py:ask", "--set", "thing=owl", "--model", "fake", "--json"]) == 0
    ran = json.loads(capsys.readouterr().out)
    assert main(["tree", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ran
    assert ran["program"] == "ask"
    assert ran["savings"]["num_prompt_tokens"] > 0
    assert "A owl:" in ran["tree"]


def test_a_home_that_cannot_be_written_to_fails_no_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RADIXLANG_HOME", str(folder / "ask.radix"))  # a file, not a folder
    assert main(["run", "ask.radix", "--set", "thing=fruit", "--model", "fake"]) == 0
    assert "answer" in capsys.readouterr().out


def test_a_damaged_record_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "home").mkdir()
    (folder / "home" / "last_run.json").write_text("{")
    assert main(["tree"]) == 2
    assert "the next run replaces it" in capsys.readouterr().err


def heed_ctrl_c() -> None:
    """What a shell starts in the background ignores it, and so does all that this starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_it_with_a_word_and_130(folder: Path) -> None:
    (folder / "waits.py").write_text(
        "import sys, time, radixlang\n@radixlang.function\ndef wait(s):\n"
        "    s += 'x'\n    print('started', file=sys.stderr, flush=True)\n    time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "radixlang", "run", "waits.py", "--model", "fake"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
    ) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "started\n"
        running.send_signal(signal.SIGINT)
        assert running.stderr.read() == "radixlang: interrupted\n"
        assert running.wait(timeout=30) == 130


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "radixlang doctor" in capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from radixlang.cli.main import build_parser; build_parser().format_help(); "
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "transformers", "numpy", "lark"} & set(loaded)
