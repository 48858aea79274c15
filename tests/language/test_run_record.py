"""What a run keeps of itself for those who look at it: times, failures, partial texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixlang import State, function, gen, select
from radixlang.errors import RequestError

Make = Callable[..., Any]


@function
def three_branches(s: State, on_error: str = "cancel") -> None:
    s += "Top: "
    group = s.fork(3, on_error=on_error)  # type: ignore[arg-type]
    group += lambda i: f"branch {i} " + gen("x")


def fails_in(part: str) -> Callable[[str, Any], Any]:
    return lambda prompt, _: RequestError("no") if part in prompt else "fine"


def test_times_of_generations_are_in_order(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("a") + select("b", ["x", "y"]) + gen("c")

    run = program(runtime=fake(lambda p, q: "x"))._run()
    cells = [piece for piece in run.streams[0].pieces if not isinstance(piece, str)]
    assert [cell.name for cell in cells] == ["a", "b", "c"]
    for cell in cells:
        assert run.loop.started_s <= cell.posted_s <= cell.ended_s <= run.loop.ended_s
    assert cells[0].ended_s <= cells[1].ended_s <= cells[2].ended_s


def test_a_failure_is_kept_where_it_began(fake: Make) -> None:
    state = three_branches.run(runtime=fake(fails_in("branch 1")), check=False)
    root, *branches = state._run().iter_streams()
    assert [stream.failure is not None for stream in branches] == [False, True, False]
    assert root.failure is None
    assert isinstance(branches[1].failure.__cause__, RequestError)


def test_branches_that_had_ended_are_not_said_to_be_stopped(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        first, second = s.fork(2)
        first += "first " + gen("x")
        assert first["x"] == "fine"
        second += "second " + gen("x")

    state = program.run(runtime=fake(fails_in("second")), check=False)
    _, first, second = state._run().iter_streams()
    assert first.error is not None  # reading it raises, as ever
    assert (first.was_stopped, first.failure) == (False, None)
    assert second.failure is not None


def test_collected_failures_leave_the_others_as_they_are(fake: Make) -> None:
    state = three_branches(on_error="collect", runtime=fake(fails_in("branch 1")))
    _, *branches = state._run().iter_streams()
    assert [stream.error is None for stream in branches] == [True, False, True]
    assert not branches[0].was_stopped


def test_partial_text_of_a_generation_cut_by_the_budget_is_kept(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("n", max_tokens=40)

    state = program.run(runtime=fake(["a long answer"]), max_total_tokens=4, check=False)
    (cell,) = state._run().cells.values()
    assert cell.partial == "a lo"
    assert type(cell.failure).__name__ == "BudgetError"


def test_every_node_that_was_done_has_its_pieces(fake: Make) -> None:
    state = three_branches(runtime=fake(lambda p, q: "fine"))
    for stream in state._run().iter_streams():
        assert len(stream.piece_ends) == stream.pos == len(stream.block.nodes)
        assert stream.piece_ends == sorted(stream.piece_ends)
        assert not stream.piece_ends or stream.piece_ends[-1] == len(stream.pieces)
