"""The check of a finished text in a separate process, which can be ended at any time.

It is for grammars whose terminals may take lark's backtracking lexer exponential time: one regex
match is a single call into C, which this process could not stop.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

from radixlang.constraints.specs import Grammar
from radixlang.errors import ConstraintError

MAX_OUTSIDE_S = 5.0
_CODE = "from radixlang.runtime.constraints.grammar.subprocess_check import answer; answer()"


def check_outside(spec: Grammar, text: str) -> None:
    """Parse a finished text with lark.

    Raises:
        ConstraintError: lark cannot parse it, or takes more than MAX_OUTSIDE_S seconds.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CODE],
            input=pickle.dumps((spec, text)),
            stdout=subprocess.PIPE,
            timeout=MAX_OUTSIDE_S,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise ConstraintError(f"the finished text could not be checked: {error}") from None
    message: str = pickle.loads(done.stdout)
    if message:
        raise ConstraintError(message)


def answer() -> None:
    """Run in the other process: read a grammar and a text, write the text's error."""
    from radixlang.runtime.constraints.grammar.loading import load
    from radixlang.runtime.constraints.grammar.lowering import FinishedText

    spec, text = pickle.load(sys.stdin.buffer)
    message = ""
    try:
        FinishedText(load(spec)).tree(text)
    except ConstraintError as error:
        message = str(error)
    sys.stdout.buffer.write(pickle.dumps(message))
