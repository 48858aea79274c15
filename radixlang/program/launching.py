"""The signature of a program for type checkers.

A program takes its own arguments and, by keyword, options of the run. Python has no type for the
two together, so there is one overload for arguments alone, which checks all of them, and one for
each common option, which checks options and takes other keywords for arguments. To have both
checked, give the options to `program.with_options(…)` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeAlias, TypeVar, overload

if TYPE_CHECKING:
    from radixlang.attention import Attention
    from radixlang.protocol import AdapterUse, Backend
    from radixlang.sampling_params import LogitBias, LogitsFunction
    from radixlang.state.recording.nesting import NestedProgram
    from radixlang.state.state import State

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Stops: TypeAlias = "str | Iterable[str] | None"
Adapting: TypeAlias = "str | AdapterUse | None"


class Launch(Protocol[P, R_co]):
    """The type of `run` of one program, and of methods with the same arguments."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, state: State, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    # one for each common option; written by tests/typing/launch_overloads.py
    @overload
    def __call__(
        self, *args: object, runtime: Backend | None, timeout: float | None = ...,
        max_total_tokens: int | None = ..., namespace: str = ..., adapter: Adapting = ...,
        check: bool = ..., max_tokens: int = ..., min_tokens: int = ..., temperature: float = ...,
        top_k: int | None = ..., top_p: float = ..., min_p: float = ...,
        frequency_penalty: float = ..., presence_penalty: float = ...,
        repetition_penalty: float = ..., stop: Stops = ..., stop_regex: Stops = ...,
        stop_token_ids: int | Iterable[int] | None = ..., ignore_eos: bool = ...,
        seed: int | None = ..., logprobs: bool = ..., top_logprobs: int = ..., heal: bool = ...,
        logit_bias: LogitBias | None = ..., logits: LogitsFunction | None = ...,
        attention: Attention | None = ..., **arguments: object,
    ) -> R_co: ...  # fmt: skip
    @overload
    def __call__(
        self, *args: object, seed: int | None, runtime: Backend | None = ...,
        timeout: float | None = ..., max_total_tokens: int | None = ..., namespace: str = ...,
        adapter: Adapting = ..., check: bool = ..., max_tokens: int = ..., min_tokens: int = ...,
        temperature: float = ..., top_k: int | None = ..., top_p: float = ..., min_p: float = ...,
        frequency_penalty: float = ..., presence_penalty: float = ...,
        repetition_penalty: float = ..., stop: Stops = ..., stop_regex: Stops = ...,
        stop_token_ids: int | Iterable[int] | None = ..., ignore_eos: bool = ...,
        logprobs: bool = ..., top_logprobs: int = ..., heal: bool = ...,
        logit_bias: LogitBias | None = ..., logits: LogitsFunction | None = ...,
        attention: Attention | None = ..., **arguments: object,
    ) -> R_co: ...  # fmt: skip
    @overload
    def __call__(
        self, *args: object, temperature: float, runtime: Backend | None = ...,
        timeout: float | None = ..., max_total_tokens: int | None = ..., namespace: str = ...,
        adapter: Adapting = ..., check: bool = ..., max_tokens: int = ..., min_tokens: int = ...,
        top_k: int | None = ..., top_p: float = ..., min_p: float = ...,
        frequency_penalty: float = ..., presence_penalty: float = ...,
        repetition_penalty: float = ..., stop: Stops = ..., stop_regex: Stops = ...,
        stop_token_ids: int | Iterable[int] | None = ..., ignore_eos: bool = ...,
        seed: int | None = ..., logprobs: bool = ..., top_logprobs: int = ..., heal: bool = ...,
        logit_bias: LogitBias | None = ..., logits: LogitsFunction | None = ...,
        attention: Attention | None = ..., **arguments: object,
    ) -> R_co: ...  # fmt: skip
    @overload
    def __call__(
        self, *args: object, max_tokens: int, runtime: Backend | None = ...,
        timeout: float | None = ..., max_total_tokens: int | None = ..., namespace: str = ...,
        adapter: Adapting = ..., check: bool = ..., min_tokens: int = ..., temperature: float = ...,
        top_k: int | None = ..., top_p: float = ..., min_p: float = ...,
        frequency_penalty: float = ..., presence_penalty: float = ...,
        repetition_penalty: float = ..., stop: Stops = ..., stop_regex: Stops = ...,
        stop_token_ids: int | Iterable[int] | None = ..., ignore_eos: bool = ...,
        seed: int | None = ..., logprobs: bool = ..., top_logprobs: int = ..., heal: bool = ...,
        logit_bias: LogitBias | None = ..., logits: LogitsFunction | None = ...,
        attention: Attention | None = ..., **arguments: object,
    ) -> R_co: ...  # fmt: skip
    @overload
    def __call__(
        self, *args: object, timeout: float | None, runtime: Backend | None = ...,
        max_total_tokens: int | None = ..., namespace: str = ..., adapter: Adapting = ...,
        check: bool = ..., max_tokens: int = ..., min_tokens: int = ..., temperature: float = ...,
        top_k: int | None = ..., top_p: float = ..., min_p: float = ...,
        frequency_penalty: float = ..., presence_penalty: float = ...,
        repetition_penalty: float = ..., stop: Stops = ..., stop_regex: Stops = ...,
        stop_token_ids: int | Iterable[int] | None = ..., ignore_eos: bool = ...,
        seed: int | None = ..., logprobs: bool = ..., top_logprobs: int = ..., heal: bool = ...,
        logit_bias: LogitBias | None = ..., logits: LogitsFunction | None = ...,
        attention: Attention | None = ..., **arguments: object,
    ) -> R_co: ...  # fmt: skip
    @overload
    def __call__(
        self, *args: object, check: bool, runtime: Backend | None = ...,
        timeout: float | None = ..., max_total_tokens: int | None = ..., namespace: str = ...,
        adapter: Adapting = ..., max_tokens: int = ..., min_tokens: int = ...,
        temperature: float = ..., top_k: int | None = ..., top_p: float = ..., min_p: float = ...,
        frequency_penalty: float = ..., presence_penalty: float = ...,
        repetition_penalty: float = ..., stop: Stops = ..., stop_regex: Stops = ...,
        stop_token_ids: int | Iterable[int] | None = ..., ignore_eos: bool = ...,
        seed: int | None = ..., logprobs: bool = ..., top_logprobs: int = ..., heal: bool = ...,
        logit_bias: LogitBias | None = ..., logits: LogitsFunction | None = ...,
        attention: Attention | None = ..., **arguments: object,
    ) -> R_co: ...  # fmt: skip
    @overload
    def __call__(
        self, *args: object, max_total_tokens: int | None, runtime: Backend | None = ...,
        timeout: float | None = ..., namespace: str = ..., adapter: Adapting = ...,
        check: bool = ..., max_tokens: int = ..., min_tokens: int = ..., temperature: float = ...,
        top_k: int | None = ..., top_p: float = ..., min_p: float = ...,
        frequency_penalty: float = ..., presence_penalty: float = ...,
        repetition_penalty: float = ..., stop: Stops = ..., stop_regex: Stops = ...,
        stop_token_ids: int | Iterable[int] | None = ..., ignore_eos: bool = ...,
        seed: int | None = ..., logprobs: bool = ..., top_logprobs: int = ..., heal: bool = ...,
        logit_bias: LogitBias | None = ..., logits: LogitsFunction | None = ...,
        attention: Attention | None = ..., **arguments: object,
    ) -> R_co: ...  # fmt: skip
    @overload
    def __call__(
        self, *args: object, namespace: str, runtime: Backend | None = ...,
        timeout: float | None = ..., max_total_tokens: int | None = ..., adapter: Adapting = ...,
        check: bool = ..., max_tokens: int = ..., min_tokens: int = ..., temperature: float = ...,
        top_k: int | None = ..., top_p: float = ..., min_p: float = ...,
        frequency_penalty: float = ..., presence_penalty: float = ...,
        repetition_penalty: float = ..., stop: Stops = ..., stop_regex: Stops = ...,
        stop_token_ids: int | Iterable[int] | None = ..., ignore_eos: bool = ...,
        seed: int | None = ..., logprobs: bool = ..., top_logprobs: int = ..., heal: bool = ...,
        logit_bias: LogitBias | None = ..., logits: LogitsFunction | None = ...,
        attention: Attention | None = ..., **arguments: object,
    ) -> R_co: ...  # fmt: skip
    @overload
    def __call__(
        self, *args: object, adapter: Adapting, runtime: Backend | None = ...,
        timeout: float | None = ..., max_total_tokens: int | None = ..., namespace: str = ...,
        check: bool = ..., max_tokens: int = ..., min_tokens: int = ..., temperature: float = ...,
        top_k: int | None = ..., top_p: float = ..., min_p: float = ...,
        frequency_penalty: float = ..., presence_penalty: float = ...,
        repetition_penalty: float = ..., stop: Stops = ..., stop_regex: Stops = ...,
        stop_token_ids: int | Iterable[int] | None = ..., ignore_eos: bool = ...,
        seed: int | None = ..., logprobs: bool = ..., top_logprobs: int = ..., heal: bool = ...,
        logit_bias: LogitBias | None = ..., logits: LogitsFunction | None = ...,
        attention: Attention | None = ..., **arguments: object,
    ) -> R_co: ...  # fmt: skip

    # here the written ones end


class LaunchMethod(Protocol[R_co]):
    """A method whose signature has the program's arguments."""

    @overload
    def __get__(self, program: None, owner: type, /) -> Callable[..., R_co]: ...
    @overload
    def __get__(self, program: NestedProgram[P], owner: type, /) -> Launch[P, R_co]: ...


def launches(method: Callable[..., R]) -> LaunchMethod[R]:
    """Give a method of Program the signature of its program; no effect at run time."""
    return method
