"""Handlers: what each node does on its stream. One returns False if its stream must wait.

It then has arranged for the stream to be woken. All of this runs inside the run's mailbox: quick,
never blocking, one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from radixlang.errors import BudgetError
from radixlang.execution.branch_run import Stream
from radixlang.execution.handlers.contrast_handlers import (
    ask_both,
    end_partner,
    handle_contrasted,
    is_partner_there,
    let_partner_go_on,
)
from radixlang.execution.handlers.fork_handlers import (
    handle_adopt,
    handle_answer,
    handle_call,
    handle_fork,
    handle_join,
)
from radixlang.execution.handlers.node_context import NodeContext
from radixlang.execution.handlers.option_scorers import (
    check_option_texts,
    choose,
    needs_unconditional,
    scores_of,
)
from radixlang.execution.handlers.prompt_parts import (
    argument,
    branch_of,
    emit,
    resolve_parts,
    write_held,
)
from radixlang.execution.handlers.split_characters import complete_character
from radixlang.execution.pieces import Cell, Rewritten, TurnMark
from radixlang.graph.nodes import (
    Adapt,
    Adopt,
    Answer,
    Arg,
    Call,
    Contrasted,
    Dynamic,
    Fork,
    Gen,
    Join,
    Node,
    Option,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    ThoughtBegin,
    ThoughtEnd,
)
from radixlang.protocol import Delta, Generation, Markup, OptionScore
from radixlang.reply import Reply
from radixlang.user_code import is_users_type, offload

NEUTRAL_PROMPT = "\n"  # what "without the prompt" means to the unconditional scorer


def handle_text(run: NodeContext, stream: Stream, node: Text) -> bool:
    """Extend the branch; wait for other branches' values first."""
    texts = resolve_parts(run, stream, node.parts)
    if texts is None:
        return False
    for text in texts:
        if text:
            emit(stream, text)
    return True


def handle_role_begin(run: NodeContext, stream: Stream, node: RoleBegin) -> bool:
    """Write the chat template's opening of a turn."""
    after = (node for node in stream.block.nodes[stream.pos + 1 :] if not isinstance(node, Adapt))
    generates = not isinstance(next(after, None), Text)
    text = run.chat.open(stream.roles, node.role, generates=generates)
    if text:
        emit(stream, Markup(text))
    stream.roles += (node.role,)
    stream.pieces.append(TurnMark(node.role, True))
    if run.chat.rewrites(stream.roles):
        stream.held = []
    return True


def handle_role_end(run: NodeContext, stream: Stream, node: RoleEnd) -> bool:
    """Write the closing of a turn, and before it the content if it was held for the template to
    rewrite."""
    held, stream.held = stream.held, None
    if held:
        content = "".join(held)
        emit(stream, Rewritten(run.chat.content(stream.roles, content), content))
    stream.pieces.append(TurnMark(node.role, False))
    text = run.chat.close(stream.roles)
    if text:
        emit(stream, Markup(text))
    return True


def handle_thought_begin(run: NodeContext, stream: Stream, node: ThoughtBegin) -> bool:
    """Write the opening tag of a thought, unless the chat template has written it already."""
    opening, _ = run.tags_of(node.thought)
    tag = opening.strip()
    if not stream.tail(len(opening) + 8).rstrip().endswith(tag):
        emit(stream, Markup(opening))
    return True


def handle_thought_end(run: NodeContext, stream: Stream, node: ThoughtEnd) -> bool:
    """Write the closing tag of a thought, which has ended before it or is cut here."""
    emit(stream, Markup(run.tags_of(node.thought)[1]))
    return True


