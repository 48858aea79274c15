"""What each node does on its stream. A handler returns False to wait; someone wakes the stream.

All of this runs inside the run's actor: quick, never waiting, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from radixlang.errors import BudgetError, JoinError, ParameterError
from radixlang.graph import (
    Adopt,
    Arg,
    Call,
    Dynamic,
    Fork,
    Gen,
    Join,
    Option,
    Part,
    Ref,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
)
from radixlang.protocol import Branch, Completion, Delta, Generation, Markup, OptionScore
from radixlang.scoring import choose, needs_unconditional, scores_of
from radixlang.streams import Cell, Stream, Turn
from radixlang.waits import offload

if TYPE_CHECKING:
    from radixlang.executor import Run

NEUTRAL_PROMPT = "\n"  # what "without the prompt" means to the unconditional scorer


def handle_text(run: Run, stream: Stream, node: Text) -> bool:
    """Extend the branch; wait for other branches' values first."""
    texts = resolve_parts(run, stream, node.parts)
    if texts is None:
        return False
    for text in texts:
        if text:
            emit(stream, text)
    return True


def emit(stream: Stream, text: str) -> None:
    """Append text to the branch and to the record of the prompt."""
    branch_of(stream).extend(text)
    stream.pieces.append(text)


def branch_of(stream: Stream) -> Branch:
    """The stream's branch, which it has for as long as it runs."""
    assert stream.branch is not None, "a stream without a branch was driven"
    return stream.branch


def resolve_parts(run: Run, stream: Stream, parts: tuple[Part, ...]) -> list[str] | None:
    """Parts as texts, or None after arranging to be woken when a missing value is there."""
    for part in parts:
        if isinstance(part, Ref):
            cell = run.cell(part.block, part.slot, part.name)
            if not cell.done:
                cell.on_done(run.wake_by(stream))
                return None
            if cell.error is not None:
                raise cell.error
    return [part if isinstance(part, str) else _format(run, part) for part in parts]


def _format(run: Run, part: Ref | Arg) -> str:
    if isinstance(part, Arg):
        return format(argument(run, part.name), part.spec)
    return format(run.cell(part.block, part.slot).value, part.spec)


def argument(run: Run, name: str) -> Any:
    """The value of an open argument of the graph."""
    try:
        return run.args[name]
    except KeyError:
        raise ParameterError(f"program {run.name!r} needs the argument {name!r}") from None


def handle_role_begin(run: Run, stream: Stream, node: RoleBegin) -> bool:
    """Write the opening of a turn as the chat template has it."""
    nodes, after = stream.block.nodes, stream.pos + 1
    generates = not (after < len(nodes) and isinstance(nodes[after], Text))
    text = run.chat.open(stream.roles, node.role, generates=generates)
    if text:
        emit(stream, Markup(text))
    stream.roles += (node.role,)
    stream.pieces.append(Turn(node.role, True))
    return True


def handle_role_end(run: Run, stream: Stream, node: RoleEnd) -> bool:
    """Write the closing of a turn."""
    stream.pieces.append(Turn(node.role, False))
    text = run.chat.close(stream.roles)
    if text:
        emit(stream, Markup(text))
    return True


def handle_gen(run: Run, stream: Stream, node: Gen) -> bool:
    """Post a generation; the stream goes on, the branch runs it in its turn."""
    params = run.params_for(stream, node)
    granted = run.budget.reserve(stream, params.max_tokens)
    if granted is None:
        return False
    clipped = granted < params.max_tokens
    if clipped:
        params = params.override(max_tokens=granted, min_tokens=min(granted, params.min_tokens))
    cell = run.cell(stream.block.id, node.slot, node.name)
    cell.name, cell.seed = node.name, params.seed or 0
    generation = branch_of(stream).generate(params, run.constraint_for(node))
    cell.generation = generation
    stream.pieces.append(cell)
    run.begin(stream)
    if run.streaming:
        follow(run, cell, generation)
    done = partial(_generated, run, stream, node, cell, generation, granted, clipped)
    generation.add_done_callback(lambda _: run.post(done))
    return True


