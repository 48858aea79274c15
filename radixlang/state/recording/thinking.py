"""A thought on a branch of its own, then the answer, which alone goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixlang.graph.nodes import Answer, Gen, Ref, Thought, ThoughtBegin, ThoughtEnd
from radixlang.sampling_params import SamplingParams
from radixlang.state.expressions.items import GenItem
from radixlang.state.expressions.thought import Think, thought_name
from radixlang.state.reading.bound_values import Constant

if TYPE_CHECKING:
    from radixlang.state.state import State


def append_thinking(state: State, item: GenItem, think: Think) -> None:
    """Record a thought and its answer on a branch, and the answer again on this one.

    With `keep` this state goes on where that branch ends instead.
    """
    group = state.fork(1)
    child, host, location = group[0], state._host, state._recorder.location()
    block, thought = child._block, Thought(think.tags)
    host.record(block, ThoughtBegin(thought, location))
    slot = None
    name = None if item.name is None else thought_name(item.name)
    if think.budget:
        overrides = _thought_overrides(item, think.budget)
        params = SamplingParams(**dict(overrides))
        slot = child._new_slot()
        host.record(block, Gen(slot, name, params, overrides, thought=thought, location=location))
        child._variables.bind(name, Ref(block.id, slot, name or ""))
    else:
        child._variables.bind(name, Constant(""))
    host.record(block, ThoughtEnd(thought, location))
    answer = child._new_slot()
    host.record(block, Gen(answer, item.name, item.params, item.overrides, item.constraint,
                           item.output, location))  # fmt: skip
    child._variables.bind_generation(
        item.name, Ref(block.id, answer, item.name or ""), item.constraint
    )
    host.record(state._block, Answer(block.id, answer, item.name, slot, think.keep, location))
    for bound in child.names(own=True):
        state._variables.bind(bound, child._variables.lookup(bound))
    group.close("is the thought of a gen")


def _thought_overrides(item: GenItem, budget: int) -> tuple[tuple[str, Any], ...]:
    """The thought's parameters: the answer's own, but none that bounds or stops it."""
    own: dict[str, Any] = {"max_tokens": budget, "min_tokens": 0, "stop": (), "stop_regex": (),
           "stop_token_ids": (), "ignore_eos": False, "heal": False}  # fmt: skip
    return tuple(sorted({**dict(item.overrides), **own}.items()))
