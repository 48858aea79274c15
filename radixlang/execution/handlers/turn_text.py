"""Turns of a conversation as text: what the model's own chat template writes around them.

The template is rendered with a sentinel in place of every content, and cut there. So the text
around contents depends only on the roles and is computed once for a sequence of roles, and a
template that trims contents cannot change them. If a template writes the content of a role in
another form, as JSON or escaped, a probe detects it, and the template then renders every content.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from radixlang.errors import ParameterError
from radixlang.protocol import Backend, Message

KnownTexts: TypeAlias = dict[tuple[Any, ...], str | bool]  # by what is asked, and its arguments

_FOLLOWING = {"system": "user", "user": "assistant", "assistant": "user", "tool": "assistant"}


_PROBE = "a\"b'c\\d\ne<f>g&h\u00e9i"  # characters that JSON, XML and other forms escape


def _sentinel(index: int) -> str:
    """A text of letters and digits, which no form of escaping changes."""
    return f"RadixlangContent{index}End"


class TurnText:
    """Opening and closing text of turns under one backend's template (thread-safe).

    `known` takes what was rendered, and may be shared by all that ask the same backend.
    """

    def __init__(self, backend: Backend, known: KnownTexts) -> None:
        self._backend = backend
        self._known = known

    def open(self, roles: tuple[str, ...], role: str, *, generates: bool) -> str:
        """Text that opens a turn of `role` after closed turns of `roles`.

        `generates`: the turn begins with generated text. An assistant turn then opens with the
        template's generation prompt, otherwise in the form of a past turn.

        Raises:
            ParameterError: the template refuses this role in this place.
        """
        return str(self._cached("open", roles, role, generates))

    def close(self, roles: tuple[str, ...]) -> str:
        """Text that closes the last turn of `roles`.

        Empty if the template writes it only once it knows the next turn; the next `open` then
        begins with it.
        """
        return str(self._cached("close", roles))

    def rewrites(self, roles: tuple[str, ...]) -> bool:
        """Whether the template writes the content of the last of these turns in another form."""
        return bool(self._cached("rewrites", roles))

    def content(self, roles: tuple[str, ...], content: str) -> str:
        """The content of the last of these turns as the template writes it.

        Unchanged if the template changes the rest of the turn because of this content.
        """
        before, mark, after = self._render(roles).partition(_sentinel(len(roles) - 1))
        text = self._render(roles, content=content)
        is_between = mark and text.startswith(before) and text[len(before) :].endswith(after)
        return text[len(before) : len(text) - len(after)] if is_between else content

    def _rewrites(self, roles: tuple[str, ...]) -> bool:
        try:
            return self.content(roles, _PROBE) != _PROBE
        except ParameterError:  # it refuses this turn in the last place: nothing is known
            return False

    def _cached(self, *key: Any) -> str | bool:  # the name of a method, and its arguments
        found = self._known.get(key)
        if found is None:
            made: str | bool = getattr(self, f"_{key[0]}")(*key[1:])
            found = self._known[key] = made
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
            tails.insert(0, (role, follow))  # in the form of a past turn
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

    def _render(
        self, roles: tuple[str, ...], add_generation_prompt: bool = False,
        content: str | None = None,
    ) -> str:  # fmt: skip
        """Turns of these roles with sentinels as contents; `content` is that of the last."""
        messages = [Message(role, _sentinel(index)) for index, role in enumerate(roles)]
        if content is not None:
            messages[-1] = Message(roles[-1], content)
        return self._backend.render_chat(messages, add_generation_prompt=add_generation_prompt)
