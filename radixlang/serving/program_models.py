"""Models of a program's signature, and of what its endpoint takes and answers beside it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from radixlang.errors import ParameterError
from radixlang.json_types import JsonBody
from radixlang.program.program import Program
from radixlang.protocol import Usage

_PLAIN = (str, bool, int, float, type(None))  # defaults that the API's description can show


class ProgramFault(BaseModel):
    """What went wrong; `location` is "file:line" of the program, where it is known."""

    type: str
    message: str
    location: str | None = None
    param: str | None = None
    code: str | None = None


class ProgramFailure(BaseModel):
    """The body of a reply that is no result."""

    error: ProgramFault


class RunFields(BaseModel):
    """What the address of a request says of its run."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    stream: bool = Field(False, description="send the text as it is generated")
    seed: int | None = Field(None, description="the same seed gives the same run")
    timeout_s: float | None = Field(None, description="most seconds of the run", gt=0)


def kinds_of(program: Program) -> dict[str, object]:
    """The types that a program's function is annotated with.

    Raises:
        ParameterError: one of them is not defined.
    """
    try:
        return get_type_hints(program.function, include_extras=True)
    except NameError as error:
        raise ParameterError(
            f"program {program.name!r} cannot be served: {error}; an annotation must be known at "
            "the top of its file"
        ) from error


def fields_of(program: Program) -> dict[str, str]:
    """Names of arguments by the names of their fields: a model's own names are taken."""
    return {f"argument_{number}": name for number, name in enumerate(program.parameters)}


def arguments_model(program: Program, kinds: Mapping[str, object]) -> type[BaseModel]:
    """The model of a request's body; its fields go by the names of the arguments.

    Raises:
        ParameterError: an argument cannot come as JSON.
    """
    defaults = {**program.defaults, **program.bound}
    found = {key: (kinds.get(name, object), _field(name, defaults[name]))
             for key, name in fields_of(program).items()}  # fmt: skip
    for key, (kind, _) in found.items():
        if not _is_json_kind(kind):
            raise ParameterError(
                f"program {program.name!r} cannot be served: its argument "
                f"{fields_of(program)[key]!r} is of {kind!r}, which is not read from JSON; serve "
                "others of the file with FILE:NAME"
            )
    # each field has a type of its own
    definitions: JsonBody = dict(found)
    return create_model(
        f"{program.name}_arguments", __config__=ConfigDict(extra="forbid"), **definitions
    )


def _field(name: str, default: object) -> object:
    if default is inspect.Parameter.empty:
        return Field(alias=name)
    if isinstance(default, _PLAIN):
        return Field(default, alias=name)
    return Field(default_factory=lambda: default, alias=name)


def result_model(program: Program, returned: object) -> type[BaseModel]:
    """The model of a reply; what is returned is any JSON where its type has no schema."""
    kind: JsonBody = {"returned": (returned if _is_json_kind(returned) else object, ...)}
    return create_model(
        f"{program.name}_result", text=(str, ...), values=(dict[str, object], ...),
        usage=(Usage, ...), **kind,
    )  # fmt: skip


def _is_json_kind(kind: object) -> bool:
    try:
        TypeAdapter(kind).json_schema()  # type: ignore[arg-type]
    except (PydanticUserError, PydanticInvalidForJsonSchema):
        return False
    return True
