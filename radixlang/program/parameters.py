"""A program's arguments: the parameters of its function, and the errors of wrong ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType

from radixlang.errors import ParameterError
from radixlang.keywords import RUN_NAMES
from radixlang.spellings import hint_for
from radixlang.suggestions import nearest

_ABOVE = "put @radixlang.function above a function: def {}(s, …)"


@dataclass(frozen=True, slots=True)
class Parameters:
    """Names and defaults of a program's arguments, the state's excluded.

    `owner` is the class whose method the function is, and "" for any other function.
    """

    program: str
    defaults: dict[str, object]
    owner: str = ""

    @classmethod
    def of(cls, target: Callable[..., object], name: str) -> Parameters:
        """The parameters of a program's function.

        Raises:
            ParameterError: the function cannot be a program.
        """
        _check_function(target, name)
        parameters = list(inspect.signature(target).parameters.values())
        owner = _owner_of(target)
        if owner and parameters and parameters[0].name == "cls":
            raise ParameterError(
                f"program {name!r} is a class method; make it a method with self, or put "
                "@staticmethod above @function and leave cls out"
            )
        is_method = bool(owner and parameters and parameters[0].name == "self")
        rest = parameters[1:] if is_method else parameters
        if not rest:
            first = "self, s" if is_method else "s"
            raise ParameterError(
                f"program {name!r} needs a first parameter for its state: def {name}({first})"
            )
        for parameter in rest:
            _check_parameter(parameter, name)
        defaults = {parameter.name: parameter.default for parameter in rest[1:]}
        return cls(name, defaults, owner if is_method else "")

    def by_name(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """All arguments of a call by name."""
        names = tuple(self.defaults)
        if len(args) > len(names):
            raise ParameterError(
                f"program {self.program!r} takes {len(names)} arguments ({', '.join(names)}), "
                f"got {len(args)}; options of the run are given by name"
            )
        twice = next((name for name in names[: len(args)] if name in kwargs), None)
        if twice is not None:
            raise ParameterError(
                f"program {self.program!r} got the argument {twice!r} twice; give it once, by its "
                "place or by its name"
            )
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def check(
        self, given: Mapping[str, object], extra: tuple[str, ...] = (), whose: str = ""
    ) -> None:
        """Raise a ParameterError for a name that is neither an argument nor one of `extra`.

        `extra` are the options of `whose`: "a run" or "run_batch".
        """
        for name in given:
            if name in self.defaults or name in extra:
                continue
            own = nearest(name, self.defaults, cutoff=0.7)
            takes = f"it takes: {', '.join(self.defaults) or 'none'}"
            hint = hint_for(name, (*self.defaults, *extra), whose or "a run", takes)
            hint = f"did you mean {own!r}?" if own else hint
            raise ParameterError(f"program {self.program!r} has no argument {name!r}; {hint}")

    def check_bound(self) -> None:
        """Raise a ParameterError for a method that is called on its class, not on an instance."""
        if self.owner:
            raise ParameterError(
                f"program {self.program!r} is a method of {self.owner}; call it on an instance: "
                f"{self.owner}(…).{self.program}(…)"
            )

    def missing(self, name: str) -> ParameterError:
        """The error of an argument that was not given."""
        return ParameterError(
            f"program {self.program!r} needs the argument {name!r}: {self.program}({name}=…)"
        )


def _check_function(target: object, name: str) -> None:
    if isinstance(target, (classmethod, staticmethod)):
        kind = type(target).__name__
        raise ParameterError(f"write @{kind} above @function for program {name!r}, not below it")
    if inspect.isclass(target):
        raise ParameterError(f"the class {name!r} is no program; {_ABOVE.format('name')}")
    if not callable(target):
        raise ParameterError(f"a program is made of a function, got {target!r}; "
                             f"{_ABOVE.format('name')}")  # fmt: skip
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise ParameterError(
            f"program {name!r} has a yield, so that calling it runs nothing; write s += … in place "
            f"of yield, return what it makes, and read pieces as they come from {name}.stream(…)"
        )


def _owner_of(target: object) -> str:
    """The class in whose body a function is defined, or ""."""
    outer = target.__qualname__.rpartition(".")[0] if isinstance(target, FunctionType) else ""
    return "" if outer.endswith("<locals>") else outer.rpartition(".")[2]


def _check_parameter(parameter: inspect.Parameter, name: str) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise ParameterError(
            f"program {name!r} takes {parameter}; name every argument, so that a template, "
            "a batch row and a trace can give it"
        )
    if parameter.name in RUN_NAMES:
        raise ParameterError(
            f"program {name!r} has a parameter {parameter.name!r}, which is an option of "
            "run(); rename the parameter"
        )
