"""Python regexes, parsed by Python's own parser and translated to patterns."""

from __future__ import annotations

import re
import warnings

from radixlang.errors import InvalidConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints.regex.regex_items import Item, flatten, parser, with_caret
from radixlang.runtime.constraints.regex.regex_translation import Translation, translate_items

MAX_PATTERN_CHARS = 100_000


def translate(source: str, flags: int = 0, *, whole: bool = True) -> Translation:
    """A Python regex as a pattern.

    Args:
        source: the regex.
        flags: of the `re` module.
        whole: it must match a whole text; False for a token inside a text.

    Raises:
        InvalidConstraintError: Python cannot compile it.
        UnsupportedConstraintError: it has a construct that is not regular, which is named.
    """
    items = read_python(source, flags)
    return translate_items(items, source, whole=whole)


def read_python(source: str, flags: int = 0) -> list[Item]:
    """The parts of a Python regex.

    Raises:
        InvalidConstraintError: Python cannot compile it.
        UnsupportedConstraintError: it is too long, or nested too deeply.
    """
    if len(source) > MAX_PATTERN_CHARS:
        raise UnsupportedConstraintError(
            f"the regex has {len(source)} characters; at most {MAX_PATTERN_CHARS} are taken"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about a future syntax of nested sets
            parsed = parser.parse(source, flags)
    except re.error as error:
        raise InvalidConstraintError(
            with_caret(source, error.pos, f"bad regex: {error.msg}")
        ) from None
    except RecursionError:
        raise UnsupportedConstraintError("the regex is nested too deeply") from None
    except OverflowError as error:
        raise InvalidConstraintError(f"bad regex: {error}") from None
    return flatten(parsed, parsed.state.flags)
