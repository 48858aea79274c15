"""Handlers of forks, joins, adoptions and calls: the nodes that make and end branches."""

from __future__ import annotations

from functools import partial

from radixlang.errors import JoinError
from radixlang.execution.branch_run import Stream
from radixlang.execution.handlers.node_context import NodeContext
from radixlang.execution.handlers.prompt_parts import (
    branch_of,
    emit,
    extend_generated,
    num_healed,
    resolve_parts,
)
from radixlang.execution.pieces import Cell
from radixlang.graph.nodes import Adopt, Answer, Call, Fork, Join
from radixlang.user_code import offload


def handle_fork(run: NodeContext, stream: Stream, node: Fork) -> bool:
    """Fork the branch: each child gets a lease, nothing is copied."""
    prefix = resolve_parts(run, stream, node.prefix)
    if prefix is None:
        return False
    hub = branch_of(stream)
    if prefix:
        hub = hub.fork(1)[0]
        for text in prefix:
            hub.extend(text)
    branches = hub.fork(len(node.children))
    if prefix:
        hub.release()
    for child_id, branch in zip(node.children, branches, strict=True):
        child = Stream(run.loop.blocks[child_id], branch, stream)
        child.pieces.extend(prefix)
        if node.on_error == "collect":
            child.domain = child
        run.loop.add_stream(child)
    run.hint(stream)
    return True


def handle_join(run: NodeContext, stream: Stream, node: Join) -> bool:
    """Wait for the children, bind their values or append their texts, and free them."""
    if not _children_ready(run, stream, node):
        return False
    stream.join_at = 0
    children = [run.loop.streams[child] for child in node.children]
    cell = run.loop.cell(stream.block.id, node.slot, node.name)
    values = _join_values(run, node, children)
    if node.mode == "reduce":
        assert node.reducer is not None
        call = partial(node.reducer, values)
        offload(call, lambda value, error: run.loop.post(
            partial(_reduced, run, stream, node, cell, value, error)))  # fmt: skip
        return False
    if node.mode == "text":
        text = node.separator.join(value for value in values if isinstance(value, str))
        if text:
            emit(stream, text)
    _end_join(run, node, cell, values)
    return True


def _end_join(run: NodeContext, node: Join, cell: Cell, value: object) -> None:
    if node.close:
        for child in node.children:
            below = run.loop.streams[child]
            below.ended = True
            run.loop.settle(below)
    cell.name = node.name
    cell.resolve(value)


def _reduced(
    run: NodeContext,
    stream: Stream,
    node: Join,
    cell: Cell,
    value: object,
    error: BaseException | None,
) -> None:
    if stream.error is not None:
        return
    if error is not None:
        run.loop.fail(stream, node, error)
        return
    _end_join(run, node, cell, value)
    run.loop.step(stream)


def _children_ready(run: NodeContext, stream: Stream, node: Join) -> bool:
    """Whether all children are done; otherwise the stream is woken by the first that is not."""
    while stream.join_at < len(node.children):
        child = run.loop.streams[node.children[stream.join_at]]
        if not child.is_complete:
            if child.watchers is None:
                child.watchers = []
            child.watchers.append(stream)
            return False
        stream.join_at += 1
    return True


def _join_values(run: NodeContext, node: Join, children: list[Stream]) -> list[object]:
    errors = {index: child.error for index, child in enumerate(children) if child.error}
    if errors and node.missing == "raise":
        first = next(iter(errors.values()))
        names = ", ".join(map(str, errors))
        raise JoinError(
            f"{len(errors)} of {len(children)} branches failed (index {names}); the first: {first}",
            dict(errors), location=str(node.location or ""), branch=first.branch,
            prompt_tail=first.prompt_tail,
        )  # fmt: skip
    if node.mode == "text":
        return [None if child.error else child.own_text() for child in children]
    values = []
    for ref in node.refs:
        cell = run.loop.cell(ref.block, ref.slot) if ref is not None else None
        values.append(cell.value if cell is not None and cell.error is None else None)
    return values


def _is_over(stream: Stream, child: Stream) -> bool:
    """Whether a child is done; otherwise the stream is woken by it. Raises the child's error."""
    if child.error is not None:
        raise child.error
    if not child.is_complete:
        if child.watchers is None:
            child.watchers = []
        child.watchers.append(stream)
        return False
    return True


def handle_adopt(run: NodeContext, stream: Stream, node: Adopt) -> bool:
    """Continue where the child ended: its branch becomes this stream's."""
    child = run.loop.streams[node.child]
    if not _is_over(stream, child):
        return False
    old, stream.branch = branch_of(stream), branch_of(child)
    child.branch = None
    old.release()
    stream.pieces.extend(child.pieces)
    stream.roles, stream.held, stream.adapter = child.roles, child.held, child.adapter
    return True


def handle_answer(run: NodeContext, stream: Stream, node: Answer) -> bool:
    """Append the answer that a child has found by its thought, or go on where the child ended."""
    if node.keep:
        return handle_adopt(run, stream, Adopt(node.child, node.location))
    child = run.loop.streams[node.child]
    if not _is_over(stream, child):
        return False
    cell = run.loop.cell(node.child, node.slot, node.name)
    completion = cell.completion
    assert completion is not None
    if num_healed(run.backend, completion.token_ids, completion.text):
        branch_of(stream).extend(completion.text)  # its first token has text that is there already
    else:
        extend_generated(branch_of(stream), run.backend, completion.token_ids, completion.text)
    stream.pieces.append(cell)
    run.hint(stream)
    child.ended = True
    run.loop.settle(child)
    return True


def handle_call(run: NodeContext, stream: Stream, node: Call) -> bool:
    """Start a nested program on a new branch."""
    block = run.loop.blocks[node.child]
    if node.scope == "isolate":
        branch = run.backend.new_branch(namespace=run.options.namespace)
        branch.use_adapter(stream.adapter)
        child = Stream(block, branch)
        child.adapter = stream.adapter
        child.domain = stream.domain
    else:
        child = Stream(block, branch_of(stream).fork(1)[0], stream)
    run.loop.add_stream(child)
    return True
