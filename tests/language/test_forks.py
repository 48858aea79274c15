"""After a fork: the child is told at once, or has what it needs; spawn works."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

COMMON = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork with threads
import radixlang
from radixlang import function, gen, select
from radixlang.errors import ForkedError, ProgramError
from radixlang.testing import FakeBackend

@function
def ask(s, q):
    s += q + gen("a")
    s["length"] = len(s["a"])

def answer(prompt, params):
    return prompt[::-1]

def in_child(check):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush(); sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0

def told(call):
    try:
        call()
    except ForkedError as error:
        text = str(error)
    except ProgramError as error:
        assert isinstance(error.__cause__, ForkedError), error
        text = str(error)
    else:
        raise AssertionError("it was not told")
    assert f"was made in process {os.getppid()}, and this is process {os.getpid()}" in text, text
    assert "spawn" in text
"""


def run_script(tmp_path: Path, code: str) -> str:
    """A script of its own, as a fork of the tests' own process would copy all they have."""
    script = tmp_path / "script.py"
    script.write_text(COMMON + textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_backend_of_the_parent_tells_the_child_at_once(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
        backend = FakeBackend(answer)
        branch = backend.new_branch()
        ask("one", runtime=backend)
        radixlang.set_default_runtime(backend)

        def check():
            told(lambda: ask("two", runtime=backend))
            told(lambda: ask("two"))
            told(lambda: branch.tokens().result())
            told(lambda: branch.generate(radixlang.SamplingParams()).result())
            (result,) = ask.run_batch([{"q": "three"}], runtime=backend)
            assert isinstance(result.error.__cause__, ForkedError), result.error

        in_child(check)
        assert ask("two", runtime=backend)["a"] == "owt"
    """,
    )


def test_a_run_and_a_request_of_the_parent_tell_the_child_at_once(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
        import asyncio
        backend = FakeBackend(lambda p, q: "word " * 500, delay=0.02)
        finished = ask("one", runtime=FakeBackend(answer))
        stream = ask.stream("two", runtime=backend)
        state = stream.state
        generation = backend.new_branch().generate(radixlang.SamplingParams(max_tokens=9999))

        def check():
            assert finished["a"] == "eno"
            told(lambda: state["a"])
            told(lambda: asyncio.run(state.aget("a")))
            told(lambda: list(stream.text()))
            told(generation.result)
            told(lambda: list(generation))
            state.cancel()

        in_child(check)
        stream.cancel()
        generation.cancel()
    """,
    )


def test_a_new_backend_works_in_the_child_with_scorers_and_timeouts(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
        @function
        def choose(s):
            s += "Q" + select("x", ["a", "b"], scorer=lambda found: [0.0, 1.0])

        choose(runtime=FakeBackend(answer), timeout=60)  # the shared threads are there now

        def check():
            backend = FakeBackend(lambda p, q: "word " * 500, delay=0.02)
            assert choose(runtime=FakeBackend(answer))["x"] == "b"
            try:
                ask("one", runtime=backend, timeout=0.05)
            except ProgramError as error:
                assert type(error.__cause__).__name__ == "DeadlineError"
            else:
                raise AssertionError("the timeout was not kept")
            rows = ask.run_batch([{"q": "ab"}, {"q": "cd"}], runtime=FakeBackend(answer))
            assert [row["a"] for row in rows] == ["ba", "dc"]

        in_child(check)
    """,
    )


def test_programs_run_in_processes_that_are_spawned(tmp_path: Path) -> None:
    printed = run_script(
        tmp_path,
        """
        import multiprocessing

        def work(job):
            program, q = job
            return program.run_batch([{"q": q}], runtime=FakeBackend(answer))[0]

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                for result in pool.map(work, [(ask, "ab"), (ask.bind(q="cd"), "ef")]):
                    print(result["a"], result["length"])
    """,
    )
    assert printed.split() == ["ba", "2", "fe", "2"]
