"""The expressions that a program appends: text, gen, select and roles, concatenated with +."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, overload

from radixlang.errors import ParameterError
from radixlang.execution.handlers.option_scorers import check_option_texts, check_scorer
from radixlang.graph.nodes import Scorer
from radixlang.json_types import TypeForm
from radixlang.keywords import ADAPTER_NAMES, CONSTRAINT_NAMES, CONSTRAINT_OPTIONS, THINK_NAMES
from radixlang.protocol import AdapterUse, adapter_use, check_role
from radixlang.sampling_params import PARAM_NAMES, SamplingParams, bias_pairs
from radixlang.spellings import hint_for
from radixlang.state.expressions.items import (
    Appendable,
    Expr,
    GenItem,
    Placeholder,
    RoleClose,
    RoleOpen,
    SelectItem,
    as_expr,
)
from radixlang.state.expressions.thought import take_think

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from radixlang.constraints.specs import Constraint, ToolCall, Tools
    from radixlang.constraints.typed_values import Output
    from radixlang.keywords import GenKeywords, TextKeywords

T = TypeVar("T")
kind = type  # `type` is an argument's name below
GEN_NAMES = (
    "n",
    *THINK_NAMES,
    *ADAPTER_NAMES,
    *CONSTRAINT_NAMES,
    *CONSTRAINT_OPTIONS,
    *PARAM_NAMES,
)


@overload
def gen(
    name: str | None = None, /, *, tools: Iterable[object] | Tools, **options: Unpack[TextKeywords]
) -> Expr[ToolCall]: ...
@overload
def gen(name: str | None = None, /, **options: Unpack[TextKeywords]) -> Expr[str]: ...
@overload
def gen(type: type[T], /, **options: Unpack[GenKeywords]) -> Expr[T]: ...
@overload
def gen(name: str | None, type: type[T], /, **options: Unpack[GenKeywords]) -> Expr[T]: ...
@overload
def gen(name: str | None, type: TypeForm, /, **options: Unpack[GenKeywords]) -> Expr[Any]: ...
def gen(name: Any = None, type: Any = None, /, *, n: int = 1, **options: Any) -> Expr[Any]:
    """Generate text, or a value of a type, at this place of the program.

        s += "The capital of Peru is" + gen("capital", stop=".", max_tokens=8)
        s += "It has" + gen("millions", float, temperature=0) + " million people."

    Args:
        name: the variable the value is bound to; None binds nothing.
        type: int, float, bool, str, Literal, Enum, Union, list, tuple, dict, dataclass,
            TypedDict, a pydantic model or a function; the value has that type.
        n: above 1, a group of n branches with one sample each: `s[name]` is the list of
            values, and `s.choose(name, i)` continues from one of them.
        think: most tokens of a thought before the value, for models with thinking tags; 0 writes
            the tags alone. The thought is `s.thought(name)`, and no part of the prompt after it,
            unless keep_thinking=True. think_tags are the texts that open and close it; by default
            those of the model's chat template.
        regex, json_schema, grammar, choices, tools, constraint: one constraint on the text;
            finish, strict and whitespace are its options (see `radixlang.constraints.specs`).
        adapter: name of an adapter of the runtime, with `scale` and `layers` as `State.adapter`
            has them.
        options: any field of SamplingParams: max_tokens, temperature, top_p, stop, seed, …
            (`help(radixlang.SamplingParams)` has them all); unset ones come from the run.

    Raises:
        ParameterError: an unknown option, a value out of range, or two constraints at once.
    """
    if name is not None and not isinstance(name, str):
        if type is not None:
            raise ParameterError(
                f"a gen's name must be a string, got {name!r}; the name comes first and then the "
                "type, as in gen('x', int)"
            )
        name, type = None, name
    _check_name(name)
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ParameterError(f"n must be an integer of at least 1, got {n!r}")
    use = adapter_use(*(options.pop(key, None) for key in ADAPTER_NAMES))
    think = take_think(options)
    constraint, output = _constraint(type, options)
    overrides = tuple(sorted(_check_options(options).items()))
    item = GenItem(name, _params(overrides), overrides, constraint, output, n, use, think)
    return Expr((item,))


def select(
    name: str | None,
    choices: Iterable[str] | Placeholder = (),
    *,
    scorer: Scorer = "likelihood",
    adapter: str | AdapterUse | None = None,
    scale: float | None = None,
    layers: Iterable[int] | None = None,
) -> Expr[str]:
    """Choose one of the options by their log-probabilities and append it.

    Args:
        name: the variable the chosen option is bound to; None binds nothing.
        choices: the options; they share one prefill.
        scorer: "likelihood" takes the likeliest option. "token_length_normalized" takes the one
            with the highest mean log-probability of a token, "greedy_token" the one nearest to
            greedy decoding, "unconditional_likelihood_normalized" the one whose likelihood the
            prompt raises most. Or a function of the list of OptionScore that returns one score for
            each option, higher is better.
        adapter, scale, layers: an adapter of the runtime that scores them, as in `gen`.

    Raises:
        ParameterError: no options, an empty or repeated one, or an unknown scorer.
    """
    _check_name(name)
    use = adapter_use(adapter, scale, layers)
    check_scorer(scorer)
    if isinstance(choices, Placeholder):
        return Expr((SelectItem(name, choices, scorer, use),))
    if isinstance(choices, str):
        raise ParameterError(f"select needs a list of options, got the string {choices!r}")
    if not isinstance(choices, Iterable):
        raise ParameterError(f"select needs a list of options, got {choices!r}")
    options = tuple(choices)
    texts = [option for option in options if not isinstance(option, Placeholder)]
    if texts or not options:
        check_option_texts(texts)
    return Expr((SelectItem(name, options, scorer, use),))


def role(name: str, content: Appendable) -> Expr[object]:
    """A whole turn of the conversation under the model's own chat template."""
    check_role(name)
    return Expr((RoleOpen(name), *as_expr(content).items, RoleClose(name)))


