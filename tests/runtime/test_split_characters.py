"""Characters that a cut divides: the prompt's text is what its tokens say, whatever the cuts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import radixlang
from radixlang import function, gen
from radixlang.state.state import State

PROMPT = "Faces: \U0001f600\U0001f628\U0001f600 and more: "


@function
def cut_up(s: State, cuts: list[int]) -> None:
    s += PROMPT
    for index, cut in enumerate(cuts):
        s += gen(f"x{index}", max_tokens=cut, ignore_eos=True, heal=False)
    s["tokens"] = s.tokens()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("cuts", [[1] * 24, [2] * 12, [5, 1, 1, 7, 3, 1, 6], [24]])
def test_the_text_is_the_decode_of_the_tokens_whatever_the_cuts(
    make_runtime: Callable[..., Any], cuts: list[int], seed: int
) -> None:
    runtime = make_runtime()
    stream = cut_up.stream(cuts=cuts, runtime=runtime, seed=seed)
    streamed = "".join(stream.text())
    state = stream.state
    tokens = state["tokens"]
    assert len(tokens) == len(runtime.encode(PROMPT)) + sum(cuts)
    assert state.text() == runtime.decode(tokens)
    assert streamed == state.text()
    data = json.loads(json.dumps(radixlang.take_checkpoint(state)))
    assert "".join(piece.get("text", "") for piece in data["pieces"]) == state.text()


@pytest.mark.parametrize("seed", range(4))
def test_branches_and_turns_have_whole_characters_too(
    make_runtime: Callable[..., Any], seed: int
) -> None:
    @function
    def program(s: State) -> None:
        with s.assistant():
            s += PROMPT
            for index in range(6):
                s += gen(f"a{index}", max_tokens=1, ignore_eos=True)
            group = s.fork(3)
            for index in range(6):
                group += gen(f"b{index}", max_tokens=1, ignore_eos=True)
            s["branches"] = [(branch.text(), branch.tokens()) for branch in group]
            s["turns"] = [branch.messages()[-1].content for branch in group]

    runtime = make_runtime()
    state = program(runtime=runtime, seed=seed)
    for (text, tokens), turn in zip(state["branches"], state["turns"], strict=True):
        assert text == runtime.decode(tokens)
        assert text.endswith(turn)
        assert turn.startswith(PROMPT)
