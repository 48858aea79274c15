"""Mistakes that an editor marks as they are written; each line says what is wrong with it.

A comment that starts with "wrong:" marks a line on which both checkers must report an error; no
other line may have one.
"""

from __future__ import annotations

import radixlang
from radixlang import (
    State,
    gen,
    select,
)
from radixlang.testing import FakeBackend


@radixlang.function
def greet(s: State, name: str, times: int = 1) -> None:
    """Greet somebody."""
    s += gen("greeting", max_tokns=8)  # wrong: a misspelt option
    s += gen("greeting", temperature="hot")  # wrong: a number is a string
    s += gen("greeting", stop=3)  # wrong: a stop is no string
    s += gen("age", int, finish="stop")  # wrong: not one of its values
    s += gen(3)  # wrong: a name is no string
    s += select("size", ["big", "small"], scorer="greedy")  # wrong: no such scorer
    s += select("size", 2)  # wrong: no list
    s += 3  # wrong: a number cannot be appended
    s.fork("2")  # wrong: a number is a string
    s.fork(2, on_error="ignore")  # wrong: not one of its values
    s.join(s.fork(2), "a", "b", reduce=len)  # wrong: a reducer takes one name
    s.call(greet, nme="Ada")  # wrong: a misspelt argument
    age: str = s.get("age", int)  # wrong: the value is an int
    print(age)


def run(runtime: FakeBackend) -> None:
    """Calls."""
    greet(nme="Ada")  # wrong: a misspelt argument
    greet(3)  # wrong: an argument of another type
    greet()  # wrong: an argument is missing
    greet("Ada", 1, 2)  # wrong: one argument too many
    greet.run(name="Ada", times="1")  # wrong: an argument of another type
    greet(name="Ada", temprature=0)  # wrong: a misspelt option
    greet(name="Ada", runtime=runtime, temperature="hot")  # wrong: an option of another type
    greet.run(name="Ada", seed="7")  # wrong: an option of another type
    greet(name="Ada", runtime="default")  # wrong: no runtime
    greet.with_options(temprature=0)(name="Ada")  # wrong: a misspelt option
    greet.with_options(temperature=0)(nme="Ada")  # wrong: a misspelt argument
    greet.stream(name=3)  # wrong: an argument of another type
    text: str = greet("Ada")  # wrong: a state is no text
    greet.run_batch([{"name": "Ada"}], max_worker=2)  # wrong: a misspelt option
    greet.run_batch([{"name": "Ada"}], timeout="5 s")  # wrong: an option of another type
    greet.run_batch("Ada")  # wrong: no rows
    greet.as_completed([{"name": "Ada"}], progress=True)  # wrong: an option of run_batch
    radixlang.SamplingParams(temprature=0)  # wrong: a misspelt option
    radixlang.Runtime(devcie="cpu")  # wrong: a misspelt option
    radixlang.Runtime(max_running="8")  # wrong: an option of another type
    print(text)


@radixlang.function  # wrong: its function has no parameter for the state
def stateless() -> None:
    """No state."""
