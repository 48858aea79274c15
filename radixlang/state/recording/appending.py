"""What `s += …` records: a node for each item of an expression."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from radixlang.graph.nodes import Arg, Gen, Option, Part, Ref, Select, Text
from radixlang.state.expressions.items import GenItem, Item, Placeholder, RoleOpen, SelectItem
from radixlang.state.expressions.thought import thought_name
from radixlang.state.recording.adapting import adapted
from radixlang.state.recording.groups import record_join
from radixlang.state.recording.thinking import append_thinking

if TYPE_CHECKING:
    from radixlang.state.state import State


def append_items(state: State, items: tuple[Item, ...]) -> None:
    """Record the items of an expression, in order."""
    for index, item in enumerate(items):
        if isinstance(item, GenItem) and item.n > 1:
            _append_samples(state, item, items[index + 1 :])
            return
        _append_item(state, item)


def _append_item(state: State, item: Item) -> None:
    if isinstance(item, str):
        append_text(state, item)
    elif isinstance(item, Placeholder):
        state._host.record(state._block, Text((item.part,), state._recorder.location()))
    elif isinstance(item, (GenItem, SelectItem)):
        with adapted(state, item.adapter):
            _append_value(state, item)
    elif isinstance(item, RoleOpen):
        state.role_begin(item.role)
    else:
        state.role_end(item.role)


def _append_value(state: State, item: GenItem | SelectItem) -> None:
    if isinstance(item, GenItem) and item.think is not None:
        append_thinking(state, item, item.think)
    elif isinstance(item, GenItem):
        slot = state._new_slot()
        node = Gen(slot, item.name, item.params, item.overrides, item.constraint, item.output,
                   state._recorder.location())  # fmt: skip
        state._host.record(state._block, node)
        ref = Ref(state._block.id, slot, item.name or "")
        state._variables.bind_generation(item.name, ref, item.constraint)
    else:
        _append_select(state, item)


def append_text(state: State, text: str) -> None:
    """Record text; values in it that are not known yet become references."""
    if text:
        state._host.record(
            state._block, Text(state._recorder.split(text), state._recorder.location())
        )


def _append_select(state: State, item: SelectItem) -> None:
    slot = state._new_slot()
    if isinstance(item.options, Placeholder):
        options: tuple[Option, ...] | Arg = _argument_of(item.options)
    else:
        options = tuple(_option(state, option) for option in item.options)
    state._host.record(
        state._block, Select(slot, item.name, options, item.scorer, state._recorder.location())
    )
    state._variables.bind(item.name, Ref(state._block.id, slot, item.name or ""))


def _argument_of(options: Placeholder) -> Arg:
    if not isinstance(options.part, Arg):
        options._need("the options")
    return options.part


def _option(state: State, option: str | Placeholder) -> str | tuple[Part, ...]:
    if isinstance(option, Placeholder):
        return (option.part,)
    parts = state._recorder.split(option)
    return option if len(parts) == 1 and isinstance(parts[0], str) else parts


def _append_samples(state: State, item: GenItem, rest: tuple[Item, ...]) -> None:
    """gen with n > 1: a branch a sample; what follows in the expression goes to each."""
    single = replace(item, n=1)
    group = state.fork(item.n)
    for child in group:
        append_items(child, (single, *rest))
    if item.name is not None:
        record_join(state, group, item.name, missing="none", close=False)
        if item.think is not None and item.think.budget:
            record_join(state, group, thought_name(item.name), missing="none", close=False)
    state._samples = (item.name, group)
