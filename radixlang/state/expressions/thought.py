"""`gen("a", think=256)`: the options of a thought, checked."""

from __future__ import annotations

from dataclasses import dataclass

from radixlang.errors import ParameterError
from radixlang.keywords import THINK_NAMES


@dataclass(frozen=True, slots=True)
class Think:
    """The options of a thought: most tokens, whether it stays in the prompt, and its tags."""

    budget: int
    keep: bool
    tags: tuple[str, str] | None


def thought_name(name: str) -> str:
    """The variable of a generation's thought."""
    return f"{name}.thought"


def take_think(options: dict[str, object]) -> Think | None:
    """Take the options of a thought out of a gen's options.

    Raises:
        ParameterError: one is out of range, or has no thought to be of.
    """
    given = {name: options.pop(name) for name in THINK_NAMES if name in options}
    budget, keep, tags = (given.get(name) for name in THINK_NAMES)
    if budget is None:
        for name in THINK_NAMES[1:]:
            if given.get(name):
                raise ParameterError(f"{name} is of a thought; give it a budget: think=256")
        return None
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 0:
        raise ParameterError(
            f"think must be a number of tokens, 0 for no thought or more, got {budget!r}"
        )
    if keep is not None and not isinstance(keep, bool):
        raise ParameterError(f"keep_thinking must be True or False, got {keep!r}")
    return Think(budget, bool(keep), None if tags is None else _checked_tags(tags))


def _checked_tags(tags: object) -> tuple[str, str]:
    pair = tuple(tags) if isinstance(tags, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(tag, str) and tag.strip() for tag in pair):
        raise ParameterError(
            'think_tags must be the texts that open and close a thought, as in ("<think>\\n", '
            f'"\\n</think>\\n\\n"), got {tags!r}'
        )
    return pair[0], pair[1]
