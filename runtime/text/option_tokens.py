"""Many options behind one run of text, tokenised without tokenising the run each time.

Tokens depend on the text near them only. So a long run is cut at a blank well before its end, and
only what follows the cut is tokenised again with each option. Whether that is right here is tested
on the run itself and on some of the options; if it is not, every option is tokenised in full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from radixlang.protocol import Markup

MANY_OPTIONS = 16
LONG_RUN = 512  # characters from which cutting pays
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
    """The runs by way of a cut, None where tests show that the cut leaves a trace."""
    head_ids = encode(head)
    if encode(pieces) != head_ids + encode_rest(rest):
        return None
    runs = [head_ids + encode_rest((*rest, option)) for option in options]
    probes = {0, len(options) - 1, max(range(len(options)), key=lambda i: len(options[i]))}
    good = all(encode((*pieces, options[i])) == runs[i] for i in probes)
    return runs if good else None


def _cut(pieces: Sequence[str]) -> tuple[list[str], list[str]]:
    """Everything up to the last blank that is far enough from the end, and what follows."""
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
