"""What the server needs of a backend beyond the language's protocol."""

from __future__ import annotations

from typing import Any, Protocol

from radixlang.protocol import Backend


class ServedBackend(Backend, Protocol):
    """A Backend with statistics and bytes of tokens, as the runtime and the scripted fake are."""

    def stats(self) -> Any:
        """Statistics of the moment, one attribute a figure."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token."""
        ...
