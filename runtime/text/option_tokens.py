"""Many options after one run of text, tokenised without tokenising the whole run each time.

Tokens depend only on the text near them. So a long run is cut at a blank well before its end, and
only the part after the cut is tokenised again with each option. Whether the cut changes tokens is
tested on the run and on some of the options; if it does, every option is tokenised in full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from radixlang.protocol import Markup

MANY_OPTIONS = 16
LONG_RUN = 512  # characters from which a cut pays
KEPT_CHARS = 256  # characters before the options that are always tokenised with them

Encode = Callable[[Sequence[str]], list[int]]


def option_runs(
    pieces: Sequence[str], options: Sequence[str], encode: Encode, encode_rest: Encode
) -> list[list[int]]:
    """Token ids of pieces + option, for every option.

    Args:
        pieces: the run before the options, str or Markup.
        encode: tokenises a run from its beginning.
        encode_rest: tokenises the end of a run.
    """
    if len(options) > MANY_OPTIONS and sum(map(len, pieces)) > LONG_RUN:
        head, rest = _cut(pieces)
        runs = _with_cut(pieces, head, rest, options, encode, encode_rest) if head else None
        if runs is not None:
            return runs
    return [encode((*pieces, option)) for option in options]


def _with_cut(
    pieces: Sequence[str],
    head: Sequence[str],
    rest: Sequence[str],
    options: Sequence[str],
    encode: Encode,
    encode_rest: Encode,
) -> list[list[int]] | None:
    """The runs tokenised with a cut; None if tests show that the cut changes tokens."""
    head_ids = encode(head)
    if encode(pieces) != head_ids + encode_rest(rest):
        return None
    runs = [head_ids + encode_rest((*rest, option)) for option in options]
    probes = {0, len(options) - 1, max(range(len(options)), key=lambda i: len(options[i]))}
    good = all(encode((*pieces, options[i])) == runs[i] for i in probes)
    return runs if good else None


def _cut(pieces: Sequence[str]) -> tuple[list[str], list[str]]:
    """The text up to the last blank that is far enough from the end, and the rest."""
    num_after = 0
    for index in range(len(pieces) - 1, -1, -1):
        piece = pieces[index]
        stop = min(len(piece), len(piece) + num_after - KEPT_CHARS)
        place = max((piece.rfind(blank, 1, max(stop, 0)) for blank in " \n"), default=-1)
        if place > 0:
            kind = Markup if isinstance(piece, Markup) else str
            left, right = kind(piece[:place]), kind(piece[place:])
            return [*pieces[:index], left], [right, *pieces[index + 1 :]]
        num_after += len(piece)
    return [], list(pieces)
