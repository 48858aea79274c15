"""Handlers of a contrast: two streams meet, and one generation goes on both branches."""

from __future__ import annotations

from radixlang.execution.branch_run import Stream
from radixlang.execution.handlers.node_context import NodeContext
from radixlang.execution.handlers.prompt_parts import branch_of
from radixlang.execution.pieces import Cell
from radixlang.graph.nodes import Against, Block, Contrasted, Gen
from radixlang.protocol import Generation
from radixlang.sampling_params import SamplingParams


def is_partner_there(run: NodeContext, stream: Stream, node: Gen) -> bool:
    """Whether the other branch of a generation waits for it; otherwise the stream is woken.

    Raises:
        ProgramError: that of the other branch, which has failed.
    """
    if node.against is None:
        return True
    other = _watched(run, stream, node.against.block)
    if other is None:
        return False
    at = _node_of(other)
    return isinstance(at, Contrasted) and (at.block, at.slot) == (stream.block.id, node.slot)


def handle_contrasted(run: NodeContext, stream: Stream, node: Contrasted) -> bool:
    """Wait for the generation; its own stream lets this one go on."""
    other = _watched(run, stream, node.block)
    at = None if other is None else _node_of(other)
    if other is not None and isinstance(at, Gen) and at.slot == node.slot:
        run.loop.ready(other)
    return False


def ask_both(
    run: NodeContext, stream: Stream, against: Against, params: SamplingParams, constraint: object
) -> Generation:
    """Post the generation."""
    other = run.loop.streams[against.block]
    return branch_of(stream).contrast(branch_of(other), params, against.how, constraint)


def let_partner_go_on(run: NodeContext, against: Against, cell: Cell) -> None:
    """Let the other stream go on after the generation, which it has to wait for at its end."""
    other = run.loop.streams[against.block]
    other.pieces.append(cell)
    run.loop.begin(other)
    run.hint(other)
    run.loop.step(other)


def end_partner(run: NodeContext, node: Gen, against: Against, error: BaseException | None) -> None:
    """Note the end of the generation on the other stream, which fails with it."""
    other = run.loop.streams[against.block]
    if error is not None:
        run.loop.fail(other, node, error)
    run.loop.ended(other)


def _node_of(stream: Stream) -> object:
    """The node at which a stream waits; None if it does not."""
    return stream.block.nodes[stream.pos] if stream.waiting else None


def _watched(run: NodeContext, stream: Stream, block_id: int) -> Stream | None:
    """The stream of a block, or None before it has begun; its end or error wakes this one."""
    block: Block | None = run.loop.blocks[block_id]
    other = run.loop.streams.get(block_id)
    if other is not None and other.error is not None:
        raise other.error
    while block is not None and block.id not in run.loop.streams:
        block = block.parent
    if block is not None:
        watched = run.loop.streams[block.id]
        watched.watchers = watched.watchers or []
        if stream not in watched.watchers:
            watched.watchers.append(stream)
    return other
