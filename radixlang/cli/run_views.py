"""The views of `radixlang run`: pages and the live view."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from radixlang.errors import ParameterError
from radixlang.state.listeners import on_run
from radixlang.state.state import State
from radixlang.views.live import LiveView, follow

_LIVE_S = 1.0  # seconds after which a live page is rewritten


def check_views(args: argparse.Namespace) -> None:
    """Check that a batch asks for no view of a single run, and that folders exist.

    Raises:
        ParameterError: names the option and the remedy.
    """
    for name in ("text", "tree", "live"):
        if args.rows and getattr(args, name):
            raise ParameterError(f"--{name} shows a single run; with --rows, --html FILE writes a "
                                 "page for every row")  # fmt: skip
    for name in ("html", "live"):
        path = getattr(args, name)
        if path and not Path(path).resolve().parent.is_dir():
            raise ParameterError(f"--{name} {path}: there is no folder {Path(path).parent}")


@contextmanager
def views_of_a_run(args: argparse.Namespace) -> Iterator[None]:
    """A context for a single run; writes its page and live view even if it fails."""
    ended: list[State] = []
    growing: list[LiveView] = []

    def show_live(state: State) -> None:
        if args.live:
            growing.append(follow(state._run(), args.live, _LIVE_S))

    with on_run(show_live, when="start"), on_run(ended.append):
        try:
            yield
        except Exception:
            if args.tree and not args.json and ended:
                print(ended[0].show(color=sys.stdout.isatty()))
            raise
        finally:
            for state in ended if args.html else ():
                state.to_html(args.html)
            for view in growing:
                view.wait()


def write_row_page(args: argparse.Namespace, index: int, state: State | None) -> None:
    """A row's page: `view.html` becomes `view-7.html`. A row that was resumed has none."""
    if args.html and state is not None:
        path = Path(args.html)
        state.to_html(path.with_name(f"{path.stem}-{index}{path.suffix}"))
