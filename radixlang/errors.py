"""Every error radixlang raises on purpose.

RadixlangError
├── ModelError
│   ├── ModelNotFoundError        no such folder, file or cached hub name
│   ├── ModelFormatError          unreadable, truncated or unsupported weights
│   └── AdapterFormatError        an adapter that is unreadable, of another model or kind
├── ParameterError                a wrong or unknown argument (also a ValueError)
├── RequestError                  one generation failed; the runtime goes on
│   ├── PromptTooLongError        the prompt does not fit the model's context
│   ├── PoolExhaustedError        the KV pool cannot hold this request
│   ├── StepMemoryError           there is no memory for the intermediate values of a step
│   ├── NumericalError            the model produced NaN or infinite logits
│   ├── LogitsError               a function given as logits= raised, ran too long, or is wrong
│   ├── CancelledError            cancelled by its owner
│   ├── DeadlineError             ran past its timeout (also a TimeoutError)
│   ├── WorkersLostError          no worker is left to run it
│   └── BudgetError               the program has spent the tokens it was allowed
├── ConstraintError
│   ├── InvalidConstraintError    the regex, schema or grammar itself is wrong
│   ├── UnsupportedConstraintError  it is valid, but uses something that cannot be enforced
│   └── IncompleteError           generation ended before the constraint was satisfied
├── ValueParseError               generated text is not a value of the asked type
├── ProgramError                  wraps the first error of a program with its place in it
│   └── JoinError                 one or more branches of a fork failed
├── UnknownVariableError          a state has no variable of this name (also a KeyError)
├── NeedsValueError               Python asked for a generated value where there is none yet
├── StateClosedError              a finished or failed state was appended to
├── NotPicklableError             an object that belongs to one process was pickled (a TypeError)
├── TemplateError                 a .radix file is wrong: file, line, column, caret
├── OwnershipError                KV slots or a lease released twice: a bug in the caller
├── ScriptError                   a scripted fake model has no answer for this prompt
└── RuntimeClosedError            the runtime was closed
    └── ForkedError               a parent process's runtime was used in a forked child

A message says what happened, the values, and what to do about it.
"""

from __future__ import annotations

import functools
import os
import pickle
from types import TracebackType
from typing import NoReturn


class RadixlangError(Exception):
    """Base of every error that radixlang raises on purpose.

    `location` is the "file:line" of the program that it comes from, "" if none is known. Every
    subclass pickles, whatever its __init__ takes, with its attributes and its `__cause__`.
    """

    _location: str | None = None

    @property
    def location(self) -> str:
        """The user's own line that was running, or "file:line:column" of a template."""
        return place_of(self) if self._location is None else self._location

    @location.setter
    def location(self, place: str) -> None:
        self._location = place

    def __reduce__(self) -> tuple[object, ...]:
        cause = None if self.__cause__ is None else _pickled(self.__cause__)
        return _rebuilt, (type(self), self.args, cause), self.__getstate__()

    def __getstate__(self) -> dict[str, object] | None:
        """The attributes, as they are pickled."""
        place = self.location
        return {**self.__dict__, "_location": place} if place else self.__dict__ or None


def place_of(error: BaseException) -> str:
    """Where an error was raised: "file:line" of the deepest line of the user's own code.

    Lines of this package, of the standard library and of installed packages do not count; "" if
    there is no other line.
    """
    if isinstance(error, RadixlangError) and error._location:
        return error._location
    place, trace = "", error.__traceback__
    while trace is not None:
        if not _is_foreign(trace):
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _is_foreign(trace: TracebackType) -> bool:
    module = trace.tb_frame.f_globals.get("__name__", "")
    file = trace.tb_frame.f_code.co_filename
    return module.partition(".")[0] == "radixlang" or file.startswith(_foreign_folders())


@functools.cache
def _foreign_folders() -> tuple[str, ...]:
    import sysconfig

    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    ours = os.path.dirname(os.path.abspath(__file__))
    return ("<frozen ", *{folder + os.sep for folder in (ours, *map(sysconfig.get_path, names))})


def _rebuilt(
    kind: type[RadixlangError], args: tuple[object, ...], cause: bytes | None
) -> RadixlangError:
    error = kind.__new__(kind, *args)
    error.args = args
    if cause is not None:
        error.__cause__ = pickle.loads(cause)
    return error


def picklable(error: BaseException) -> BaseException:
    """The error itself, or one of its type and text if it does not pickle."""
    found: BaseException = pickle.loads(_pickled(error))
    return found


def _pickled(error: BaseException) -> bytes:
    """The error's bytes; an error that does not pickle is replaced by its type and its text."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return pickle.dumps(RadixlangError(f"{type(error).__name__}: {error}"))
    return data


class ModelError(RadixlangError):
    """A model could not be found or loaded."""


class ModelNotFoundError(ModelError):
    """There is no folder, GGUF file or cached hub model of the given name."""


class ModelFormatError(ModelError):
    """The weights are unreadable, truncated, or of an architecture that cannot be served."""


class AdapterFormatError(ModelError):
    """An adapter is unreadable, of a kind that is not served, or made for another model."""


class ParameterError(RadixlangError, ValueError):
    """An argument is unknown or out of range."""


class RequestError(RadixlangError):
    """One generation failed. Other programs and the runtime go on."""


class PromptTooLongError(RequestError):
    """Prompt and requested tokens do not fit the model's context."""