def system(content: Appendable) -> Expr[object]:
    """A system turn."""
    return role("system", content)


def user(content: Appendable) -> Expr[object]:
    """A user turn."""
    return role("user", content)


def assistant(content: Appendable) -> Expr[object]:
    """An assistant turn; a gen in it is the model's answer."""
    return role("assistant", content)


def _begin(name: str) -> Expr[object]:
    return Expr((RoleOpen(name),))


def _end(name: str) -> Expr[object]:
    return Expr((RoleClose(name),))


def system_begin() -> Expr[object]:
    """Open a system turn."""
    return _begin("system")


def system_end() -> Expr[object]:
    """Close the system turn."""
    return _end("system")


def user_begin() -> Expr[object]:
    """Open a user turn."""
    return _begin("user")


def user_end() -> Expr[object]:
    """Close the user turn."""
    return _end("user")


def assistant_begin() -> Expr[object]:
    """Open an assistant turn."""
    return _begin("assistant")


def assistant_end() -> Expr[object]:
    """Close the assistant turn."""
    return _end("assistant")


def _check_name(name: str | None) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise ParameterError(
            f"a variable's name must be a string that is not empty, got {name!r}; the name comes "
            "first, as in gen('x', int) and select('x', ['a', 'b']), and None binds nothing"
        )


def _check_options(options: dict[str, object]) -> dict[str, object]:
    for key in options:
        if key not in PARAM_NAMES:
            hint = hint_for(key, GEN_NAMES, "gen")
            raise ParameterError(f"gen got an unknown option {key!r}; {hint}")
    for key, value in options.items():
        if key == "logit_bias":
            options[key] = bias_pairs(value)
        elif isinstance(value, list):
            options[key] = tuple(value)
    return options


def _params(overrides: tuple[tuple[str, object], ...]) -> SamplingParams:
    try:
        return _cached_params(overrides, tuple([kind(value) for _, value in overrides]))
    except TypeError:  # a value that cannot be hashed: the check below reports it
        return _made(overrides)


@lru_cache(maxsize=1024)
def _cached_params(
    overrides: tuple[tuple[str, object], ...], kinds: tuple[object, ...]
) -> SamplingParams:
    """`kinds` is only part of the key: 1, True and 1.0 are equal, but not all are valid."""
    return _made(overrides)


def _made(overrides: tuple[tuple[str, object], ...]) -> SamplingParams:
    given: dict[str, Any] = dict(overrides)  # SamplingParams checks names and types
    return SamplingParams(**given)


def _constraint(type: TypeForm, options: dict[str, Any]) -> tuple[Constraint | None, Output | None]:
    """Take the constraint out of the options: (specification, output type)."""
    known = (*CONSTRAINT_NAMES, *CONSTRAINT_OPTIONS)
    given = {key: options.pop(key) for key in known if key in options}
    if type is not None:
        return _typed(type, given)
    if not given:
        return None, None
    from radixlang.constraints.specs import Tools, from_kwargs

    constraint = from_kwargs(**given)
    if isinstance(constraint, Tools):
        from radixlang.constraints.typed_values import Output

        return constraint, Output(constraint, constraint)
    return constraint, None


def _typed(type: TypeForm, given: dict[str, Any]) -> tuple[Constraint | None, Output]:
    from radixlang.constraints.typed_values import output_for

    clash = [key for key in CONSTRAINT_NAMES if given.get(key) is not None]
    if clash:
        raise ParameterError(
            f"a gen takes a type or {clash[0]}, got both; "
            f"drop {clash[0]}, or drop the type and parse the text yourself"
        )
    output = output_for(type)
    options = {key: value for key, value in given.items() if value is not None}
    if not options:
        return output.constraint, output
    from radixlang.constraints.specs import from_kwargs

    return from_kwargs(constraint=output.constraint, **options), output
