"""Chat templates that write calls of tools as four families of models do, and a fake with one."""

from __future__ import annotations

from typing import Any

from radixlang.runtime.text.chat_template import ChatTemplate
from radixlang.testing import FakeBackend

BEGIN, END = "<|im_start|>", "<|im_end|>"
# templates of our own, each writing calls as one family of models does
CALLS = {
    "hermes": "<tool_call>\n{{ {'name': c.name, 'arguments': c.arguments} | tojson }}"
    "\n</tool_call>",
    "llama": "{{ {'name': c.name, 'parameters': c.arguments} | tojson }}",
    "mistral": "[TOOL_CALLS] [{{ {'name': c.name, 'arguments': c.arguments} | tojson }}]",
    "named": "[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}",
}


def template(family: str) -> str:
    return (
        "{% if tools %}" + BEGIN + "system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
        + END + "\n{% endif %}{% for m in messages %}" + BEGIN + "{{ m.role }}\n"
        "{% if m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}"
        "{% for call in m.tool_calls or [] %}{% set c = call.function %}" + CALLS[family]
        + "{% endfor %}" + END + "\n{% endfor %}"
        "{% if add_generation_prompt %}" + BEGIN + "assistant\n{% endif %}"
    )  # fmt: skip


class Family(FakeBackend):
    """A scripted backend with the chat template of a family."""

    def __init__(self, family: str, answers: Any, **options: Any) -> None:
        super().__init__(answers, **options)
        self._chat_template = ChatTemplate(template(family), {})

    def render_conversation(
        self, rows: Any, *, tools: Any = (), add_generation_prompt: bool
    ) -> str:
        return self._chat_template.render_rows(
            rows, tools=tools, add_generation_prompt=add_generation_prompt
        )
