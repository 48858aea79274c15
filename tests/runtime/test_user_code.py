"""Users' functions never run on the engine's thread, and what they raise never ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from radixlang import ProgramError, State, function, gen, select
from radixlang.errors import RuntimeClosedError
from radixlang.runtime.metrics.events import EngineEvent
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60
MakeRuntime = Callable[..., Any]
FOUR = SamplingParams(max_tokens=4, min_tokens=4, temperature=0.0, ignore_eos=True)


def generate(runtime: Any) -> Any:
    branch = runtime.new_branch()
    branch.extend("text")
    generation = branch.generate(FOUR)
    generation.result(TIMEOUT)
    branch.release()
    return generation


def ask_to_exit(*_: Any) -> None:
    raise SystemExit(3)


# ---- errors that no `except Exception` takes


@pytest.mark.parametrize("place", ["listener", "reader", "callback", "call"])
def test_asking_to_exit_ends_no_engine(
    make_runtime: MakeRuntime, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("text")
    if place == "listener":
        runtime.on_event(ask_to_exit)
    if place == "call":
        with pytest.raises(SystemExit):
            runtime.core.call(ask_to_exit)
    generation = branch.generate(FOUR)
    told = threading.Event()
    if place == "reader":
        generation.subscribe(ask_to_exit)
    if place == "callback":
        generation.add_done_callback(ask_to_exit)
    generation.when_done(told.set)
    assert len(generation.result(TIMEOUT).token_ids) == 4
    assert told.wait(TIMEOUT)
    branch.release()
    assert generate(runtime).done()


def test_statistics_that_fail_end_no_engine(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime()
    with monkeypatch.context() as broken:
        broken.setattr(runtime.core.memory, "held_bytes", ask_to_exit)
        generate(runtime)
    assert generate(runtime).done()
    runtime.core.call(lambda: None)
    assert runtime.stats().num_requests == 2


def test_an_engine_that_ends_says_why_to_all(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime()
    branches = [runtime.new_branch() for _ in range(2)]
    for branch in branches:
        branch.extend("text")
    long = SamplingParams(max_tokens=1900, min_tokens=1900, ignore_eos=True)
    running = branches[0].generate(long)
    queued = branches[0].generate(long)
    next(iter(running))
    monkeypatch.setattr(runtime.core.scheduler, "__class__", _Broken)
    for pending in (running, queued):
        error = pending.exception(TIMEOUT)
        assert isinstance(error, RuntimeClosedError)
        assert "broken on purpose" in str(error)
    late = branches[1].generate(long).exception(TIMEOUT)
    assert isinstance(late, RuntimeClosedError)
    with pytest.raises(RuntimeClosedError, match="broken on purpose"):
        runtime.new_branch()


def _broken_class() -> type:
    from radixlang.runtime.scheduling.scheduler import Scheduler

    class Broken(Scheduler):
        @property
        def is_idle(self) -> bool:
            raise SystemExit("broken on purpose")

    return Broken


_Broken = _broken_class()


# ---- on whose thread


def engine_thread(runtime: Any) -> int:
    found: int = runtime.core.call(threading.get_ident)
    return found


def test_callbacks_and_listeners_have_threads_of_their_own(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    seen: list[int] = []
    told = threading.Event()

    def note(event: EngineEvent) -> None:
        seen.append(threading.get_ident())
        generate(runtime) if len(seen) == 1 else told.set()

    runtime.on_event(note)
    branch = runtime.new_branch()
    branch.extend("text")
    called = threading.Event()
    generation = branch.generate(FOUR)
    generation.add_done_callback(lambda _: (seen.append(threading.get_ident()), called.set()))
    assert called.wait(TIMEOUT)
    assert told.wait(TIMEOUT)
    assert engine_thread(runtime) not in seen
    branch.release()


class Checked(BaseModel):
    ok: bool

    @field_validator("ok")
    @classmethod
    def check(cls, value: bool) -> bool:
        hook()
        return value


@dataclass
class Built:
    ok: bool

    def __post_init__(self) -> None:
        hook()


class Shown:
    def __format__(self, spec: str) -> str:
        hook()
        return "shown"


def hook() -> None:
    """What user code does in a test; each test sets its own."""
    raise AssertionError("set by the test")


@function
def inner(s: State) -> None:
    s += "inner" + gen("x", max_tokens=2)


@function
def typed(s: State, kind: Any) -> None:
    s += "say " + gen("value", kind, max_tokens=60, finish="close")


@function
def shown(s: State, what: Any) -> None:
    s += f"say {what}" + gen("value", max_tokens=2)


@function
def scored(s: State, scorer: Any) -> None:
    s += "say " + select("value", ["a", "b"], scorer=scorer)


def _scorer(details: Any, *more: Any) -> list[float]:
    hook()
    return [1.0, 0.0]


CASES: dict[str, Callable[[Any], Any]] = {
    "validator": lambda runtime: typed(kind=Checked, runtime=runtime, temperature=0.0),
    "post_init": lambda runtime: typed(kind=Built, runtime=runtime, temperature=0.0),
    "format": lambda runtime: shown.compile()(what=Shown(), runtime=runtime),
    "scorer": lambda runtime: scored(scorer=_scorer, runtime=runtime),
}


@pytest.mark.parametrize("case", CASES)
def test_user_code_may_run_a_program(
    case: str, make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime()
    here = engine_thread(runtime)
    threads: list[int] = []

    def mine() -> None:
        threads.append(threading.get_ident())
        inner(runtime=runtime)["x"]

    monkeypatch.setitem(globals(), "hook", mine)
    state = CASES[case](runtime)
    assert state["value"] is not None
    assert threads
    assert here not in threads


@pytest.mark.parametrize("case", CASES)
def test_slow_user_code_stalls_its_own_program_alone(
    case: str, make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime()
    reached, go_on = threading.Event(), threading.Event()

    def mine() -> None:
        reached.set()
        assert go_on.wait(TIMEOUT)

    monkeypatch.setitem(globals(), "hook", mine)
    done = threading.Event()
    threading.Thread(target=lambda: (CASES[case](runtime)["value"], done.set())).start()
    assert reached.wait(TIMEOUT)
    inner(runtime=runtime)["x"]
    assert not done.is_set()
    go_on.set()
    assert done.wait(TIMEOUT)


def test_a_validator_that_never_ends_bows_to_timeout_and_close(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime()
    go_on = threading.Event()
    monkeypatch.setitem(globals(), "hook", lambda: go_on.wait(TIMEOUT))
    with pytest.raises(ProgramError, match="timeout"):
        typed(kind=Checked, runtime=runtime, temperature=0.0, timeout=1.0)["value"]
    runtime.close()
    go_on.set()


# ---- the end


def test_calls_after_the_end_come_one_at_a_time(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    runtime.close()
    inside, overlaps = [0], []

    def call() -> None:
        inside[0] += 1
        overlaps.append(inside[0])
        threading.Event().wait(0.002)
        inside[0] -= 1

    threads = [
        threading.Thread(target=lambda: [runtime.core.call(call) for _ in range(5)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert overlaps == [1] * 20


def test_calls_that_meet_the_end_are_still_answered(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    asked = threading.Event()
    runtime.core.inbox.put_stop()
    answers: list[Any] = []

    def ask() -> None:
        asked.set()
        answers.append(runtime.audit())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    runtime.close()
    for thread in threads:
        thread.join(TIMEOUT)
    assert answers == [[]] * 8


def test_a_failed_branch_keeps_nothing_though_nobody_releases_it(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend(list(range(3, 43)))
    branch.generate(FOUR).result(TIMEOUT)
    branch.extend("x" * 100_000)
    assert branch.generate(FOUR).exception(TIMEOUT) is not None
    runtime.core.call(lambda: None)
    stats = runtime.stats()
    assert (stats.num_branches, stats.num_protected_tokens) == (0, 0)
    assert len(branch._state.fixed) == 0
    assert branch._state.run == ()
    assert runtime.flush_cache() == stats.num_tree_tokens
    assert branch.tokens().exception(TIMEOUT) is not None
    branch.release()
