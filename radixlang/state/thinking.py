"""`gen("a", think=256)`: a thought on a branch of its own, then the answer, which alone goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixlang.errors import ParameterError
from radixlang.graph.nodes import Answer, Gen, Ref, Thought, ThoughtBegin, ThoughtEnd
from radixlang.keywords import THINK_NAMES
from radixlang.sampling_params import SamplingParams
from radixlang.state.bound_values import Constant

if TYPE_CHECKING:
    from radixlang.state.items import GenItem
    from radixlang.state.state import State


@dataclass(frozen=True, slots=True)
class Think:
    """The options of a thought: most tokens, whether it stays in the prompt, and its tags."""

    budget: int
    keep: bool
    tags: tuple[str, str] | None


def thought_name(name: str) -> str:
    """The variable of a generation's thought."""
    return f"{name}.thought"


def take_think(options: dict[str, object]) -> Think | None:
    """Take the options of a thought out of a gen's options.

    Raises:
        ParameterError: one is out of range, or has no thought to be of.
    """
    given = {name: options.pop(name) for name in THINK_NAMES if name in options}
    budget, keep, tags = (given.get(name) for name in THINK_NAMES)
    if budget is None:
        for name in THINK_NAMES[1:]:
            if given.get(name):
                raise ParameterError(f"{name} is of a thought; give it a budget: think=256")
        return None
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 0:
        raise ParameterError(
            f"think must be a number of tokens, 0 for no thought or more, got {budget!r}"
        )
    if keep is not None and not isinstance(keep, bool):
        raise ParameterError(f"keep_thinking must be True or False, got {keep!r}")
    return Think(budget, bool(keep), None if tags is None else _checked_tags(tags))


def _checked_tags(tags: object) -> tuple[str, str]:
    pair = tuple(tags) if isinstance(tags, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(tag, str) and tag.strip() for tag in pair):
        raise ParameterError(
            'think_tags must be the texts that open and close a thought, as in ("<think>\\n", '
            f'"\\n</think>\\n\\n"), got {tags!r}'
        )
    return pair[0], pair[1]


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