def handle_gen(run: NodeContext, stream: Stream, node: Gen) -> bool:
    """Post a generation; the stream goes on, and the branch runs it in order."""
    if not is_partner_there(run, stream, node):
        return False
    params = run.params_for(stream, node)
    granted = run.budget.reserve(stream, params.max_tokens)
    if granted is None:
        return False
    clipped = granted < params.max_tokens
    if clipped:
        params = params.override(max_tokens=granted, min_tokens=min(granted, params.min_tokens))
    cell = run.loop.cell(stream.block.id, node.slot, node.name)
    cell.name, cell.seed, cell.posted_s = node.name, params.seed or 0, time.monotonic()
    cell.params = params
    constraint = run.constraint_for(node)
    if node.against is None:
        generation = branch_of(stream).generate(params, constraint)
    else:
        generation = ask_both(run, stream, node.against, params, constraint)
    run.hint(stream)
    cell.generation = generation
    if cell.is_stopping:
        generation.stop()
    stream.pieces.append(cell)
    run.loop.begin(stream)
    if node.against is not None:
        let_partner_go_on(run, node.against, cell)
    if run.is_followed:
        follow(run, cell, generation)
    done = partial(_generated, run, stream, node, cell, generation, granted, clipped)
    generation.when_done(partial(run.loop.post, done))
    return True


def follow(run: NodeContext, cell: Cell, generation: Generation) -> None:
    """Copy a generation's deltas to its cell and to the run's events as they arrive."""
    cell.deltas = []

    def reader(delta: Delta | None) -> None:
        if delta is not None and cell.deltas is not None:
            cell.deltas.append(delta)
            run.events.append((cell, delta))
            run.loop.readers.notify()

    generation.subscribe(reader)


def _generated(
    run: NodeContext, stream: Stream, node: Gen, cell: Cell, generation: Generation, granted: int,
    clipped: bool,
) -> None:  # fmt: skip
    error = generation.exception()
    used = 0 if error is not None else len(generation.result().token_ids)
    for waiting in run.budget.settle(granted, used):
        run.loop.ready(waiting)
    cell.generation = None
    valued = partial(_valued, run, stream, node, cell, generation)
    if error is not None or cell.done:
        valued(None, error)
        return
    completion = generation.result()
    cell.completion = completion
    complete_character(stream, cell, run.backend.decode)
    cell.forced = forced_spans(generation)
    if clipped and completion.finish_reason == "length":
        error = BudgetError(
            f"the generation was cut to the {granted} tokens left of "
            f"max_total_tokens={run.options.max_total_tokens}"
        )
        valued(None, error)
        return
    _read_value(run, node, completion.text, valued)


def _read_value(
    run: NodeContext, node: Gen, text: str, then: Callable[[object, BaseException | None], None]
) -> None:
    """Parse the value of a generated text; a user's type is parsed on a user thread."""
    output = node.output
    if output is None:
        then(text, None)
    elif is_users_type(output.kind):
        parse = partial(output.parse, text)
        offload(parse, lambda value, error: run.loop.post(partial(then, value, error)))
    else:
        try:
            value = output.parse(text)
        except Exception as error:
            then(None, error)
        else:
            then(value, None)


def _valued(
    run: NodeContext, stream: Stream, node: Gen, cell: Cell, generation: Generation, value: object,
    error: BaseException | None,
) -> None:  # fmt: skip
    if error is not None:
        cell.failure, cell.partial = error, _partial_text(cell, generation)
        run.loop.fail(stream, node, error)
    elif not cell.done:
        cell.resolve(value)
    if node.against is not None:
        end_partner(run, node, node.against, error)
    run.loop.ended(stream)


def _partial_text(cell: Cell, generation: Generation) -> str:
    """The text of a failed generation so far."""
    if cell.completion is not None:
        return cell.completion.text
    return "".join(delta.text for delta in generation.deltas)


def forced_spans(generation: Generation) -> tuple[tuple[str, bool], ...]:
    """(text, was forced) runs of a finished generation; empty if nothing was forced."""
    usage = generation.result().usage
    if not usage.num_forced_tokens:
        return ()
    return tuple((delta.text, delta.num_forced > 0) for delta in generation.deltas)


def handle_select(run: NodeContext, stream: Stream, node: Select) -> bool:
    """Post the scoring of the options; the stream goes on when one is chosen."""
    options = _options(run, stream, node)
    if options is None:
        return False
    branch = branch_of(stream)
    run.loop.cell(stream.block.id, node.slot, node.name).posted_s = time.monotonic()
    futures = [branch.score(options)]
    if needs_unconditional(node.scorer):
        neutral = run.backend.new_branch(namespace=run.options.namespace)
        neutral.use_adapter(stream.adapter)
        neutral.extend(NEUTRAL_PROMPT)
        futures.append(neutral.score(options))
        neutral.release()
    left = [len(futures)]

    def arrived() -> None:
        left[0] -= 1
        if not left[0]:
            _scored(run, stream, node, options, futures)

    for future in futures:
        future.when_done(partial(run.loop.post, arrived))
    return False


