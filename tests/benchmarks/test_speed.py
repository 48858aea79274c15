"""The speed table: peers start or say why not, are measured in turn, and end in a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import speed, workloads
from benchmarks.peer_list import Peer

ECHO = """
import sys
sys.path.insert(0, sys.argv[2])
from worker import serve
def run(calls, levels):
    if len(levels) == 3:
        raise ValueError("three levels")
    return [call.suffix[:call.num_tokens] for call in calls]
serve("echo", "1.5", run)
"""
PEER_FOLDER = str(speed.HERE / "peers")


class Recorder:
    """A worker that notes what it is asked."""

    def __init__(self, key: str, log: list[tuple[str, Any]]) -> None:
        self.key, self._log = key, log
        self.seconds: dict[str, list[float]] = {}
        self.processor_seconds: dict[str, list[float]] = {}
        self.errors: dict[str, str] = {}

    def run(self, workload: workloads.Workload) -> None:
        self._log.append((self.key, workload))
        self.seconds.setdefault(workload.name, []).append(1.0)
        self.processor_seconds.setdefault(workload.name, []).append(1.5)


def echo(tmp_path: Path, source: str = ECHO) -> Peer:
    script = tmp_path / "echo.py"
    script.write_text(source, encoding="utf-8")
    return Peer("echo", str(script), (PEER_FOLDER,))


def start(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> speed.Worker | str:
    monkeypatch.setitem(speed.EVERYONE, "fake", peer)
    return speed.start("fake", Path("model.gguf"))


def test_worker_answers_and_its_errors_stay_with_their_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start(echo(tmp_path), monkeypatch)
    assert isinstance(worker, speed.Worker)
    one = workloads.Workload("W1", "", (workloads.Call(None, (5, 6, 7), 2),))
    chain = tuple(workloads.Call(i - 1 if i else None, (1,), 1) for i in range(3))
    assert worker.run(one) == [[5, 6]]
    assert worker.run(workloads.Workload("W4", "", chain)) is None
    assert worker.run(one) == [[5, 6]]
    assert worker.errors == {"W4": "ValueError: three levels"}
    assert (worker.version, len(worker.seconds["W1"])) == ("1.5", 2)
    assert 0 < worker.peak_bytes["W1"] < 100e6  # its own, not its parent's
    worker.close()


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        (Peer("x", "", cannot_run="it needs a GPU"), "it needs a GPU"),
        (Peer("x", "none.py", environment="nowhere"), "--install"),
        (Peer("x", "none.py"), "its process ended with code 2"),
    ],
)
def test_peer_that_cannot_run_says_why(
    peer: Peer, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = start(peer, monkeypatch)
    assert isinstance(found, str)
    assert reason in found


def test_runs_are_taken_in_turn_each_of_new_text_and_w6_of_questions() -> None:
    log: list[tuple[str, Any]] = []
    workers: Any = [Recorder("ours", log), Recorder("theirs", log)]
    text, questions = list(range(100_000)), list(range(200_000, 300_000))
    speed.measure(workers, ["W1", "W6"], 2, text, questions)
    there, back = ["ours", "theirs"], ["theirs", "ours"]
    assert [key for key, _ in log] == [*back, *there * 2, *back * 2]
    assert [workload.name for _, workload in log[::2]] == ["W1", "W1", "W6", "W1", "W6"]
    firsts = [workload.calls[0].suffix[0] for _, workload in log]
    assert firsts[::2] == firsts[1::2]
    assert len(set(firsts)) == 5
    for _, workload in log:
        assert all((token >= 200_000) == (workload.name == "W6")
                   for call in workload.calls for token in call.suffix)  # fmt: skip
    assert workers[0].seconds == {"W1": [1.0, 1.0], "W6": [1.0, 1.0]}  # the first does not count
    assert workers[0].processor_seconds == {"W1": [1.5, 1.5], "W6": [1.5, 1.5]}


def test_w6_is_of_the_same_text_without_questions() -> None:
    log: list[tuple[str, Any]] = []
    workers: Any = [Recorder("ours", log)]
    speed.measure(workers, ["W6"], 1, list(range(50_000)))
    assert log[-1][1].calls[0].suffix[0] == 2 * speed.FRESH


def test_table_has_medians_ratios_failures_and_reasons() -> None:
    process: Any = None
    ours = speed.Worker(
        "ours", Peer("us", ""), process, "1",
        {"W1": [1.0, 9.0, 2.0], "W2": [4.0]}, {"W1": [2.0, 4.0, 3.0], "W2": [8.0]},
    )  # fmt: skip
    theirs = speed.Worker(
        "vllm", Peer("them", ""), process, "2", {"W1": [3.0]}, {"W1": [6.0]}, {"W1": 5_000_000}
    )
    theirs.errors["W2"] = "out of memory"
    found = speed.table([ours, theirs], ["W1", "W2"], {"sglang": "no GPU"}).splitlines()
    wall, processor = found[:4], found[5:9]
    assert wall[0] == "| median wall seconds (theirs ÷ ours) | W1 | W2 |"
    assert wall[2:] == ["| us 1 | 2.00 | 4.00 |", "| them 2 | 3.00 (1.50×) | failed |"]
    assert processor[0] == "| median processor seconds (theirs ÷ ours) | W1 | W2 |"
    assert processor[2:] == ["| us 1 | 3.00 | 8.00 |", "| them 2 | 6.00 (2.00×) | failed |"]
    assert "- them, W2: out of memory" in found
    assert "- them: peak resident memory 5 MB" in found
    assert "- SGLang: not run, no GPU" in found


def test_every_peer_has_its_script_or_a_reason() -> None:
    for peer in speed.EVERYONE.values():
        has_script = bool(peer.script) and (speed.HERE / "peers" / peer.script).is_file()
        assert has_script != bool(peer.cannot_run), peer.name


def test_questions_are_read_from_json_lines(tmp_path: Path) -> None:
    rows = [{"question": "How many?", "answer": "4\n#### 4"}, {"question": "Who?", "id": 7}]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    assert workloads.read_text(str(path)) == "How many?\n4\n#### 4\n\nWho?"
