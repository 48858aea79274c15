"""Bars of loading and of prefixes: shown on a terminal, nothing at all elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from radixlang import progress
from radixlang.runtime.models.assemble import in_threads
from radixlang.runtime.models.transformers_model import bars_at_a_terminal_only

MakeRuntime = Callable[..., Any]
Shown = Callable[[Callable[[], Any]], str]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0)


def load() -> tuple[str, list[int]]:
    return in_threads(lambda: "embeddings", lambda index: index * index, 5)


def test_layers_being_loaded_are_counted_on_a_terminal(
    at_once: None, shown_on_terminal: Shown
) -> None:
    shown = shown_on_terminal(load)
    assert "loading layers" in shown
    assert "/5" in shown


def test_nothing_is_shown_elsewhere(
    at_once: None, make_runtime: MakeRuntime, capfd: pytest.CaptureFixture[str]
) -> None:
    assert load() == ("embeddings", [0, 1, 4, 9, 16])
    assert make_runtime().prebuild(list(range(3, 40))) == 37
    assert capfd.readouterr() == ("", "")


def test_nothing_is_shown_of_what_takes_no_time(shown_on_terminal: Shown) -> None:
    assert shown_on_terminal(load) == ""


def test_a_prefix_being_computed_is_counted(
    at_once: None, make_runtime: MakeRuntime, shown_on_terminal: Shown
) -> None:
    runtime = make_runtime(max_batch_tokens=8)
    shown = shown_on_terminal(lambda: runtime.prebuild(list(range(3, 103))))
    assert "computing the prefix" in shown
    assert "/100" in shown


def test_a_bar_follows_its_counter_from_where_it_is(
    at_once: None, shown_on_terminal: Shown
) -> None:
    future: Future[str] = Future()
    counter = [10, 14, 14, 14, 17]

    def done() -> int:
        if len(counter) == 1:
            future.set_result("there")
        return counter.pop(0)

    shown = shown_on_terminal(lambda: progress.awaited(future, "working", 7, "token", done))
    assert future.result() == "there"
    assert "0/7" in shown
    assert "4/7" in shown


def test_a_step_that_counts_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, shown_on_terminal: Shown
) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0)
    told = threading.Event()
    plain = progress._kind_of_bar

    def noted() -> Any:
        told.set()
        return plain()

    monkeypatch.setattr(progress, "_kind_of_bar", noted)

    def work() -> None:
        with progress.doing("importing torch"):
            assert told.wait(60)

    assert "importing torch … 00:0" in shown_on_terminal(work)


def test_a_step_is_not_told_elsewhere_nor_where_it_takes_no_time(
    at_once: None, monkeypatch: pytest.MonkeyPatch, shown_on_terminal: Shown,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def work() -> None:
        with progress.doing("importing torch"):
            pass

    work()
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(progress, "DELAY_S", 60)
    assert shown_on_terminal(work) == ""


def test_an_error_in_a_step_is_raised(at_once: None, shown_on_terminal: Shown) -> None:
    def work() -> None:
        with pytest.raises(KeyError, match="mine"), progress.doing("importing torch"):
            raise KeyError("mine")

    shown_on_terminal(work)


def test_bars_of_transformers_are_silenced_and_given_back() -> None:
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    with bars_at_a_terminal_only():
        assert not logging.is_progress_bar_enabled()
    assert logging.is_progress_bar_enabled() == before