def follow(run: Run, cell: Cell, generation: Generation) -> None:
    """Copy a generation's deltas to its cell and to the run's events as they come."""
    cell.deltas = []

    def reader(delta: Delta | None) -> None:
        if delta is not None and cell.deltas is not None:
            cell.deltas.append(delta)
            run.events.append((cell, delta))
            run.notify()

    generation.subscribe(reader)


def _generated(
    run: Run, stream: Stream, node: Gen, cell: Cell, generation: Generation, granted: int,
    clipped: bool,
) -> None:  # fmt: skip
    error = generation.exception()
    used = 0 if error is not None else len(generation.result().token_ids)
    for waiting in run.budget.settle(granted, used):
        run.ready(waiting)
    if error is None and not cell.done:
        completion = generation.result()
        cell.completion = completion
        cell.forced = forced_spans(generation)
        error = _finish_value(node, cell, completion)
        if clipped and completion.finish_reason == "length":
            error = BudgetError(
                f"the generation was cut to the {granted} tokens left of "
                f"max_total_tokens={run.options.max_total_tokens}"
            )
    cell.generation = None
    if error is not None:
        run.fail(stream, node, error)
    elif not cell.done:
        cell.resolve(cell.value)
    run.ended(stream)


def _finish_value(node: Gen, cell: Cell, completion: Completion) -> BaseException | None:
    try:
        cell.value = completion.text if node.output is None else node.output.parse(completion.text)
    except Exception as error:
        return error
    return None


def forced_spans(generation: Generation) -> tuple[tuple[str, bool], ...]:
    """(text, was forced) runs of a finished generation; empty if nothing was forced."""
    usage = generation.result().usage
    if not usage.num_forced_tokens:
        return ()
    return tuple((delta.text, delta.num_forced > 0) for delta in generation.deltas)


def handle_select(run: Run, stream: Stream, node: Select) -> bool:
    """Post the scoring of the options; the stream goes on when one is chosen."""
    options = _options(run, stream, node)
    if options is None:
        return False
    branch = branch_of(stream)
    futures = [branch.score(options)]
    if needs_unconditional(node.scorer):
        neutral = run.backend.new_branch(namespace=run.options.namespace)
        neutral.extend(NEUTRAL_PROMPT)
        futures.append(neutral.score(options))
        neutral.release()
    left = [len(futures)]

    def done(_: Future[list[OptionScore]]) -> None:
        run.post(arrived)

    def arrived() -> None:
        left[0] -= 1
        if not left[0]:
            _scored(run, stream, node, options, futures)

    for future in futures:
        future.add_done_callback(done)
    return False


def _options(run: Run, stream: Stream, node: Select) -> list[str] | None:
    if isinstance(node.options, Arg):
        from radixlang.expressions import check_options

        given = list(argument(run, node.options.name))
        check_options(given)
        return given
    texts: list[str] = []
    for option in node.options:
        found = _option_text(run, stream, option)
        if found is None:
            return None
        texts.append(found)
    return texts


def _option_text(run: Run, stream: Stream, option: Option) -> str | None:
    if isinstance(option, str):
        return option
    parts = resolve_parts(run, stream, option)
    return None if parts is None else "".join(parts)


def _scored(
    run: Run, stream: Stream, node: Select, options: list[str],
    futures: list[Future[list[OptionScore]]],
) -> None:  # fmt: skip
    error = next((found for future in futures if (found := future.exception()) is not None), None)
    if error is not None:
        run.fail(stream, node, error)
        return
    details = futures[0].result()
    call = partial(scores_of, node.scorer, details, *(future.result() for future in futures[1:]))
    chosen = partial(_chosen, run, stream, node, options, details)
    if callable(node.scorer):
        offload(call, lambda value, error: run.post(partial(chosen, value, error)))
    else:
        chosen(call(), None)


def _chosen(
    run: Run, stream: Stream, node: Select, options: list[str], details: list[OptionScore],
    scores: Any, error: BaseException | None,
) -> None:  # fmt: skip
    if stream.error is not None:
        return
    if error is not None:
        run.fail(stream, node, error)
        return
    cell = run.cell(stream.block.id, node.slot, node.name)
    cell.name = node.name
    cell.choice = choose(options, scores, details)
    branch_of(stream).extend(cell.choice.text)
    stream.pieces.append(cell)
    if run.streaming:
        delta = Delta(cell.choice.text)
        cell.deltas = [delta]
        run.events.append((cell, delta))
    cell.resolve(cell.choice.text)
    run.step(stream)


