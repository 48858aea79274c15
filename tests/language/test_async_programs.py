"""`async def` programs: what waits is awaited, and nothing stops the event loop they run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from radixlang import State, assistant, function, gen, select, user
from radixlang.errors import NeedsValueError, ParameterError
from radixlang.graph.nodes import Gen
from radixlang.program.strategies import majority

Make = Callable[..., Any]
Reader = Callable[[State], Any]

READERS: dict[str, Reader] = {
    "item": lambda s: s["x"],
    "get": lambda s: s.get("x", str),
    "values": lambda s: s.values(),
    "text": lambda s: s.text(),
    "messages": lambda s: s.messages(),
    "tokens": lambda s: s.tokens(),
    "completion": lambda s: s.completion("x"),
    "usage": lambda s: s.usage("x"),
    "stream": lambda s: list(s.stream("x")),
}


@function
async def reads(s: State, reader: Reader, first: bool) -> Any:
    s += user("q") + assistant(gen("x"))
    if first:
        await s.aget("x")
        await s.atext()
    return reader(s)


@pytest.mark.parametrize("name", READERS)
def test_a_reader_that_would_stop_the_loop_is_refused(name: str, fake: Make) -> None:
    with pytest.raises(NeedsValueError, match=r"await s\.a(get|text)|s\.astream"):
        reads(reader=READERS[name], first=False, runtime=fake(["at once"]))


@pytest.mark.parametrize("name", READERS)
def test_what_has_been_awaited_is_read_as_everywhere(name: str, fake: Make) -> None:
    assert reads(reader=READERS[name], first=True, runtime=fake(["answer"])).result


def test_the_refusal_names_the_variable_and_what_to_write(fake: Make) -> None:
    with pytest.raises(NeedsValueError, match=r"^'x' .*write await s\.aget\('x'\)"):
        reads(reader=READERS["item"], first=False, runtime=fake(["a"]))


@pytest.mark.parametrize("way", ["run_batch", "stream"])
def test_every_way_to_run_refuses_alike(way: str, fake: Make) -> None:
    row = {"reader": READERS["item"], "first": False}
    if way == "run_batch":
        (result,) = reads.run_batch([row], runtime=fake(["a"]))
        assert result.error is not None
        assert isinstance(result.error.__cause__, NeedsValueError)
    else:
        with pytest.raises(Exception, match=r"await s\.aget"):
            list(reads.stream(**row, runtime=fake(["a"])))


def test_groups_choices_and_errors(fake: Make) -> None:
    @function
    async def program(s: State) -> Any:
        s += select("word", ["yes", "no"])
        group = s.fork(2, on_error="collect")
        group += gen("x")
        for reader in (lambda: s.choice("word"), lambda: group["x"], lambda: group.errors):
            with pytest.raises(NeedsValueError, match="await"):
                reader()
        joined = s.join(group, "x")
        with pytest.raises(NeedsValueError, match=r"await s\.aget\('x'\)"):
            list(joined)
        return await s.aget("x"), list(joined), group.errors, s.choice("word").text

    assert program(runtime=fake(["no", "a", "a"])).result == (["a", "a"], ["a", "a"], {}, "no")


def test_plain_code_that_reads_goes_to_a_thread(fake: Make) -> None:
    @function
    async def program(s: State) -> Any:
        s += "q: "
        with pytest.raises(NeedsValueError, match=r"asyncio\.to_thread"):
            majority(s, 3, gen("x"), "x")
        return await asyncio.to_thread(majority, s, 3, gen("x"), "x")

    assert program(runtime=fake(lambda prompt, params: "a")).result == "a"


def test_a_plain_program_may_wait_in_a_notebook(fake: Make) -> None:
    """Cells of a notebook run on an event loop; a plain program there is a blocking call."""

    @function
    def program(s: State) -> str:
        s += "a" + gen("x")
        return s["x"] + s.text()

    async def cell() -> Any:
        return program(runtime=fake(["b"])).result

    assert asyncio.run(cell()) == "bab"


@function
async def inner(s: State, word: str) -> Any:
    s += word + gen("y")
    return await s.aget("y")


def test_async_programs_nest(fake: Make) -> None:
    @function
    async def outer(s: State) -> Any:
        s += "o"
        vanished = await s.acall(inner, "v", scope="vanish")
        child = await s.acall(inner, word="i")
        s += "!"
        return vanished.result, child.result, await s.atext()

    backend = fake(lambda prompt, params: f"<{prompt}>")
    assert outer(runtime=backend).result == ("<ov>", "<oi>", "oi<oi>!")
    backend.drain()
    assert backend.num_live_branches == 0
    assert [node.name for _, node in outer.trace().walk() if isinstance(node, Gen)] == ["y", "y"]


def test_async_program_nests_in_a_plain_one(fake: Make) -> None:
    @function
    def outer(s: State) -> Any:
        s += "o"
        return s.call(inner, "i").result

    assert outer(runtime=fake(["a"])).result == "a"


def test_a_plain_call_says_how_to_await_it(fake: Make) -> None:
    @function
    async def outer(s: State) -> None:
        s.call(inner, "i")

    with pytest.raises(ParameterError, match=r"await s\.acall\(inner, …\)"):
        outer(runtime=fake(["a"]))