class PoolExhaustedError(RequestError):
    """The KV pool cannot hold this request even with everything else evicted."""


class StepMemoryError(RequestError):
    """There was no memory for the intermediate values of the step that ran this request."""


class NumericalError(RequestError):
    """The model produced NaN or infinite logits."""


class LogitsError(RequestError):
    """A function given as `logits=` raised an error, ran too long, or returned no usable logits."""


class CancelledError(RequestError):
    """The generation or its branch was cancelled by its owner."""


class DeadlineError(RequestError, TimeoutError):
    """The generation ran past its timeout."""


class WorkersLostError(RequestError):
    """Every worker of `radixlang.Workers` has died."""


class BudgetError(RequestError):
    """The program has generated as many tokens as `max_total_tokens` allows."""


class ConstraintError(RadixlangError):
    """A constraint could not be compiled or satisfied."""


class InvalidConstraintError(ConstraintError, ValueError):
    """The regex, schema, grammar or list of choices itself is wrong."""


class UnsupportedConstraintError(ConstraintError):
    """The constraint is valid but uses something that cannot be enforced; it is refused, not
    ignored."""


class IncompleteError(ConstraintError):
    """Generation ended before its constraint was satisfied; `partial` is the text so far.

    `token_ids` are its tokens, and `num_prompt_tokens`, `num_cached_tokens` its prompt's, where the
    generation has told them.
    """

    def __init__(
        self,
        message: str,
        partial: str = "",
        *,
        token_ids: tuple[int, ...] = (),
        num_prompt_tokens: int = 0,
        num_cached_tokens: int = 0,
    ) -> None:
        super().__init__(message)
        self.partial = partial
        self.token_ids = token_ids
        self.num_prompt_tokens = num_prompt_tokens
        self.num_cached_tokens = num_cached_tokens


class ValueParseError(RadixlangError, ValueError):
    """Generated text is not a value of the type that was asked for; `partial` is the text."""

    def __init__(self, message: str, partial: str = "") -> None:
        super().__init__(message)
        self.partial = partial


class ProgramError(RadixlangError):
    """The first error of a program, with its place in the program.

    `location` is "file:line", `branch` the path of fork indices from the root state, and
    `prompt_tail` the last characters of the prompt. The original error is `__cause__`.
    """

    def __init__(
        self,
        message: str,
        *,
        location: str = "",
        branch: tuple[int, ...] = (),
        prompt_tail: str = "",
    ) -> None:
        super().__init__(message)
        self.location = location
        self.branch = branch
        self.prompt_tail = prompt_tail


def program_error(error: BaseException) -> ProgramError:
    """The error as a ProgramError: itself, or its cause."""
    if isinstance(error, ProgramError):
        return error
    location = place_of(error)
    place = f"\n  at {location}" if location else ""
    wrapped = ProgramError(f"{type(error).__name__}: {error}{place}", location=location)
    wrapped.__cause__ = error
    return wrapped


class JoinError(ProgramError):
    """One or more branches of a fork failed; `errors` maps the branch index to its error."""

    def __init__(self, message: str, errors: dict[int, BaseException], **place: object) -> None:
        super().__init__(message, **place)  # type: ignore[arg-type]
        self.errors = errors

    def __getstate__(self) -> dict[str, object]:
        """The attributes; branch errors that do not pickle are replaced by type and text."""
        errors = {index: pickle.loads(_pickled(error)) for index, error in self.errors.items()}
        return {**self.__dict__, "errors": errors}


class UnknownVariableError(RadixlangError, KeyError):
    """A state, or every branch of a group, has no variable of this name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # a KeyError shows the repr


class NeedsValueError(RadixlangError):
    """Python code looked at a generated value that does not exist yet: while tracing, or in an
    `async def` program that has not awaited it."""


class StateClosedError(RadixlangError):
    """A state whose run has finished, failed or been joined was appended to."""


class NotPicklableError(RadixlangError, TypeError):
    """An object that holds threads, a model or a running program was pickled or copied."""


def refuse_pickling(what: str, instead: str) -> NoReturn:
    """Raise the NotPicklableError of an object that belongs to its process."""
    raise NotPicklableError(f"{what} belongs to this process and cannot be pickled; {instead}")


class TemplateError(RadixlangError):
    """A .radix template is wrong; the message carries file, line, column and a caret."""


class ScriptError(RequestError):
    """A scripted fake model has no answer for the prompt it was given."""


class OwnershipError(RadixlangError):
    """KV slots or a lease were released twice, or used after their release."""


class RuntimeClosedError(RadixlangError):
    """The runtime was closed while or before the request ran."""


class ForkedError(RuntimeClosedError):
    """A runtime, a run or a request of one process was used in a process forked from it."""
