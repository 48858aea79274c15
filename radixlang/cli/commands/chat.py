"""`radixlang chat`: a conversation with a model, whose answers are shown as they are generated.

One program runs for the whole conversation and waits for each line. So every turn continues where
the last one ended, and no token is computed twice.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
from collections.abc import Iterator
from pathlib import Path

from radixlang.cli._runtime import Opened, opened_runtime, sampling_of_model
from radixlang.cli.last_run import keep, left_tree
from radixlang.cli.programs import read_text, run_options
from radixlang.errors import ParameterError
from radixlang.keywords import RunKeywords
from radixlang.program.program import Program
from radixlang.records.json_text import dump_json
from radixlang.state.expressions.builders import gen, system, user
from radixlang.state.state import State
from radixlang.views.spans import printable

MAX_TOKENS = 512  # an answer, unless --max-tokens says otherwise
HELP = """\
/help        this
/tree        what the conversation left in the cache, and what sharing saved
/save FILE   write the conversation: .json as messages, .html as the view of the run, else as text
/quit        end; so does the end of the input
Ctrl-C stops an answer and keeps what there is of it."""


def run(args: argparse.Namespace) -> int:
    """Returns 0; a failed answer raises its error."""
    text = args.system or ""
    opening = read_text(text[1:]) if text.startswith("@") else text
    with opened_runtime(args) as runtime:
        options: RunKeywords = {
            "max_tokens": MAX_TOKENS,
            **sampling_of_model(runtime),
            **run_options(args),
        }
        try:
            Conversation(runtime, opening, options, as_json=args.json).hold()
        finally:
            keep(left_tree("chat", runtime))
    return 0


class Conversation:
    """The user's lines, and the program that answers them."""

    def __init__(
        self, runtime: Opened, opening: str, options: RunKeywords, *, as_json: bool
    ) -> None:
        self._runtime = runtime
        self._opening = opening
        self._options = options
        self._as_json = as_json
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._messages: list[dict[str, str]] = []
        if opening:
            self._messages.append({"role": "system", "content": opening})

    def hold(self) -> None:
        """Answer until the input ends."""
        program: Program[...] = Program(self._program, "chat")
        with program.stream(runtime=self._runtime, **self._options) as stream:
            for line in _lines():
                if line.startswith("/"):
                    if not self._command(line, stream.state):
                        break
                elif line:
                    self._answer(line, stream.state)
            self._said.put(None)
            for _ in stream.text():  # to the end of the program
                pass

    def _program(self, s: State) -> None:
        if self._opening:
            s += system(self._opening)
        count = 0
        while (line := self._said.get()) is not None:
            s += user(line)
            with s.assistant():
                s += gen(_name(count))
            s.completion(_name(count))
            count += 1

    # -- a turn -------------------------------------------------------------------------

    def _answer(self, line: str, state: State) -> None:
        name = _name(sum(message["role"] == "user" for message in self._messages))
        self._messages.append({"role": "user", "content": line})
        self._said.put(line)
        self._show(state, name)
        reason = state.completion(name).finish_reason
        self._messages.append({"role": "assistant", "content": state[name]})
        if self._as_json:
            print(dump_json({**self._messages[-1], "finish_reason": reason}), flush=True)
        elif reason == "length":
            _note(f"the answer was cut at {self._options['max_tokens']} tokens; --max-tokens N")

    def _show(self, state: State, name: str) -> None:
        """Print the answer while it is generated; an interrupt ends it and keeps its text."""
        try:
            for piece in state.stream(name):
                if not self._as_json:
                    print(printable(piece), end="", flush=True)
        except KeyboardInterrupt:
            state.stop(name)
            state.completion(name)
        if not self._as_json:
            print(flush=True)

    # -- commands -----------------------------------------------------------------------

    def _command(self, line: str, state: State) -> bool:
        """Whether the conversation goes on."""
        name, _, rest = line.partition(" ")
        if name in ("/quit", "/exit"):
            return False
        if name == "/tree":
            print(printable(str(left_tree("chat", self._runtime))))
        elif name == "/save":
            self._save(rest.strip(), state)
        else:
            print(HELP if name == "/help" else f"there is no {name}\n{HELP}")
        return True

    def _save(self, path: str, state: State) -> None:
        try:
            if not path:
                raise ParameterError("/save needs a name: /save talk.json")
            _write(Path(path), self._messages, state)
        except (OSError, ParameterError) as error:
            _note(str(error))
        else:
            _note(f"saved {len(self._messages)} messages in {path}")


def _write(path: Path, messages: list[dict[str, str]], state: State) -> None:
    if path.suffix == ".html":
        state.to_html(path)
    elif path.suffix == ".json":
        path.write_text(dump_json(messages, indent=2) + "\n", encoding="utf-8")
    else:
        parts = [f"{message['role']}: {message['content']}\n" for message in messages]
        path.write_text("\n".join(parts), encoding="utf-8", errors="replace")


def _name(turn: int) -> str:
    return f"answer_{turn + 1}"


def _note(text: str) -> None:
    print(printable(text), file=sys.stderr)


def _lines() -> Iterator[str]:
    """The user's lines: with a prompt at a terminal, else read from stdin."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\r\n") for line in sys.stdin)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - input() then edits lines and remembers them
    _note("/help says what there is; Ctrl-C stops an answer")
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