def handle_fork(run: Run, stream: Stream, node: Fork) -> bool:
    """Branch the tree: one lease a child, nothing copied."""
    prefix = resolve_parts(run, stream, node.prefix) or []
    hub = branch_of(stream)
    if prefix:
        hub = hub.fork(1)[0]
        for text in prefix:
            hub.extend(text)
    branches = hub.fork(len(node.children))
    if prefix:
        hub.release()
    for child_id, branch in zip(node.children, branches, strict=True):
        child = Stream(run.blocks[child_id], branch, stream)
        child.pieces.extend(prefix)
        if node.on_error == "collect":
            child.domain = child
        run.add_stream(child)
    return True


def handle_join(run: Run, stream: Stream, node: Join) -> bool:
    """Wait for the children, bind or append what they made, and free them."""
    if not _children_ready(run, stream, node):
        return False
    stream.join_at = 0
    children = [run.streams[child] for child in node.children]
    cell = run.cell(stream.block.id, node.slot, node.name)
    values: Any = _join_values(run, node, children)
    if node.mode == "reduce":
        assert node.reducer is not None
        call = partial(node.reducer, values)
        offload(call, lambda value, error: run.post(
            partial(_reduced, run, stream, node, cell, value, error)))  # fmt: skip
        return False
    if node.mode == "text":
        text = node.separator.join(value for value in values if value is not None)
        if text:
            emit(stream, text)
    _end_join(run, node, cell, values)
    return True


def _end_join(run: Run, node: Join, cell: Cell, value: Any) -> None:
    if node.close:
        for child in node.children:
            below = run.streams[child]
            below.ended = True
            run.settle(below)
    cell.name = node.name
    cell.resolve(value)


def _reduced(
    run: Run, stream: Stream, node: Join, cell: Cell, value: Any, error: BaseException | None
) -> None:
    if stream.error is not None:
        return
    if error is not None:
        run.fail(stream, node, error)
        return
    _end_join(run, node, cell, value)
    run.step(stream)


def _children_ready(run: Run, stream: Stream, node: Join) -> bool:
    """Whether all children are done; otherwise the stream is woken by the first that is not."""
    while stream.join_at < len(node.children):
        child = run.streams[node.children[stream.join_at]]
        if not child.is_complete:
            if child.watchers is None:
                child.watchers = []
            child.watchers.append(stream)
            return False
        stream.join_at += 1
    return True


def _join_values(run: Run, node: Join, children: list[Stream]) -> list[Any]:
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
        cell = run.cell(ref.block, ref.slot) if ref is not None else None
        values.append(cell.value if cell is not None and cell.error is None else None)
    return values


def handle_adopt(run: Run, stream: Stream, node: Adopt) -> bool:
    """Go on where the child ended: its branch becomes this one's."""
    child = run.streams[node.child]
    if child.error is not None:
        raise child.error
    if not child.is_complete:
        if child.watchers is None:
            child.watchers = []
        child.watchers.append(stream)
        return False
    old, stream.branch = branch_of(stream), branch_of(child)
    child.branch, child.adopted = None, True
    old.release()
    stream.pieces.extend(child.pieces)
    stream.roles = child.roles
    return True


def handle_call(run: Run, stream: Stream, node: Call) -> bool:
    """Start a nested program on a branch of its own."""
    block = run.blocks[node.child]
    if node.scope == "isolate":
        branch = run.backend.new_branch(namespace=run.options.namespace)
        child = Stream(block, branch)
        child.domain = stream.domain
    else:
        child = Stream(block, branch_of(stream).fork(1)[0], stream)
    run.add_stream(child)
    return True


def handle_dynamic(run: Run, stream: Stream, node: Dynamic) -> bool:
    """Only a mark in the graph."""
    return True


HANDLERS: dict[type, Callable[[Any, Stream, Any], bool]] = {
    Text: handle_text,
    RoleBegin: handle_role_begin,
    RoleEnd: handle_role_end,
    Gen: handle_gen,
    Select: handle_select,
    Fork: handle_fork,
    Join: handle_join,
    Adopt: handle_adopt,
    Call: handle_call,
    Dynamic: handle_dynamic,
}
