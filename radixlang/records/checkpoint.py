"""Checkpoints: a state's prompt and variables as JSON, and a new run that continues from there.

Generated tokens are saved as tokens, so the resumed prompt is the same token by token, and a
runtime that still has it cached computes nothing again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from radixlang.constraints.typed_values import to_json
from radixlang.default_runtime import runtime_or_default
from radixlang.execution.branch_run import Stream
from radixlang.execution.handlers.prompt_parts import (
    branch_of,
    emit,
    extend_generated,
    num_healed,
)
from radixlang.execution.pieces import Cell, Piece, Rewritten, TurnMark, num_completed, piece_text
from radixlang.execution.run import Run
from radixlang.execution.run_options import RunOptions
from radixlang.graph.graph_json import check_version
from radixlang.protocol import Backend, Completion, Markup
from radixlang.records.file_fields import Fields, check_fields, check_namespace
from radixlang.records.typed_json import restored, types_of
from radixlang.sampling_params import SamplingKeywords, SamplingParams
from radixlang.state.state import State

if TYPE_CHECKING:
    from typing_extensions import Unpack

_KIND, _VERSION = "checkpoint", 2
_PIECE = (
    {"turn": (str, type(None)), "begins": bool},
    {"markup": str},
    {"text": str, "tokens": [int]},
    {"text": str, "tokens": type(None)},
)
_FIELDS = {
    "program": str, "model": str, "seed": int, "open_role": (str, type(None)), "roles": [str],
    "pieces": [_PIECE], "values": dict, "types": (dict, type(None)),
}  # fmt: skip


def take_checkpoint(state: State) -> dict[str, object]:
    """A state as JSON data. Waits for the state's pending generations.

    A runtime with a disk tier writes the state's keys and values there, so that the one that
    resumes computes them no more, in another process too.
    """
    stream = state._reader.settled()
    run = state._run()
    if stream.branch is not None:
        stream.branch.keep()
    values = state.values()
    return {
        "kind": _KIND,
        "version": _VERSION,
        "program": run.name,
        "model": run.backend.model_name,
        "seed": run.seed,
        "namespace": run.options.namespace,
        "open_role": state._role,
        "roles": list(stream.roles),
        "pieces": _pieces(stream),
        "values": to_json(values),
        "types": types_of(values),
    }


def _pieces(stream: Stream) -> list[dict[str, Any]]:  # see _PIECE
    pieces: list[dict[str, Any]] = []  # a text, or a turn
    for piece in stream.history():
        left = num_completed(piece)
        for before in reversed(pieces):
            if not left:
                break
            text = before["text"]
            before["text"], left = text[: max(0, len(text) - left)], max(0, left - len(text))
        pieces.append(_piece(piece))
    return pieces


def _piece(piece: Piece) -> dict[str, Any]:  # one of the forms of _PIECE
    if isinstance(piece, TurnMark):
        return {"turn": piece.role, "begins": piece.begins}
    if isinstance(piece, Cell):
        if piece.completion is None:
            return {"text": piece_text(piece)}
        return {"text": piece_text(piece), "tokens": list(piece.completion.token_ids)}
    if isinstance(piece, Rewritten):
        return {"text": str(piece), "content": piece.content}
    return {"markup" if isinstance(piece, Markup) else "text": str(piece)}


class Resumed:
    """`with resume(data) as s:` continues a saved state; the end of the block finishes it."""

    def __init__(self, run: Run, state: State) -> None:
        self._run = run
        self.state = state

    def __enter__(self) -> State:
        return self.state

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._run.fail_from_program(error)
            return
        try:
            self._run.end_program()
            self._run.readers.wait(lambda: self._run.finished)
        except BaseException:  # an interrupt: nobody will read the running rest
            self._run.cancel()
            raise
        if self._run.error is not None:
            raise self._run.error


def resume(
    data: Fields, *, runtime: Backend | None = None, timeout: float | None = None,
    max_total_tokens: int | None = None, namespace: str | None = None,
    **defaults: Unpack[SamplingKeywords],
) -> Resumed:  # fmt: skip
    """Continue from a checkpoint, on the same model or another, in the checkpoint's namespace.

    Args:
        namespace: the one that the caller expects; a checkpoint of another one is refused. None
            takes the checkpoint's.

    Raises:
        ParameterError: the data is not a checkpoint, it has another namespace, or an option is
            unknown.
    """
    check_version(data, _KIND, _VERSION)
    check_fields(data, _FIELDS, _KIND)
    kept = check_namespace(data.get("namespace"), namespace, _KIND)
    backend = runtime_or_default(runtime)
    options = RunOptions(data["seed"], SamplingParams.checked(**defaults), timeout,
                         max_total_tokens, kept)  # fmt: skip
    run = Run(data["program"], backend, options).start()
    state = State(run, run.blocks[0], role=data.get("open_role"))
    for name, value in restored(data["values"], data.get("types") or {}).items():
        state[name] = value
    same_model = backend.model_name == data["model"]
    run.loop.post(lambda: _refill(run.streams[0], backend, data, same_model))
    return Resumed(run, state)


def _refill(stream: Stream, backend: Backend, data: Fields, same_model: bool) -> None:
    pieces = data["pieces"]
    cuts = _cuts(pieces, backend) if same_model else [0] * len(pieces)
    for piece, cut in zip(pieces, cuts, strict=True):
        if "turn" in piece:
            stream.pieces.append(TurnMark(piece["turn"], piece["begins"]))
        elif "markup" in piece:
            emit(stream, Markup(piece["markup"]))
        elif same_model and "tokens" in piece:
            extend_generated(branch_of(stream), backend, piece["tokens"], piece["text"])
            stream.pieces.append(_finished(piece))
        elif "content" in piece:
            emit(stream, Rewritten(piece["text"], piece["content"]))
        elif cut:
            branch_of(stream).extend(piece["text"][:-cut])
            stream.pieces.append(piece["text"])
        else:
            emit(stream, piece["text"])
    stream.roles = tuple(data["roles"])


def _cuts(pieces: Sequence[Fields], backend: Backend) -> list[int]:
    """Characters at the end of each text that the tokens of a healed generation after it have."""
    cuts, left = [0] * len(pieces), 0
    for index in range(len(pieces) - 1, -1, -1):
        piece = pieces[index]
        if "tokens" in piece:
            left = num_healed(backend, piece["tokens"], piece["text"])
        elif "text" in piece and "content" not in piece:
            cuts[index] = min(left, len(piece["text"]))
            left -= cuts[index]
        else:
            left = 0
    return cuts


def _finished(piece: Fields) -> Cell:
    cell = Cell(0)
    cell.completion = Completion(piece["text"], tuple(piece["tokens"]), "eos")
    cell.resolve(piece["text"])
    return cell
