"""From a run to its trace: blocks in order of creation, nodes with the text they appended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

from radixlang.execution.branch_run import Stream
from radixlang.execution.pieces import Cell, Piece, TurnMark, piece_text
from radixlang.execution.run import Run
from radixlang.graph.nodes import (
    Adopt,
    Answer,
    Block,
    Call,
    Contrasted,
    Fork,
    Gen,
    Join,
    Node,
    Select,
    ThoughtBegin,
)
from radixlang.protocol import Markup
from radixlang.views.spans import Pending, cached_characters, cell_spans
from radixlang.views.trace import (
    Failure,
    Lane,
    Merge,
    Nested,
    Span,
    Split,
    Status,
    Trace,
    Turn,
    Value,
    Words,
)


def trace_of(run: Run) -> Trace:
    """The trace of a run as it is now; the run may still go on."""
    builder = _Builder(run)
    lanes = tuple(builder.lanes())
    error = run.error
    return Trace(
        name=run.name,
        model_name=run.backend.model_name,
        seed=run.seed,
        status="running" if not run.loop.ended_s else "failed" if error is not None else "done",
        started_at=run.loop.started_at,
        seconds=(run.loop.ended_s or builder.now_s) - run.loop.started_s,
        arguments=dict(run.args),
        trunk=lanes[0],
        lanes=lanes,
        failure=failure_of(error),
        failed_in=builder.failed_in,
    )


def failure_of(error: BaseException | None) -> Failure | None:
    """The failure to show: the cause of a ProgramError, whose place the view shows anyway."""
    if error is None:
        return None
    cause = error.__cause__ or error
    return Failure(type(cause).__name__, str(cause))


@dataclass(frozen=True, slots=True)
class _Leaving:
    """The parent's position at which a branch leaves it."""

    pending: Pending
    ready_s: float
    num_characters: int
    is_in_turn: bool


class _Place:
    """The position in one lane while it is built."""

    __slots__ = ("failure", "is_in_turn", "lane", "num_characters", "pending", "ready_s")

    def __init__(self, lane: Lane, left: _Leaving | None = None) -> None:
        self.lane = lane
        self.is_in_turn = left.is_in_turn if left else False
        self.failure: BaseException | None = None  # of its first generation that failed
        self.pending = Pending(left.pending if left else None)
        self.num_characters = left.num_characters if left else 0  # from the start of the prompt
        self.ready_s = left.ready_s if left else 0.0  # when its latest operation had ended

    def leaving(self) -> _Leaving:
        """The position from which a branch that leaves here begins."""
        return _Leaving(self.pending, self.ready_s, self.num_characters, self.is_in_turn)


