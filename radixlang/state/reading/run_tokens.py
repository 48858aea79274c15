"""From a run to the paths of its tokens, for `State.tree`."""

from __future__ import annotations

from collections.abc import Iterator

from radixlang.errors import ParameterError
from radixlang.execution.branch_run import Stream
from radixlang.execution.pieces import Cell
from radixlang.execution.run import Run
from radixlang.protocol import Completion, Origin
from radixlang.rollouts.token_tree import Path, Token, TokenTree


def tree_of(run: Run) -> TokenTree:
    """The tree of a run's tokens.

    Raises:
        ParameterError: the backend does not tell the tokens of its prompts.
    """
    paths = _Paths(run)
    for stream in run.iter_streams():
        for cell in _generations(stream):
            paths.of(cell)
    return TokenTree(paths.unfinished())


class _Paths:
    """The paths that end with generations, each made once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._found: dict[Cell, Path] = {}
        self._continued: set[Cell] = set()  # generations that another one has read

    def of(self, cell: Cell) -> Path:
        """The tokens up to the end of a generation."""
        found = self._found.get(cell)
        if found is None:
            found = self._found[cell] = Path(
                self._tokens(cell), self._run.blocks[cell.block].path, cell.name
            )
        return found

    def unfinished(self) -> list[Path]:
        """Paths that no later generation continues."""
        return [path for cell, path in self._found.items() if cell not in self._continued]

    def _tokens(self, cell: Cell) -> tuple[Token, ...]:
        completion = cell.completion
        assert completion is not None
        origin = _origin_of(completion)
        ids = tuple(int(token_id) for token_id in origin.prompt_ids)
        generated = _generated(completion, origin)
        for earlier in self._before(cell):
            path = self.of(earlier).tokens
            if tuple(token.token_id for token in path) == ids[: len(path)]:
                self._continued.add(earlier)
                return (*path, *map(Token, ids[len(path) :]), *generated)
        return (*map(Token, ids), *generated)

    def _before(self, cell: Cell) -> Iterator[Cell]:
        """Generations before one on its branch, latest first. The answer of a thought is among
        them, though its own path is another: the thought's."""
        cells = list(_generations(self._run.streams[cell.block]))
        yield from reversed(cells[: cells.index(cell)])


def _generations(stream: Stream) -> Iterator[Cell]:
    for piece in stream.history():
        if isinstance(piece, Cell) and piece.completion is not None:
            yield piece


def _origin_of(completion: Completion) -> Origin:
    if completion.origin is None:
        raise ParameterError(
            "tree() needs the tokens of every prompt, which this backend does not tell"
        )
    return completion.origin


def _generated(completion: Completion, origin: Origin) -> Iterator[Token]:
    forced = set(origin.forced)
    logprobs = completion.logprobs or ()
    known = len(logprobs) == len(completion.token_ids)
    for index, token_id in enumerate(completion.token_ids):
        yield Token(
            token_id,
            "forced" if index in forced else "sampled",
            origin.weights_version,
            origin.adapter,
            logprobs[index].logprob if known else None,
        )
