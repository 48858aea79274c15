"""Progress bars over rows, for a person at a terminal."""

from __future__ import annotations

from typing import Any

DELAY_S = 0.5  # what is done sooner shows no bar


def row_bar(num_rows: int, *, wanted: bool | None = None) -> Any:
    """A bar of tqdm to `update(1)` and `close()`.

    Args:
        wanted: None shows it on a terminal and nowhere else; True and False say so themselves.
    """
    from tqdm import tqdm

    return tqdm(
        total=num_rows, unit="row", leave=bool(wanted), delay=0 if wanted else DELAY_S,
        disable=None if wanted is None else not wanted,
    )  # fmt: skip
