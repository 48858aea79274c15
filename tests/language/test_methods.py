"""Programs that are methods, and other tools' names for what is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from radixlang import Program, function, gen
from radixlang.keywords import BATCH_NAMES, CONSTRAINT_NAMES, CONSTRAINT_OPTIONS, RUN_NAMES
from radixlang.runtime.runtime_config import RuntimeConfig
from radixlang.sampling_params import PARAM_NAMES
from radixlang.spellings import _OWNERS, hint_for
from radixlang.state.state import State

Make = Callable[..., Any]


class Judge:
    """Grades what it is given, in its own words."""

    def __init__(self, scale: int) -> None:
        self.scale = scale

    @function
    def grade(self, s: State, essay: str) -> int:
        """Grade one essay."""
        s += f"Grade {essay} from 1 to {self.scale}:" + gen("grade", int)
        return self.scale

    @function
    async def agrade(self, s: State, essay: str) -> int:
        s += f"{essay} of {self.scale}:" + gen("grade", int)
        return int(await s.aget("grade"))

    @function
    def both(self, s: State) -> None:
        s.call(self.grade, "A")
        self.grade(s, essay="B")

    @staticmethod
    @function
    def plain(s: State) -> None:
        s += "plain"


def test_a_method_runs_on_its_instance(fake: Make) -> None:
    backend = fake(["7", "8", "9", "6", "5"])
    state = Judge(10).grade(essay="E", runtime=backend)
    assert (state["grade"], state.result) == (7, 10)
    assert state.text() == "Grade E from 1 to 10:7"
    results = Judge(9).grade.run_batch([{"essay": "F"}], runtime=backend)
    assert results[0].text == "Grade F from 1 to 9:8"
    assert asyncio.run(Judge(8).agrade.arun(essay="G", runtime=backend)).result == 9
    assert Judge(5).both(runtime=backend).text() == "Grade A from 1 to 5:6Grade B from 1 to 5:5"


def test_a_method_is_traced_documented_and_bound_like_a_function(fake: Make) -> None:
    judge = Judge(3)
    assert judge.grade.parameters == ("essay",)
    assert judge.grade.__doc__ == "Grade one essay."
    assert "Grade x from 1 to 3:" in judge.grade.trace(essay="x").show().replace("'\n  '", "")
    assert judge.grade.bind(essay="x")(runtime=fake(["1"]))["grade"] == 1


def test_a_program_of_a_module_in_a_class_stays_what_it_is(fake: Make) -> None:
    @function
    def outside(self: State) -> None:
        self += "outside"

    class Holder:
        program = outside

    assert Holder().program is outside
    assert Holder().program(runtime=fake()).text() == "outside"
    assert isinstance(Judge(1).plain, Program)
    assert Judge(1).plain(runtime=fake()).text() == "plain"


@pytest.mark.parametrize(
    ("owner", "given", "told"),
    [
        ("gen", "max_new_tokens", "it is called 'max_tokens' here"),
        ("gen", "max_completion_tokens", "it is called 'max_tokens' here"),
        ("gen", "stop_strings", "it is called 'stop' here"),
        ("gen", "guided_json", "it is called 'json_schema' here"),
        ("gen", "response_format", "json_schema="),
        ("gen", "dtype", "gen('x', int)"),
        ("gen", "runtime", "it is an option of a run"),
        ("gen", "max_total_tokens", "it is an option of a run"),
        ("gen", "max_model_len", "that is 'context_length' of Runtime"),
        ("a run", "max_new_tokens", "it is called 'max_tokens' here"),
        ("a run", "backend", "it is called 'runtime' here"),
        ("a run", "n", "it is an option of gen"),
        ("a run", "guided_json", "that is 'json_schema' of gen"),
        ("run_batch", "batch_size", "it is called 'max_in_flight' here"),
        ("run_batch", "num_threads", "it is called 'max_workers' here"),
        ("Runtime", "model_path", "it is called 'model' here"),
        ("Runtime", "torch_dtype", "it is called 'dtype' here"),
        ("Runtime", "max_model_len", "it is called 'context_length' here"),
        ("Runtime", "backend", "device= says where"),
        ("Runtime", "temperature", "it is an option of gen"),
        ("Runtime", "devcie", "did you mean 'device'?"),
    ],
)
def test_other_tools_names_are_mapped_to_ours(owner: str, given: str, told: str) -> None:
    assert told in hint_for(given, _known(owner), owner)


@pytest.mark.parametrize("owner", sorted(_OWNERS))
def test_what_names_are_mapped_to_exists(owner: str) -> None:
    ahead = {"chat_template"}  # of Runtime, given beside its other arguments
    assert set(_OWNERS[owner]) - ahead <= set(_known(owner))


def _known(owner: str) -> tuple[str, ...]:
    if owner == "Runtime":
        return ("model", *(field.name for field in fields(RuntimeConfig)))
    gen_names = ("n", *CONSTRAINT_NAMES, *CONSTRAINT_OPTIONS, *PARAM_NAMES)
    run_names = (*RUN_NAMES, *PARAM_NAMES)
    return {"gen": gen_names, "a run": run_names, "run_batch": (*BATCH_NAMES, *run_names)}[owner]
