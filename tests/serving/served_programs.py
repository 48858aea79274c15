"""Programs that tests serve, in a file of their own as a user has them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import radixlang
from radixlang import State, gen


@dataclass
class Place:
    """A town."""

    town: str
    people: int = 0


@radixlang.function
def ask(s: State, question: str, mood: Literal["calm", "loud"] = "calm") -> int:
    """Answer a question."""
    s += f"Q: {question} ({mood})\nA:" + gen("answer")
    return len(s["answer"])


@radixlang.function
def visit(s: State, place: Place, copy: tuple[str, ...] = ()) -> Place:
    s += f"{place.town}:" + gen("seen", max_tokens=4)
    return Place(place.town + "".join(copy), place.people + 1)


@radixlang.function
def reads(s: State, body: str, query: int = 0) -> str:
    s += f"{body} {query}:" + gen("read", max_tokens=4)
    return str(s["read"])


@radixlang.function
def hello(s: State) -> None:
    s += "Hello" + gen("rest")


@radixlang.function
async def waits(s: State, times: int = 2) -> list[str]:
    for number in range(times):
        s += f"{number}:" + gen(f"part{number}")
    return [await s.aget(f"part{number}") for number in range(times)]


@radixlang.function
def divides(s: State, by: int) -> float:
    s += "One" + gen("first", max_tokens=3)
    assert s["first"]
    return 1 / by


@radixlang.function
def sleeps(s: State, seconds: float) -> None:
    s += "One"
    time.sleep(seconds)


@radixlang.function
def counts(s: State, tokens: int) -> None:
    s += "The town in the north" + gen("long", max_tokens=tokens, ignore_eos=True)
