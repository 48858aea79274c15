"""Workers on a local Ray: the answers of one runtime, whoever runs what and whoever dies."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import radixlang
from radixlang import JsonSchema, SamplingParams, gen
from radixlang.errors import (
    InvalidConstraintError,
    ModelNotFoundError,
    NotPicklableError,
    ParameterError,
    WorkersLostError,
)
from radixlang.workers import Workers

WORDS = ["theatre", "north", "morning", "moon", "capital", "range", "question", "prefix", "branch",
         "number"]  # fmt: skip
ROWS = [{"n": i, "word": word} for i, word in enumerate(WORDS * 4)]
TIMEOUT = 60


@radixlang.function
def story(s: Any, n: int, word: str) -> None:
    s += "A long shared prefix that every branch reads, and a short question at the end of it. "
    s += f"Numbers: 0 1 2 3. Paris is the capital of France. {n}: the {word} of the town "
    s += gen("first", max_tokens=8, temperature=1.0, ignore_eos=True)
    branches = s.fork(2)
    branches[0] += "then " + gen("left", max_tokens=6, stop="e", ignore_eos=True)
    branches[1] += gen("right", max_tokens=6, regex="[a-z ]{3,9}", finish="close")
    s += branches[0]["left"] + branches[1]["right"]
    s += radixlang.select("pick", ["north", "town", "moon"])


@radixlang.function
def long_story(s: Any, n: int, word: str) -> None:
    s += f"Numbers: 0 1 2 3. {n}: the {word} "
    s += gen("text", max_tokens=150, temperature=1.0, ignore_eos=True)


@pytest.fixture
def workers(two_workers: Callable[[], Any]) -> Iterator[Any]:
    made = two_workers()
    made.flush_cache()
    made.reset_stats()
    yield made
    assert made.audit() == []


def texts(results: list[Any]) -> list[str]:
    """The texts of rows that have all succeeded."""
    assert [each.error for each in results if each.error is not None] == []
    return [each.text for each in results]


def test_rows_say_on_two_workers_what_they_say_on_one_runtime(
    workers: Any, make_runtime: Callable[..., Any]
) -> None:
    one = make_runtime()
    expected = texts(story.run_batch(ROWS, runtime=one, seed=5))
    found = story.run_batch(ROWS, runtime=workers, seed=5)
    assert texts(found) == expected
    assert [each.row for each in found] == ROWS
    both = [each.num_generated_tokens for each in workers.worker_stats()]
    assert min(both) > 0
    assert sum(both) == one.stats().num_generated_tokens


def test_two_workers_find_in_their_caches_what_one_tree_finds(
    workers: Any, make_runtime: Callable[..., Any]
) -> None:
    """Half of the pages each; every header is long beside what it costs to have it twice."""
    header = " ".join(f"{i} {word}" for i, word in enumerate(WORDS * 10))
    rows = [{"n": i % 4, "word": f"{header} {i}"} for i in range(160)]

    @radixlang.function
    def ask(s: Any, n: int, word: str) -> None:
        s += f"{n} {word}" + gen("answer", max_tokens=2, ignore_eos=True)

    one = make_runtime(num_pages=8192)
    expected = texts(ask.run_batch(rows, runtime=one, seed=1))
    assert texts(ask.run_batch(rows, runtime=workers, seed=1)) == expected
    assert workers.stats().num_cached_tokens >= 0.99 * one.stats().num_cached_tokens


def test_a_worker_that_dies_loses_no_row_and_changes_no_text(
    two_workers: Callable[[], Any], make_runtime: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    expected = texts(long_story.run_batch(ROWS, runtime=make_runtime(), seed=2))
    workers = two_workers()
    found: list[Any] = []
    running = threading.Thread(
        target=lambda: found.extend(long_story.run_batch(ROWS, runtime=workers, seed=2))
    )
    with caplog.at_level(logging.WARNING, "radixlang.workers"):
        running.start()
        while not workers.worker_stats()[1].num_running:
            assert running.is_alive()
        os.kill(workers.facts[1].pid, signal.SIGKILL)
        running.join()
    assert texts(found) == expected
    assert workers.num_alive == 1
    assert workers.num_rerun >= 1
    assert "its requests run on the 1 that are left" in caplog.text

    os.kill(workers.facts[0].pid, signal.SIGKILL)
    (lost, _) = long_story.run_batch(ROWS[:2], runtime=workers, seed=2)
    assert isinstance(lost.error.__cause__, WorkersLostError)
    assert "all 2 workers have died" in str(lost.error)


def test_text_that_was_read_goes_on_where_it_was_when_its_worker_dies(
    two_workers: Callable[[], Any],
) -> None:
    workers = two_workers()
    params = SamplingParams(max_tokens=300, seed=3, ignore_eos=True)
    branch = workers.new_branch()
    branch.extend("Numbers: 0 1 2 3.")
    expected = branch.generate(params).result(TIMEOUT).text
    again = workers.new_branch()
    again.extend("Numbers: 0 1 2 3.")
    generation = again.generate(params)
    heard = ""
    for delta in generation:
        if not heard:
            busy = [each.num_running for each in workers.worker_stats()]
            os.kill(workers.facts[busy.index(1)].pid, signal.SIGKILL)
        heard += delta.text
    assert heard == generation.result().text == expected
    assert workers.num_alive == 1
    again.extend(" and")
    assert len(again.generate(params).result(TIMEOUT).token_ids) == 300


def test_the_program_of_the_page_runs(workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "workers.md").read_text("utf-8")
    program = re.search(r"```python\n(import radixlang\n.*?)```", page, re.DOTALL)
    assert program is not None
    monkeypatch.setattr("radixlang.Workers", lambda model, n: nullcontext(workers))
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(program[1], space)
    assert [each.error for each in space["results"]] == [None, None, None]
    assert "Ghana" in space["results"][2].text


def test_generations_without_a_seed_differ(workers: Any) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, ignore_eos=True)
    root = workers.new_branch()
    root.extend("Numbers: 0 1")
    found = [child.generate(params) for child in root.fork(4)]
    assert len({each.result(TIMEOUT).token_ids for each in found}) == 4


def test_a_wrong_constraint_is_refused_before_anything_runs(workers: Any) -> None:
    with pytest.raises(InvalidConstraintError):
        workers.compile_constraint(radixlang.Regex("[a"))
    spec = JsonSchema('{"type": "boolean"}')
    assert workers.compile_constraint(spec) == spec


def test_what_cannot_be_sent_is_refused_by_name(workers: Any) -> None:
    lock = threading.Lock()

    def locked(context: Any) -> Any:
        with lock:
            return context.logits

    branch = workers.new_branch()
    branch.extend("Numbers")
    with pytest.raises(ParameterError, match="cannot be sent to a worker"):
        branch.generate(SamplingParams(max_tokens=2, logits=locked)).result(TIMEOUT)
    with pytest.raises(NotPicklableError, match="make them in the process"):
        workers.__reduce__()


def test_a_wrong_token_fails_its_reading_alone(workers: Any) -> None:
    branch = workers.new_branch()
    branch.extend("Numbers: 0")
    with pytest.raises(ParameterError, match="is not one token"):
        branch.next_token(["this is no token"]).result(TIMEOUT)
    assert len(branch.next_token(top=3).result(TIMEOUT)) == 3


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"n": 0}, ParameterError, "at least 1; got 0"),
        ({"model": "no/such-model"}, ModelNotFoundError, "no/such-model"),
        ({"num_pagse": 4}, ParameterError, "num_pages"),
        ({"num_cpus": 64, "start_timeout_s": 0.5}, ParameterError, "asks Ray for 64 CPUs"),
    ],
)
def test_workers_that_cannot_start_say_why(
    local_ray: None, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        Workers(**{"n": 1, "num_cpus": 0.5, "model": "no/such-model", **arguments})


def test_without_ray_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ParameterError, match=r"pip install 'radixlang\[ray\]'"):
        Workers("some/model")
