"""What crosses a process: errors, results and programs do; what runs says that it does not."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import radixlang
from radixlang import errors, function, gen, select
from radixlang.errors import (
    JoinError,
    NotPicklableError,
    ProgramError,
    RadixlangError,
    StateClosedError,
)
from radixlang.state.state import State
from radixlang.testing import FakeBackend

Make = Callable[..., Any]


def subclasses(kind: type[RadixlangError]) -> Iterator[type[RadixlangError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from subclasses(each)


def load_all_modules() -> None:
    """Import everything that can be imported without a GPU, so that every error is known."""
    for package in ("radixlang.runtime", "radixlang"):
        root = importlib.import_module(package)
        for found in pkgutil.walk_packages(root.__path__, f"{package}."):
            if ".kernels" not in found.name and not found.name.endswith("__main__"):
                importlib.import_module(found.name)


def made(kind: type[RadixlangError]) -> RadixlangError:
    """An error with every argument of its __init__ given."""
    known = {"message": "what happened", "partial": "par", "location": "a.py:3", "branch": (0, 1),
             "prompt_tail": "tail", "needed": 3, "free": 1, "pointer": "/a", "why": "because",
             "token_ids": (1, 2), "num_prompt_tokens": 5, "num_cached_tokens": 4,
             "status": 400, "kind": "a_kind", "code": "a_code", "param": "a", "headers": {"a": "b"},
             "errors": {1: ProgramError("inner", branch=(1,))}}  # fmt: skip
    parameters = inspect.signature(kind.__init__).parameters
    names = [name for name, each in parameters.items()
             if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)][1:]  # fmt: skip
    return kind(**{name: known[name] for name in names}) if names else kind("what happened")


def test_every_error_pickles_with_its_attributes_and_its_cause() -> None:
    load_all_modules()
    kinds = list(dict.fromkeys(subclasses(RadixlangError)))
    assert {kind.__name__ for kind in kinds} >= {"PoolFull", "JoinError", "RefusedKeywordError"}
    for kind in kinds:
        error = made(kind)
        error.__cause__ = ZeroDivisionError("by zero")
        for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
            assert type(again) is kind
            assert str(again) == str(error)
            assert again.args == error.args
            assert again.__dict__.keys() == error.__dict__.keys()
            assert repr(again.__dict__) == repr(error.__dict__)
            assert isinstance(again.__cause__, ZeroDivisionError)


class UnpicklableError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.lock = threading.Lock()


def test_an_error_pickles_whatever_its_cause_is() -> None:
    error = JoinError("two failed", {0: UnpicklableError("this", "that")})
    error.__cause__ = UnpicklableError("one", "two")
    again = pickle.loads(pickle.dumps(error))
    assert str(again.__cause__) == "UnpicklableError: one and two"
    assert str(again.errors[0]) == "UnpicklableError: this and that"
    assert isinstance(error.errors[0], UnpicklableError)  # the original is as it was


def test_errors_of_the_module_are_all_listed_in_its_tree() -> None:
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, RadixlangError):
            assert kind.__name__ in (errors.__doc__ or "")


@function
def asks(s: State, q: str) -> None:
    s += q + gen("a") + select("b", ["x", "y"])


@function
def fails(s: State) -> None:
    group = s.fork(2, on_error="collect")
    group += gen("a")
    s.join(group, "a", missing="raise")


def test_results_pickle_without_their_state(fake: Make) -> None:
    def answer(prompt: str, params: Any) -> Any:
        return OSError("down") if prompt == "2" else "yes"

    results = asks.run_batch([{"q": "1"}, {"q": "2"}], runtime=fake(answer), seed=1)
    first, second = pickle.loads(pickle.dumps(results))
    assert first == results[0]
    assert first["a"] == "yes"
    with pytest.raises(StateClosedError, match="comes from another process"):
        _ = first.state
    with pytest.raises(ProgramError, match="OSError: down"):
        _ = second["a"]
    assert isinstance(second.error.__cause__, OSError)


def test_what_a_generation_tells_pickles(fake: Make) -> None:
    state = asks("1", runtime=fake(lambda p, q: "yes"), logprobs=True)
    for found in (state.completion("a"), state.choice("b"), state.usage(), state.messages()):
        assert pickle.loads(pickle.dumps(found)) == found


def test_a_join_error_of_a_run_pickles(fake: Make) -> None:
    with pytest.raises(ProgramError) as caught:
        fails(runtime=fake([OSError("down"), "fine"]))
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_programs_pickle_by_name_with_what_is_bound(fake: Make) -> None:
    assert pickle.loads(pickle.dumps(asks)) is asks
    bound = pickle.loads(pickle.dumps(asks.bind(q="1")))
    assert bound.bound == {"q": "1"}
    assert bound(runtime=fake(lambda p, q: "yes"))["a"] == "yes"

    @function
    def local(s: State) -> None:
        s += "x"

    with pytest.raises(NotPicklableError, match="define it at the top level of its module"):
        pickle.dumps(local)


def test_what_belongs_to_a_process_says_so_when_it_is_pickled(fake: Make) -> None:
    backend: FakeBackend = fake(lambda p, q: "yes")
    state = asks("1", runtime=backend)
    stream = asks.stream("1", runtime=backend)
    list(stream)
    generation = backend.new_branch().generate(radixlang.SamplingParams())
    generation.result()
    runtime = object.__new__(radixlang.Runtime)
    for thing in (runtime, backend, state, state._run(), stream, generation):
        with pytest.raises(NotPicklableError, match="belongs to this process"):
            pickle.dumps(thing)
    backend.num_live_branches = 0  # the one that was made by hand
