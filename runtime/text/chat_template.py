"""A model's own chat template, without its default system text.

Many templates add a default system message to a conversation that has none (SmolLM2, Qwen 2.5),
or a block with dates (Llama 3.1). A short probe finds such a block once, and `render` removes it;
everything else is the template's own output, character for character.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from radixlang.errors import ParameterError
from radixlang.protocol import Message

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.parser import Parser


_SYSTEM, _USER, _SECOND, _REPLY = (
    "\ue000sys\ue000",
    "\ue001one\ue001",
    "\ue002two\ue002",
    "\ue003re\ue003",
)


class ChatTemplate:
    """A compiled Jinja template.

    Args:
        source: the template.
        variables: what it may use in addition to the messages, such as bos_token.

    Attributes:
        end_of_turn: the text after an assistant's content; None if it cannot be found.

    Raises:
        ParameterError: the source is not a valid template.
    """

    def __init__(self, source: str, variables: Mapping[str, object]) -> None:
        self._template = _compile(source)
        self._variables = variables
        self._hidden = self._find_hidden()
        self.end_of_turn = self._find_end_of_turn()

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The conversation as the model expects it.

        Raises:
            ParameterError: the template refuses the messages.
        """
        text = self.render_unchanged(messages, add_generation_prompt=add_generation_prompt)
        if self._hidden is None or (messages and messages[0].role == "system"):
            return text
        before, block = self._hidden
        return before + text[len(before + block) :] if text.startswith(before + block) else text

    def render_unchanged(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The template's own output, with a default system text if it writes one.

        Raises:
            ParameterError: the template refuses the messages.
        """
        rows = [{"role": m.role, "content": m.content} for m in messages]
        return self._render(rows, add_generation_prompt)

    def render_rows(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any],
        add_generation_prompt: bool,
    ) -> str:
        """The template's own output for messages with all their fields, such as tool calls.

        Raises:
            ParameterError: the template refuses the messages.
        """
        return self._render(list(rows), add_generation_prompt, list(tools) or None)

    def _render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, tools: Any = None
    ) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                documents=None,
                **self._variables,
            )
            return text
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            roles = ", ".join(message["role"] for message in messages) or "none"
            raise ParameterError(
                f"the model's chat template refuses these messages (roles: {roles}): {error}"
            ) from error

    def _try(self, *turns: tuple[str, str]) -> str | None:
        try:
            return self._render([{"role": r, "content": c} for r, c in turns], False)
        except ParameterError:
            return None

    def _find_hidden(self) -> tuple[str, str] | None:
        """The text before a default system block, and the block.

        A conversation with a known system text shows how a system block begins and ends; a
        conversation without one whose output begins and ends the same way has a default one.
        """
        bare = self._try(("user", _USER))
        given = self._try(("system", _SYSTEM), ("user", _USER))
        header = self._user_header()
        if bare is None or given is None or header is None or given.count(_SYSTEM) != 1:
            return None
        before, after = given.split(_SYSTEM)
        between = after[: after.find(_USER)].removesuffix(header)
        rest = after[len(between) :]
        if not (bare.startswith(before) and bare.endswith(between + rest)):
            return None
        if len(bare) < len(before) + len(between) + len(rest):
            return None
        bos = str(self._variables.get("bos_token") or "")
        # In ChatML models the "BOS" is the marker that begins every turn, this block's too.
        start = len(bos) if bare.startswith(bos) and not header.startswith(bos) else 0
        return bare[:start], bare[start : len(bare) - len(rest)]

    def _user_header(self) -> str | None:
        """The text before a user's content, found on a turn that is not the first."""
        for reply in ((), (("assistant", _REPLY),)):
            text = self._try(("system", _SYSTEM), ("user", _USER), *reply, ("user", _SECOND))
            if text is None or _SECOND not in text:
                continue
            head, footer = text.split(_SECOND)[:2]
            last = head.rsplit(_REPLY if reply else _USER, 1)[-1]
            if last.startswith(footer):
                return last[len(footer) :]
        return None

    def _find_end_of_turn(self) -> str | None:
        text = self._try(("user", _USER), ("assistant", _REPLY))
        return text.split(_REPLY, 1)[1] or None if text is not None and _REPLY in text else None


# (opening, closing) of a thought, with the line breaks that models are trained on, by the text in
# a template that tells of them
_THINK_TAGS = {
    "</think>": ("<think>\n", "\n</think>\n\n"),
    "</thinking>": ("<thinking>\n", "\n</thinking>\n\n"),
    "</seed:think>": ("<seed:think>", "</seed:think>"),
    "[/THINK]": ("[THINK]", "[/THINK]"),
    "<|END_THINKING|>": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "<|channel|>analysis": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
}


def think_tags_of(source: str | None) -> tuple[str, str] | None:
    """The texts that open and close a thought in a chat template; None if it tells of none."""
    found = (tags for sign, tags in _THINK_TAGS.items() if source and sign in source)
    return next(found, None)


def template_text(given: str | Path) -> str:
    """The Jinja text of a template that a user gave: the text itself, or a file with it.

    Raises:
        ParameterError: it is neither, or no valid Jinja.
    """
    is_text = isinstance(given, str) and ("{{" in given or "{%" in given)
    if not is_text:
        try:
            text = Path(given).read_text("utf-8")
        except (OSError, UnicodeDecodeError, TypeError) as error:
            raise ParameterError(
                f"chat_template is the text of a Jinja template or a file with it, got {given!r}: "
                f"{error}"
            ) from error
    else:
        text = str(given)
    _compile(text)
    return text


def _compile(source: str) -> Template:
    """The template compiled in the environment for which published templates are written."""
    from jinja2 import TemplateSyntaxError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Scope
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """{% generation %} marks the assistant's part for training; here it is its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> Scope:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return Scope(body, lineno=line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        raise ParameterError(
            f"the chat template is not valid Jinja, line {error.lineno}: {error.message}"
        ) from error


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _to_json(
    value: object, ensure_ascii: bool = False, **options: Any
) -> str:  # those of json.dumps
    """The filter tojson without the HTML escapes of Jinja's own."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # those of json.dumps