class _Builder:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.now_s = time.monotonic()
        self.failed_in: Lane | None = None
        self._lanes: dict[int, Lane] = {0: Lane(0, "trunk", 0)}
        self._left: dict[int, _Leaving] = {}
        self._tails: dict[int, Pending] = {}  # what is open at the end of an adopted branch
        self._told: list[tuple[float, float, Pending]] = []  # when, characters cached, of what
        self._splits: dict[int, Split] = {}  # first child → its fork

    def lanes(self) -> Iterator[Lane]:
        """Every branch, parents before children, without blocks to which nothing forks."""
        for block in tuple(self.run.blocks):
            lane = self._lanes.get(block.id)
            if lane is not None:
                self._fill(lane, block)
                yield lane
        for _, num_cached, pending in sorted(self._told, key=itemgetter(0)):
            pending.settle(num_cached)

    def _fill(self, lane: Lane, block: Block) -> None:
        stream = self.run.streams.get(block.id)
        nodes = list(block.nodes)
        if stream is None:
            lane.status = "stopped" if self.run.loop.ended_s else "running"
            lane.unreached = tuple(_told(nodes))
            return
        ends, pieces = list(stream.piece_ends), list(stream.pieces)
        place = _Place(lane, self._left.get(block.id) if stream.base is not None else None)
        start = 0
        for index, node in enumerate(nodes[: len(ends) + 1]):
            end = ends[index] if index < len(ends) else len(pieces)
            self._add_node(place, node, pieces[start:end], index < len(ends))
            start = end
        if block.id in self._tails:
            self._tails[block.id].above = place.pending
        left = nodes[len(ends) :]
        is_begun = bool(left) and isinstance(left[0], Select) and _ends_with(lane, left[0])
        lane.unreached = tuple(_told(left[1:] if is_begun else left))
        self._end(lane, stream, is_over=not left)

    # -- nodes --------------------------------------------------------------------------

    def _add_node(self, place: _Place, node: Node, pieces: list[Piece], is_done: bool) -> None:
        location = _place_name(node)
        if isinstance(node, Adopt) or (isinstance(node, Answer) and node.keep):
            self._adopt(place, node, pieces, location)
            return
        if isinstance(node, Answer):
            self._answer(place, node, pieces, location)
            return
        for piece in pieces:
            self._add_piece(place, node, piece, location)
        if isinstance(node, Select) and not is_done:
            self._unfinished(place, node, location)
        elif isinstance(node, Fork) and is_done:
            self._split(place, node, location)
        elif isinstance(node, Call) and is_done:
            self._call(place, node, location)
        elif isinstance(node, Join) and is_done:
            self._merge(place.lane, node.children, _merge_of(node, location))

    def _add_piece(self, place: _Place, node: Node, piece: Piece, location: str) -> None:
        text = piece_text(piece)
        if isinstance(piece, Cell) and isinstance(node, Contrasted):
            self._take_part(place, node, piece, location)
        elif isinstance(piece, Cell):
            assert isinstance(node, (Gen, Select))
            self._add_value(place, node, piece, location)
        elif isinstance(piece, TurnMark):
            place.lane.steps.append(Turn(piece.role, piece.begins))
            place.is_in_turn = piece.begins
        elif text:
            words = Words([Span("computed", text)], isinstance(piece, Markup), location)
            place.lane.steps.append(words)
            place.pending.add(words, place.num_characters)
        place.num_characters += len(text)

    def _add_value(self, place: _Place, node: Gen | Select, cell: Cell, location: str) -> None:
        num_cached = cached_characters(cell, place.num_characters)
        if num_cached is not None:
            self._told.append((cell.posted_s, num_cached, place.pending))
            place.pending = Pending()
        place.lane.steps.append(self._value(place, node, cell, location))

    def _unfinished(self, place: _Place, node: Select, location: str) -> None:
        """A select that waits for its scores, or failed."""
        cell = self.run.cells.get((place.lane.id << 24) | node.slot)
        if cell is not None and cell.posted_s:
            place.lane.steps.append(self._value(place, node, cell, location))

    def _value(self, place: _Place, node: Gen | Select, cell: Cell, location: str) -> Value:
        completion = cell.completion
        value = Value(
            id=f"v{place.lane.id}-{node.slot}",
            slot=node.slot,
            kind="gen" if isinstance(node, Gen) else "select",
            name=node.name,
            status=_status_of(cell),
            spans=cell_spans(cell, self.run.backend),
            location=location,
            choice=cell.choice,
            params=cell.params,
            is_in_turn=place.is_in_turn,
            usage=completion.usage if completion is not None else None,
            finish_reason=completion.finish_reason if completion is not None else "",
            stop_reason=completion.stop_reason if completion is not None else None,
            value=None if cell.error is not None or str(cell.value) == cell.text else cell.value,
        )
        if value.status == "failed" and place.failure is cell.failure:
            value.status = "stopped"  # by the error of an earlier value of this branch
        elif value.status == "failed":
            place.failure = cell.failure
            value.failure = failure_of(cell.failure)
        self._set_times(place, value, cell)
        return value

    def _set_times(self, place: _Place, value: Value, cell: Cell) -> None:
        """An operation begins once it is posted and the one before it on its branch is done."""
        zero = self.run.loop.started_s
        start = max(cell.posted_s - zero, place.ready_s)
        end = (cell.ended_s or self.now_s) - zero
        value.start_s, value.end_s = start, max(start, end)
        usage = value.usage
        if (
            usage is not None and usage.time_to_first_token_s
        ):  # counted from the backend's own start
            first = end - usage.total_s + usage.time_to_first_token_s
            value.first_s = first if start < first <= value.end_s else None
        place.ready_s = value.end_s

    # -- branches -----------------------------------------------------------------------

    def _split(self, place: _Place, node: Fork, location: str) -> None:
        split = Split([], location)
        for child in node.children:
            block = self.run.blocks[child]
            thinks = bool(block.nodes) and isinstance(block.nodes[0], ThoughtBegin)
            label = ("thought " if thinks else "branch ") + ".".join(map(str, block.path))
            lane = Lane(child, label, place.lane.depth + 1, block.path)
            self._lanes[child] = lane
            self._left[child] = place.leaving()
            split.branches.append(lane)
        self._splits[node.children[0]] = split
        place.lane.steps.append(split)
        place.pending = Pending(place.pending)

    def _call(self, place: _Place, node: Call, location: str) -> None:
        path = self.run.blocks[node.child].path
        lane = Lane(node.child, node.program, place.lane.depth + 1, path)
        self._lanes[node.child] = lane
        self._left[node.child] = place.leaving()
        place.lane.steps.append(Nested(node.program, node.scope, lane, location))

    def _answer(self, place: _Place, node: Answer, pieces: list[Piece], location: str) -> None:
        """The answer of a branch that has thought, as text that goes on here."""
        names = [node.name] if node.name else []
        for piece in pieces:
            merge = Merge("answers", names, (), location)
            self._merge(place.lane, range(node.child, node.child + 1), merge)
            words = Words([Span("computed", piece_text(piece))], False, location)
            place.lane.steps.append(words)
            place.pending.add(words, place.num_characters)
            place.num_characters += len(piece_text(piece))

    def _take_part(self, place: _Place, node: Contrasted, cell: Cell, location: str) -> None:
        """The tokens of a contrast, on the branch whose logits took part in it."""
        names = [node.name] if node.name else []
        first = self._lanes.get(node.block)
        labels = () if first is None else (first.label,)
        place.lane.steps.append(Merge("contrasted", names, labels, location))
        words = Words([Span("computed", cell.text)], False, location)
        place.lane.steps.append(words)
        place.pending.add(words, place.num_characters)

    def _adopt(
        self, place: _Place, node: Adopt | Answer, pieces: list[Piece], location: str
    ) -> None:
        """Continue where a branch ended; its pieces are drawn where they were generated."""
        lane, child = place.lane, self._lanes[node.child]
        place.num_characters += sum(len(piece_text(piece)) for piece in pieces)
        place.pending = Pending(self._tails.setdefault(node.child, Pending()))
        if not any(isinstance(step, Nested) and step.lane is child for step in lane.steps):
            first = node.child - self.run.blocks[node.child].index
            self._merge(lane, range(first, first + 1),
                        Merge("goes on", [child.label], (), location))  # fmt: skip

    def _merge(self, lane: Lane, children: range, merge: Merge) -> None:
        """Join branches: at the end of their fork if that is the latest step, else here."""
        split = self._splits.get(children[0])
        merge.labels = tuple(each.label for each in split.branches) if split is not None else ()
        latest = lane.steps[-1] if lane.steps else None
        if split is not None and latest is split:
            latest = split.joined
            if latest is None:
                split.joined = merge
                return
        if isinstance(latest, Merge) and (latest.verb, latest.labels) == (merge.verb, merge.labels):
            latest.names += merge.names
        else:
            lane.steps.append(merge)

    def _end(self, lane: Lane, stream: Stream, is_over: bool) -> None:
        """Set the lane's status, and its error unless one of its values shows it."""
        values = list(lane.values())
        if stream.failure is not None:
            lane.status = "failed"
            if self.failed_in is None and stream.failure is self.run.error:
                self.failed_in = lane
            if not any(value.status == "failed" for value in values):
                lane.failure = failure_of(stream.failure)
        elif stream.was_stopped or (self.run.loop.ended_s and not is_over):
            lane.status = "stopped"
        elif not stream.is_complete and not self.run.loop.ended_s:
            lane.status = "running"


