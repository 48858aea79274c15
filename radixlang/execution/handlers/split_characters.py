"""Characters whose bytes two generations share: `max_tokens` may cut inside a character.

The text of the first generation alone shows a replacement character there. In the prompt, where
the next generation writes the rest of it, the character is whole: the later one completes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from radixlang.execution.branch_run import Stream
from radixlang.execution.pieces import REPLACEMENT, Cell, Piece, joined_text
from radixlang.protocol import Completion

Decode = Callable[[Sequence[int]], str]


def complete_character(stream: Stream, cell: Cell, decode: Decode) -> None:
    """Let a finished generation complete the character that those right before it cut."""
    chain = _broken_before(stream, cell)
    if not chain:
        return
    first = _completion(chain[0])
    ids = [token for each in (*chain, cell) for token in _completion(each).token_ids]
    whole = decode(ids)
    begin = decode(first.token_ids).rstrip(REPLACEMENT)
    end = decode(_completion(cell).token_ids).lstrip(REPLACEMENT)
    is_cut_of = whole.startswith(begin) and whole[len(begin) :].endswith(end)
    if not is_cut_of or not begin.endswith(first.text.rstrip(REPLACEMENT)):
        return  # a stop string cut its text, which differs from that of its tokens
    middle = whole[len(begin) : len(whole) - len(end)]
    shown = joined_text(chain)
    num_broken = len(shown) - len(shown.rstrip(REPLACEMENT))
    cell.completes = (num_broken, middle + _completion(cell).text.lstrip(REPLACEMENT))


def _broken_before(stream: Stream, cell: Cell) -> list[Cell]:
    """The generations right before this one that end inside a character, in order."""
    chain: list[Cell] = []
    for piece in _pieces_before(stream, cell):
        if not isinstance(piece, Cell) or piece.completion is None:
            break
        text = piece.text
        if not text.endswith(REPLACEMENT):
            break
        chain.append(piece)
        if text.strip(REPLACEMENT):
            break
    return chain[::-1]


def _pieces_before(stream: Stream, cell: Cell) -> Iterator[Piece]:
    """The pieces of the prompt before a cell, the last first."""
    at: Stream | None = stream
    pieces = stream.pieces
    start = next(index for index in range(len(pieces) - 1, -1, -1) if pieces[index] is cell)
    while at is not None:
        for index in range(start - 1, -1, -1):
            yield at.pieces[index]
        start, at = at.base_length, at.base


def _completion(cell: Cell) -> Completion:
    assert cell.completion is not None
    return cell.completion
