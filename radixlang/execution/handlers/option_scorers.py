"""Scorers of select: from the options' log-probabilities to one score for each option."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from radixlang.errors import ParameterError
from radixlang.execution.pieces import Choice
from radixlang.graph.nodes import ScorerName
from radixlang.protocol import OptionScore
from radixlang.suggestions import suggestion

SCORERS: tuple[ScorerName, ...] = get_args(ScorerName)
_TIE = 1e-9  # scores closer than this, relative to their size, are a tie


def check_scorer(scorer: object) -> None:
    """Raise a ParameterError unless scorer is a known name or a function."""
    if callable(scorer) or scorer in SCORERS:
        return
    hint = suggestion(str(scorer), SCORERS, f"known: {', '.join(SCORERS)}, or a function")
    raise ParameterError(f"unknown scorer {scorer!r}; {hint}")


def check_option_texts(options: Sequence[object]) -> None:
    """Raise a ParameterError unless the options are non-empty texts, all different."""
    if not options:
        raise ParameterError("select needs at least one option, got none")
    for option in options:
        if not isinstance(option, str) or not option:
            raise ParameterError(f"an option must be a string that is not empty, got {option!r}")
    if len(set(options)) != len(options):
        twice = next(text for text in options if options.count(text) > 1)
        raise ParameterError(f"the option {twice!r} is listed twice; list each option once")


def needs_unconditional(scorer: object) -> bool:
    """Whether the scorer also needs the options scored without the prompt."""
    return bool(scorer == "unconditional_likelihood_normalized")


def scores_of(
    scorer: str | Callable[[list[OptionScore]], Sequence[float]],
    details: Sequence[OptionScore],
    unconditional: Sequence[OptionScore] | None = None,
) -> tuple[float, ...]:
    """One score for each option, higher is better.

    Raises:
        ParameterError: a custom scorer did not return one number for each option.
    """
    if callable(scorer):
        return _checked(scorer, scorer(list(details)), len(details))
    if scorer == "greedy_token":
        return _greedy_ranks(details)
    if scorer == "unconditional_likelihood_normalized":
        assert unconditional is not None
        pairs = zip(details, unconditional, strict=True)
        return tuple((given.total - alone.total) / max(1, len(given.logprobs))
                     for given, alone in pairs)  # fmt: skip
    if scorer == "token_length_normalized":
        return tuple(option.mean for option in details)
    return tuple(option.total for option in details)


def choose(
    options: Sequence[str], scores: Sequence[float], details: Sequence[OptionScore]
) -> Choice:
    """The first option with the best score, and the scores' softmax over all of them."""
    best = max(scores)
    margin = _TIE * max(1.0, abs(best)) if math.isfinite(best) else 0.0
    ties = tuple(index for index, score in enumerate(scores) if best - score <= margin)
    ties = ties or (scores.index(best),)
    return Choice(tuple(options), ties[0], tuple(scores), _softmax(scores), ties, tuple(details))


def _checked(scorer: object, scores: Iterable[float], count: int) -> tuple[float, ...]:
    values = tuple(float(score) for score in scores)
    if len(values) != count or any(math.isnan(value) for value in values):
        name = getattr(scorer, "__name__", repr(scorer))
        raise ParameterError(
            f"scorer {name} must give {count} numbers, one an option, got {values}"
        )
    return values


def _greedy_ranks(details: Sequence[OptionScore]) -> tuple[float, ...]:
    """Compare options token by token: the likelier token at the first difference wins.

    An option that is the beginning of another is compared by the mean of its tokens, so that a
    shared beginning decides nothing.
    """
    longest = max(len(option.logprobs) for option in details)
    keys = []
    for option in details:
        padding = (option.mean,) * (longest - len(option.logprobs))
        keys.append(option.logprobs + padding)
    order = sorted(set(keys))
    return tuple(float(order.index(key) - len(order) + 1) for key in keys)


def _softmax(scores: Sequence[float]) -> tuple[float, ...]:
    highest = max(scores)
    weights = [1.0 if score == highest else math.exp(score - highest) for score in scores]
    whole = sum(weights)
    return tuple(weight / whole for weight in weights)
