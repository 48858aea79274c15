"""The type of JSON objects in bodies of requests and replies."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]  # each field of a body has its own type
