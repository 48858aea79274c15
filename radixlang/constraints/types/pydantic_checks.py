"""Parts of pydantic's core schemas that no mask can enforce: refused before anything is generated.

Each would allow a text that pydantic then refuses, such as a date that has to be in the past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from radixlang.errors import InvalidConstraintError
from radixlang.json_types import Schema

_BOUNDS = ("le", "ge", "lt", "gt", "now_op", "microseconds_precision")
_TEMPORAL = ("date", "time", "datetime", "timedelta")
# pydantic's own validators that a JSON schema does not express, by the name of the function
_FUNCTIONS = {
    "EncodedStr.decode_str": "text in base64 has to be UTF-8 once decoded; use Base64Bytes",
    "import_string": "an ImportString has to be there to import; use str",
    "ByteSize._validate": "a ByteSize has units of its own; use int",
    "PaymentCardNumber.validate": "a PaymentCardNumber has a check digit; use str",
    "PathType.validate_file": "a FilePath has to exist; use Path and check it afterwards",
    "PathType.validate_directory": "a DirectoryPath has to exist; use Path and check it afterwards",
    "PathType.validate_new": "a NewPath has not to exist; use Path and check it afterwards",
    "PathType.validate_socket": "a SocketPath has to exist; use Path and check it afterwards",
}


def check_core_schema(schema: object, owner: str) -> None:
    """Check that every part of a core schema can be enforced.

    Raises:
        InvalidConstraintError: a part cannot; the message names the type, the part and what to use.
    """
    for part in _parts(schema):
        check = _CHECKS.get(part["type"])
        reason = check(part) if check else None
        if reason is not None:
            raise InvalidConstraintError(f"{owner}: {reason}")


def _parts(node: object) -> Iterator[Schema]:
    if isinstance(node, dict):
        if isinstance(node.get("type"), str):
            yield node
        for key, part in node.items():
            if key not in ("metadata", "default", "serialization", "expected", "config"):
                yield from _parts(part)
    elif isinstance(node, (list, tuple)):
        for part in node:
            yield from _parts(part)


def _temporal(part: Schema) -> str | None:
    for bound in _BOUNDS:
        if bound in part and part[bound] != "truncate":
            return (
                f"a {part['type']} with {bound}={part[bound]!r} cannot be enforced while text is "
                "written; take the bound away and check the value afterwards"
            )
    return None


def _function(part: Schema) -> str | None:
    function = part.get("function", {}).get("function")
    if not str(getattr(function, "__module__", "")).startswith("pydantic."):
        return None
    name = getattr(function, "__qualname__", "")
    return _FUNCTIONS.get(name)


def _field(part: Schema) -> str | None:
    alias = part.get("validation_alias")
    if not isinstance(alias, list):
        return None
    paths = alias if alias and isinstance(alias[0], list) else [alias]
    if any(len(path) == 1 for path in paths):
        return None
    return f"the alias {'.'.join(map(str, paths[0]))} is a path into other members; use a name"


def _tagged(part: Schema) -> str | None:
    if callable(part.get("discriminator")):
        return "a discriminator that is a function cannot be followed; use the name of a field"
    return None


def _set(part: Schema) -> str | None:
    items = part.get("items_schema", {})
    if _unhashable(items):
        return "a set of values that cannot be hashed; use a list, or freeze the class"
    return None


def _unhashable(schema: Schema) -> bool:
    kind = schema.get("type")
    if kind in ("model", "dataclass"):
        return getattr(schema["cls"], "__hash__", None) is None
    if kind in ("union", "tuple"):
        arms = schema.get("choices") or schema.get("items_schema") or ()
        return any(_unhashable(arm[0] if isinstance(arm, tuple) else arm) for arm in arms)
    return kind in ("list", "dict", "set", "typed-dict", "model-fields")


def _always(reason: str) -> Callable[[Schema], str | None]:
    return lambda part: reason


_CHECKS: dict[str, Callable[[Schema], str | None]] = {
    **dict.fromkeys(_TEMPORAL, _temporal),
    **dict.fromkeys(
        ["function-before", "function-after", "function-wrap", "function-plain"], _function
    ),
    **dict.fromkeys(["model-field", "dataclass-field", "typed-dict-field"], _field),
    **dict.fromkeys(["set", "frozenset"], _set),
    "tagged-union": _tagged,
    "complex": _always("a complex number has no JSON form; use two floats"),
    "is-subclass": _always("a class cannot be written; use a Literal of names"),
    "generator": _always("an Iterable is read lazily; use list"),
    "json": _always("JSON inside a string cannot be enforced; use the type itself"),
}
