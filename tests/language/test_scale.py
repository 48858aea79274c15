"""Ten thousand live forks, and what importing the language costs."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

from radixlang import function, gen
from radixlang.state.state import State

Make = Callable[..., Any]
COUNT = 10_000


def test_ten_thousand_live_forks_are_small_and_hold_no_thread(fake: Make) -> None:
    measured: dict[str, int] = {}
    backend = fake()

    @function
    def program(s: State) -> None:
        s += "root"
        s.text()
        gc.collect()
        threads = threading.active_count()
        tracemalloc.start()
        group = s.fork(COUNT)
        for index, branch in enumerate(group):
            branch += f" branch {index}"
        group[COUNT - 1].text()
        backend.drain()
        gc.collect()
        measured["bytes"] = tracemalloc.get_traced_memory()[0] // COUNT
        tracemalloc.stop()
        measured["threads"] = threading.active_count() - threads
        measured["live"] = backend.num_live_branches

    program(runtime=backend)
    assert measured["live"] == COUNT + 1
    assert measured["threads"] <= 1
    assert measured["bytes"] < 2000


def test_ten_thousand_forks_generate(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        group = s.fork(COUNT)
        group += lambda i: f"{i}" + gen("x")
        s.join(group, "x")

    state = program(runtime=fake(lambda p, q: p))
    assert list(state["x"]) == [str(index) for index in range(COUNT)]


def test_a_chain_of_a_thousand_forks(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        branch = s
        for index in range(1000):
            branch = branch.copy()
            branch += f"{index % 10}"
        s["text"] = branch.text()

    assert len(program(runtime=fake())["text"]) == 1000


def test_everything_public_is_there() -> None:
    import radixlang

    for name in radixlang.__all__:
        if name != "Runtime":  # its module is the engine's
            assert getattr(radixlang, name) is not None
    assert set(radixlang.__all__) <= set(dir(radixlang))


def test_programs_on_the_fake_load_no_engine() -> None:
    code = (
        "import sys\n"
        "from radixlang import function, gen\n"
        "from radixlang.testing import FakeBackend\n"
        "program = function(lambda s: s.append('a' + gen('x')))\n"
        "assert program.run(runtime=FakeBackend(['b'])).text() == 'ab'\n"
        "assert not {'torch', 'numpy', 'lark', 'tqdm', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
