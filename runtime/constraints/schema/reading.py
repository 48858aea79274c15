"""Reading a JSON schema: its dialect, the place of each part, the targets of local references."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urldefrag, urljoin

from radixlang.errors import InvalidConstraintError, UnsupportedConstraintError
from radixlang.json_types import Json, Subschema

ALL_TYPES = frozenset(["null", "boolean", "integer", "fraction", "string", "array", "object"])
MAX_DEPTH = 150


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a keyword's value.

    Args:
        fits: whether a value has the form.
        words: the form in words.
        holds: where the value has schemas: "itself" is one, "items" are, it has them by "names", or
            "lists of names" among them.
    """

    fits: Callable[[Json], bool]
    words: str
    holds: tuple[Literal["itself", "items", "names", "lists of names"], ...] = ()


def escape(step: str) -> str:
    """One step of a JSON pointer."""
    return step.replace("~", "~0").replace("/", "~1")


@dataclass(frozen=True, slots=True)
class Place:
    """A schema inside a document.

    Args:
        schema: the schema itself.
        pointer: JSON pointer to it from the root of the whole document.
        base: the URI that its references are relative to.
    """

    schema: Any  # a Subschema whose type is asked for where it matters, or what a pointer meets
    pointer: str
    base: str

    def at(self, *steps: str | int) -> Place:
        """The place of a part, base URI included."""
        found = self
        for step in steps:
            value = found.schema[step]
            base = found.base
            if isinstance(value, dict) and isinstance(value.get("$id"), str):
                base = _joined(base, value["$id"])
            found = Place(value, f"{found.pointer}/{escape(str(step))}", base)
        return found


class Document:
    """A root schema with every identifier and anchor in it.

    Args:
        root: the schema.
        forms: the forms of keywords' values.

    Raises:
        InvalidConstraintError: a keyword has a wrong value.
        UnsupportedConstraintError: it is nested too deeply.
    """

    def __init__(self, root: Subschema, forms: Mapping[str, Form]) -> None:
        self._forms = forms
        self._check_forms(root, "")
        self.root = Place(root, "", _identifier(root))
        self.ignores_siblings = _is_old(root)
        self.resources: dict[str, Place] = {"": self.root, _identifier(root): self.root}
        self.anchors: dict[tuple[str, str], Place] = {}
        self._checked: set[str] = set()
        self._index(self.root, 0)

    def _index(self, place: Place, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise UnsupportedConstraintError(
                f"the JSON schema is nested more than {MAX_DEPTH} deep at {place.pointer[:80]}…"
            )
        self._check_forms(place.schema, place.pointer)
        self._checked.add(place.pointer)
        if isinstance(place.schema, dict):
            self._name(place)
        for part in self.parts(place):
            self._index(part, depth + 1)

    def _name(self, place: Place) -> None:
        schema = place.schema
        for keyword in ("$anchor", "$dynamicAnchor"):
            if keyword in schema:
                self.anchors[place.base, schema[keyword]] = place
        name = schema.get("$id", schema.get("id"))
        if not isinstance(name, str):
            return
        address, anchor = urldefrag(name)
        if anchor and not address:
            self.anchors[place.base, anchor] = place
        else:
            self.resources.setdefault(_joined(place.base, address), place)

    def _check(self, place: Place) -> None:
        """Check a schema that is reached only by a reference."""
        if place.pointer in self._checked:
            return
        self._checked.add(place.pointer)
        self._check_forms(place.schema, place.pointer)
        for part in self.parts(place):
            self._check(part)

    def _check_forms(self, schema: Json, pointer: str) -> None:
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise InvalidConstraintError(
                f"#{pointer}: a schema is an object or a boolean, not {schema!r:.60}"
            )
        for keyword, value in schema.items():
            form = self._forms.get(keyword)
            if form is not None and not form.fits(value):
                raise InvalidConstraintError(
                    f"#{pointer}/{escape(keyword)}: {value!r:.60} is not {form.words}"
                )

    def parts(self, place: Place) -> Iterator[Place]:
        """Every subschema directly inside a schema."""
        for keyword, value in place.schema.items() if isinstance(place.schema, dict) else ():
            holds = self._forms[keyword].holds if keyword in self._forms else ()
            if isinstance(value, list) and "items" in holds:
                yield from (place.at(keyword, index) for index in range(len(value)))
            elif isinstance(value, dict) and "names" in holds:
                has_lists = "lists of names" in holds
                for name, part in value.items():
                    if not (has_lists and isinstance(part, list)):
                        yield place.at(keyword, name)
            elif isinstance(value, dict | bool) and "itself" in holds:
                yield place.at(keyword)

    def resolve(self, place: Place, reference: str, keyword: str = "$ref") -> Place:
        """The target of a reference.

        Raises:
            UnsupportedConstraintError: it leads out of the document.
            InvalidConstraintError: it has no target.
        """
        where = f"{place.pointer}/{keyword}"
        address, fragment = urldefrag(_joined(place.base, reference))
        if reference.startswith("#"):
            address = urldefrag(place.base)[0]
        resource = self.resources.get(address)
        if resource is None:
            raise UnsupportedConstraintError(
                f"#{where}: the external reference {reference!r} is not followed; put the schema "
                "it means under $defs"
            )
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self.anchors.get((resource.base, fragment))
        else:
            found = _walk(resource, fragment)
        if found is None or not isinstance(found.schema, (dict, bool)):
            raise InvalidConstraintError(f"#{where}: {reference!r} points to no schema")
        self._check(found)
        return found


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError as error:
        raise InvalidConstraintError(f"{reference!r:.100} is no URI: {error}") from None


def _walk(place: Place, pointer: str) -> Place | None:
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        schema = place.schema
        if isinstance(schema, dict) and name in schema:
            place = place.at(name)
        elif isinstance(schema, list) and name.isdigit() and int(name) < len(schema):
            place = place.at(int(name))
        else:
            return None
    return place


def _identifier(root: Subschema) -> str:
    name = "" if isinstance(root, bool) else root.get("$id", root.get("id", ""))
    return urldefrag(name)[0] if isinstance(name, str) else ""


def _is_old(root: Subschema) -> bool:
    """Whether the dialect is draft 7 or older, where $ref overrides all keywords next to it."""
    dialect = "" if isinstance(root, bool) else root.get("$schema", "")
    return any(f"draft-0{n}" in dialect for n in (3, 4, 6, 7))