def _options(run: NodeContext, stream: Stream, node: Select) -> list[str] | None:
    if isinstance(node.options, Arg):
        given = list(argument(run, node.options.name))
        check_option_texts(given)
        return given
    texts: list[str] = []
    for option in node.options:
        found = _option_text(run, stream, option)
        if found is None:
            return None
        texts.append(found)
    return texts


def _option_text(run: NodeContext, stream: Stream, option: Option) -> str | None:
    if isinstance(option, str):
        return option
    parts = resolve_parts(run, stream, option)
    return None if parts is None else "".join(parts)


def _scored(
    run: NodeContext, stream: Stream, node: Select, options: list[str],
    futures: list[Reply[list[OptionScore]]],
) -> None:  # fmt: skip
    error = next((found for future in futures if (found := future.exception()) is not None), None)
    if error is not None:
        _fail_select(run, stream, node, error)
        return
    details = futures[0].result()
    call = partial(scores_of, node.scorer, details, *(future.result() for future in futures[1:]))
    chosen = partial(_chosen, run, stream, node, options, details)
    if callable(node.scorer):
        offload(call, lambda value, error: run.loop.post(partial(chosen, value, error)))
    else:
        chosen(call(), None)


def _chosen(
    run: NodeContext, stream: Stream, node: Select, options: list[str], details: list[OptionScore],
    scores: tuple[float, ...], error: BaseException | None,
) -> None:  # fmt: skip
    if stream.error is not None:
        return
    if error is not None:
        _fail_select(run, stream, node, error)
        return
    cell = run.loop.cell(stream.block.id, node.slot, node.name)
    cell.name = node.name
    cell.choice = choose(options, scores, details)
    branch_of(stream).extend(cell.choice.text)
    run.hint(stream)
    stream.pieces.append(cell)
    if run.is_followed:
        delta = Delta(cell.choice.text)
        cell.deltas = [delta]
        run.events.append((cell, delta))
    cell.resolve(cell.choice.text)
    run.loop.step(stream)


def _fail_select(run: NodeContext, stream: Stream, node: Select, error: BaseException) -> None:
    run.loop.cell(stream.block.id, node.slot, node.name).failure = error
    run.loop.fail(stream, node, error)


def handle_adapt(run: NodeContext, stream: Stream, node: Adapt) -> bool:
    """Change the adapter of the branch."""
    stream.adapter = node.use or run.options.adapter
    branch_of(stream).use_adapter(stream.adapter)
    return True


def handle_dynamic(run: NodeContext, stream: Stream, node: Dynamic) -> bool:
    """Do nothing: the node is only a mark in the graph."""
    return True


# each handler takes the nodes of its key
HANDLERS: dict[type, Callable[[NodeContext, Stream, Any], bool]] = {
    Text: handle_text,
    RoleBegin: handle_role_begin,
    RoleEnd: handle_role_end,
    ThoughtBegin: handle_thought_begin,
    ThoughtEnd: handle_thought_end,
    Gen: handle_gen,
    Contrasted: handle_contrasted,
    Answer: handle_answer,
    Select: handle_select,
    Fork: handle_fork,
    Join: handle_join,
    Adopt: handle_adopt,
    Call: handle_call,
    Adapt: handle_adapt,
    Dynamic: handle_dynamic,
}

_KEEPS_HELD = (Text, RoleEnd, Join, Dynamic)  # nodes that need nothing of the branch but text


def handle_node(run: NodeContext, stream: Stream, node: Node) -> bool:
    """Execute a node; False if its stream must wait."""
    if stream.held is not None and not isinstance(node, _KEEPS_HELD):
        write_held(stream)
    return HANDLERS[type(node)](run, stream, node)
