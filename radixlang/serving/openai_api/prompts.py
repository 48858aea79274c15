"""From a request's prompt or conversation to the pieces of a branch.

Contents are data: special tokens in them are ordinary characters. Only the model's own template
writes Markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixlang.errors import ParameterError
from radixlang.execution.handlers.node_context import turn_text
from radixlang.json_types import JsonBody
from radixlang.protocol import Backend, Markup, check_role
from radixlang.serving.openai_api.schemas import ChatRequest, ChatTurn, CompletionRequest

Pieces = list[str | Sequence[int]]
_ROLES = {"developer": "system"}  # OpenAI's newer name


def completion_prompts(body: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a completion: each a text, or token ids.

    Raises:
        ParameterError: there is none.
    """
    given: Any = body.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    if not given:
        raise ParameterError("prompt is an empty list; give a text or token ids")
    for prompt in given:
        if isinstance(prompt, str):
            check_text(prompt)
        elif not prompt or min(prompt) < 0:
            raise ParameterError("a prompt of token ids has at least one, and none is negative")
    return list(given)


def chat_pieces(
    body: ChatRequest, backend: Backend, roles: tuple[str, ...] = ()
) -> tuple[Pieces, tuple[str, ...]]:
    """The pieces of a conversation, up to where the answer begins, and the roles of its turns with
    that of the answer. `roles` are those of the turns before it, the last of which is open.

    Raises:
        ParameterError: the model's template refuses the conversation.
    """
    turns = body.messages
    if not turns:
        raise ParameterError("messages is empty; give at least one")
    template = turn_text(backend)
    pieces: Pieces = [Markup(template.close(roles))] if roles else []
    for number, turn in enumerate(turns):
        role = role_of(turn)
        is_open = body.continue_final_message and number == len(turns) - 1
        generates = is_open and not turn.content
        pieces.append(Markup(template.open(roles, role, generates=generates)))
        roles += (role,)
        content = content_text(turn)
        is_rewritten = not is_open and template.rewrites(roles)
        pieces.append(template.content(roles, content) if is_rewritten else content)
        if not is_open:
            pieces.append(Markup(template.close(roles)))
    if body.add_generation_prompt and not body.continue_final_message:
        pieces.append(Markup(template.open(roles, "assistant", generates=True)))
        roles += ("assistant",)
    return [piece for piece in pieces if piece], roles


def role_of(turn: ChatTurn) -> str:
    """The role of a message under the name that templates know.

    Raises:
        ParameterError: it is not a name.
    """
    role = _ROLES.get(turn.role, turn.role)
    check_role(role)
    return role


def content_text(turn: ChatTurn) -> str:
    """The text of a message; its parts in order.

    Raises:
        ParameterError: a part is not text.
    """
    if isinstance(turn.content, list):
        text = "".join(map(_part_text, turn.content))
    else:
        text = turn.content or ""
    check_text(text)
    return text


def _part_text(part: JsonBody) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind not in ("text", "input_text") or not isinstance(text, str):
        raise ParameterError(f"a message's part of type {kind!r} is not served; send text")
    return text


def check_text(text: str) -> None:
    """Raise a ParameterError for a text that UTF-8 cannot encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ParameterError(
            f"a text holds half a surrogate pair at character {error.start}; send whole characters"
        ) from None
