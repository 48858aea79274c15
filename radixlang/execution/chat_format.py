"""Turns of a conversation as text: what the model's own chat template writes around them.

The template is rendered with a sentinel in the place of every content, and cut there. So the
structure depends on the roles alone and is computed once for a sequence of roles, and a
template that trims or rewrites contents cannot touch them.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

from radixlang.errors import ParameterError
from radixlang.protocol import Backend, Message

_FOLLOWING = {"system": "user", "user": "assistant", "assistant": "user", "tool": "assistant"}


def _sentinel(index: int) -> str:
    return f"<|radixlang:content:{index}|>"


class ChatFormat:
    """Opening and closing text of turns under one backend's template (thread-safe)."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._cache: dict[Any, Any] = {}
        self._lock = Lock()

    def open(self, roles: tuple[str, ...], role: str, *, generates: bool) -> str:
        """Text that opens a turn of `role` after closed turns of `roles`.

        `generates` tells that the model speaks first in it: then an assistant turn opens with
        the template's generation prompt, otherwise as a past turn is written.

        Raises:
            ParameterError: the template refuses this role in this place.
        """
        return str(self._cached(("open", roles, role, generates)))

    def close(self, roles: tuple[str, ...]) -> str:
        """Text that closes the last turn of `roles`.

        Empty where the template writes it only once it knows what follows; the next `open`
        then carries it.
        """
        return str(self._cached(("close", roles)))

    def _cached(self, key: Any) -> Any:
        with self._lock:
            found = self._cache.get(key)
        if found is None:
            found = self._open(*key[1:]) if key[0] == "open" else self._close(*key[1:])
            with self._lock:
                self._cache[key] = found
        return found

    def _open(self, roles: tuple[str, ...], role: str, generates: bool) -> str:
        emitted = self.close(roles) if roles else ""
        between = None
        if role == "assistant" and generates and roles:
            between = self._generation_prompt(roles)
        if between is None or not between.startswith(emitted):
            between = self._between(roles, role)
        if not between.startswith(emitted):
            raise ParameterError(
                f"the chat template of {self._backend.model_name} rewrites earlier turns when "
                f"{role!r} follows {', '.join(roles)}; build this prompt from text instead"
            )
        return between[len(emitted) :]

    def _generation_prompt(self, roles: tuple[str, ...]) -> str | None:
        try:
            text = self._render(roles, add_generation_prompt=True)
        except ParameterError:
            return None
        mark = _sentinel(len(roles) - 1)
        return text.rpartition(mark)[2] if mark in text else None

    def _between(self, roles: tuple[str, ...], role: str) -> str:
        """Text between the last content of `roles` and the content of `role`."""
        tails: list[tuple[str, ...]] = [(role,)]
        follow = _FOLLOWING.get(role)
        if role in ("assistant", "system") and follow:
            tails.insert(0, (role, follow))  # as a turn of the past is written
        refusal: ParameterError | None = None
        for tail in tails:
            try:
                text = self._render(roles + tail)
            except ParameterError as error:
                refusal = error
                continue
            before, mark, _ = text.partition(_sentinel(len(roles)))
            if mark and (not roles or _sentinel(len(roles) - 1) in before):
                return before.rpartition(_sentinel(len(roles) - 1))[2] if roles else before
        raise refusal or ParameterError(
            f"the chat template of {self._backend.model_name} drops the {role!r} turn after "
            f"{', '.join(roles) or 'nothing'}; use a role it knows, or plain text"
        )

    def _close(self, roles: tuple[str, ...]) -> str:
        try:
            text = self._render(roles)
        except ParameterError:
            return ""
        mark = _sentinel(len(roles) - 1)
        if mark not in text:
            return ""
        try:
            longer = self._render((*roles, _FOLLOWING.get(roles[-1], "user")))
        except ParameterError:
            longer = text
        return text.rpartition(mark)[2] if longer.startswith(text) else ""

    def _render(self, roles: tuple[str, ...], add_generation_prompt: bool = False) -> str:
        messages = [Message(role, _sentinel(index)) for index, role in enumerate(roles)]
        return self._backend.render_chat(messages, add_generation_prompt=add_generation_prompt)
