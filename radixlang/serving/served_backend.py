"""What the server needs of a backend beyond the language's protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from radixlang.protocol import Backend


class ServedBackend(Backend, Protocol):
    """A Backend with statistics and bytes of tokens, as the runtime and the scripted fake are."""

    def stats(self) -> Any:
        """Statistics of the moment, one attribute a figure."""
        ...

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts that are syntax in Markup."""
        ...

    def render_conversation(
        self, rows: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] = (),
        add_generation_prompt: bool,
    ) -> str:  # fmt: skip
        """The chat template's own output for messages with all their fields, and for tools."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token."""
        ...