def _ends_with(lane: Lane, node: Select) -> bool:
    """Whether the latest step is this select."""
    return bool(lane.steps) and getattr(lane.steps[-1], "id", "") == f"v{lane.id}-{node.slot}"


def _merge_of(node: Join, location: str) -> Merge:
    verb = {"text": "joined as text", "reduce": "reduced"}.get(node.mode, "joined")
    return Merge(verb, [node.name] if node.name and node.mode != "text" else [], (), location)


def _status_of(cell: Cell) -> Status:
    from radixlang.errors import CancelledError

    if not cell.done:
        return "running"
    if cell.error is None:
        return "done"
    if cell.failure is not None and not isinstance(cell.failure, CancelledError):
        return "failed"
    return "stopped"


def _told(nodes: list[Node]) -> Iterator[str]:
    """The results that nodes would have had, in a word or two each."""
    for node in nodes:
        if isinstance(node, (Gen, Select)):
            kind = "gen" if isinstance(node, Gen) else "select"
            yield f"{kind} {node.name}" if node.name else kind
        elif isinstance(node, Fork):
            yield f"fork of {len(node.children)}"
        elif isinstance(node, Join) and node.mode != "wait":
            yield f"join {node.name}" if node.name else "join"
        elif isinstance(node, Call):
            yield node.program


def _place_name(node: Node) -> str:
    """The node's file:line, without the folder."""
    location = node.location
    return "" if location is None else f"{location.file.rsplit('/', 1)[-1]}:{location.line}"
