"""Turns against apply_chat_template: ten families' formats, golden, in several shapes of talk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from radixlang import assistant, function, gen, resume, role, take_checkpoint
from radixlang.errors import ParameterError, ProgramError
from radixlang.protocol import Markup, Message
from radixlang.state.state import State
from radixlang.testing import FakeBackend

# Each in the form that the family's own template gives its turns.
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama-2": (
        "{% if messages[0].role == 'system' %}{% set sys = '<<SYS>>\n' + messages[0].content + "
        "'\n<</SYS>>\n\n' %}{% set rest = messages[1:] %}{% else %}{% set sys = '' %}"
        "{% set rest = messages %}{% endif %}{% for m in rest %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate user and assistant') }}{% endif %}"
        "{% if m.role == 'user' %}<s>[INST] {% if loop.first %}{{ sys }}{% endif %}"
        "{{ m.content | trim }} [/INST]{% else %} {{ m.content | trim }} </s>{% endif %}"
        "{% endfor %}"
    ),
    "llama-3": (
        "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>"
        "\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "mistral": (
        "<s>{% if messages[0].role == 'system' %}{% set sys = messages[0].content + '\n\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set sys = '' %}{% set rest = messages %}"
        "{% endif %}{% for m in rest %}{% if m.role == 'user' %}[INST] "
        "{% if loop.first %}{{ sys }}{% endif %}{{ m.content }}[/INST]"
        "{% elif m.role == 'assistant' %} {{ m.content }}</s>{% else %}"
        "{{ raise_exception('only user and assistant roles') }}{% endif %}{% endfor %}"
    ),
    "gemma": (
        "<bos>{% if messages[0].role == 'system' %}{% set sys = messages[0].content + '\n\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set sys = '' %}{% set rest = messages %}"
        "{% endif %}{% for m in rest %}<start_of_turn>"
        "{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{% if loop.first %}{{ sys }}{% endif %}"
        "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    "phi-3": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}"
    ),
    "zephyr": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n"
        "{% if loop.last and add_generation_prompt %}<|assistant|>\n{% endif %}{% endfor %}"
    ),
    "vicuna": (
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n"
        "{% elif m.role == 'user' %}USER: {{ m.content }}\n{% else %}"
        "ASSISTANT: {{ m.content }}</s>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
    ),
    "command-r": (
        "<BOS_TOKEN>{% for m in messages %}<|START_OF_TURN_TOKEN|>"
        "<|{{ {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'}[m.role] }}_TOKEN|>"
        "{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}{% if add_generation_prompt %}"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
    ),
    "qwen-thinking": (
        "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
        "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.index0 > ns.last %}"
        "<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
}  # fmt: skip
TALKS = {
    "user": ["user"],
    "system": ["system", "user"],
    "two turns": ["user", "assistant", "user"],
    "few shot": ["system", "user", "assistant", "user", "assistant", "user"],
}


class TemplateBackend(FakeBackend):
    """A fake with a jinja template, rendered as transformers renders it."""

    def __init__(self, template: str, answers: Any) -> None:
        super().__init__(answers, tokens="char")
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        self._tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel()))
        self._tokenizer.chat_template = template

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        from jinja2 import TemplateError

        talk = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return str(self._tokenizer.apply_chat_template(
                talk, tokenize=False, add_generation_prompt=add_generation_prompt))  # fmt: skip
        except TemplateError as error:
            raise ParameterError(f"the chat template refuses this: {error}") from error


def talk_of(roles: Sequence[str]) -> list[Message]:
    return [Message(name, f"content {index} of {name}") for index, name in enumerate(roles)]


@function
def talk(s: State, roles: list[str]) -> None:
    for message in talk_of(roles):
        s += role(message.role, message.content)
    s += assistant(gen("answer"))


@pytest.mark.parametrize("shape", TALKS)
@pytest.mark.parametrize("family", TEMPLATES)
def test_the_prompt_is_what_apply_chat_template_gives(family: str, shape: str) -> None:
    backend = TemplateBackend(TEMPLATES[family], lambda prompt, params: "answer")
    state = talk(roles=TALKS[shape], runtime=backend)
    golden = backend.render_chat(talk_of(TALKS[shape]), add_generation_prompt=True)
    assert backend.prompts == [golden]
    assert state.messages() == [*talk_of(TALKS[shape]), Message("assistant", "answer")]
    assert backend.audit() == []


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_prefilled_answer_goes_on_in_the_same_turn(family: str) -> None:
    backend = TemplateBackend(TEMPLATES[family], lambda prompt, params: "and on")

    @function
    def program(s: State) -> None:
        s += role("user", "question") + assistant("It begins " + gen("x"))

    program(runtime=backend)
    (prompt,) = backend.prompts
    assert prompt.endswith("It begins ")
    assert prompt.count("question") == 1


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_generated_turn_is_written_like_a_past_one(family: str) -> None:
    """What is cached of a first answer is the prefix of the second question's prompt."""
    backend = TemplateBackend(TEMPLATES[family], lambda prompt, params: "answer")

    @function
    def program(s: State) -> None:
        s += role("user", "one") + assistant(gen("a")) + role("user", "two") + assistant(gen("b"))

    program(runtime=backend)
    first, second = backend.prompts
    assert second.startswith(first + "answer")


REWRITING = {
    "json": "{{ m.content | tojson }}",
    "json object": '{{ {"role": m.role, "content": m.content} | tojson }}',
    "escaped": "{{ m.content | e }}",
    "list of one": "{{ [m.content] | tojson }}",
}
RESULT = '{"city": "Rome\\n", "note": "<b>\\"warm\\"</b>"}\n\u2028é'


def rewriting(form: str) -> str:
    """ChatML whose tool turns are written in another form, as those of Llama 3.1 are."""
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'tool' %}" + form +
        "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )  # fmt: skip


@pytest.mark.parametrize("form", REWRITING.values(), ids=REWRITING)
def test_a_content_that_the_template_rewrites_is_what_apply_chat_template_gives(form: str) -> None:
    backend = TemplateBackend(rewriting(form), lambda prompt, params: "answer")
    messages = [Message("user", 'say "a"'), Message("tool", RESULT), Message("user", "so\n")]

    @function
    def program(s: State) -> None:
        s += role("user", 'say "a"')
        with s.role("tool"):
            s += RESULT[:20]
            s += RESULT[20:30]
            assert s.messages()[-1].content == RESULT[:30]
            s += RESULT[30:]
        s["saved"] = take_checkpoint(s)
        s += role("user", "so\n") + assistant(gen("x"))

    state = program(runtime=backend)
    assert backend.prompts == [backend.render_chat(messages, add_generation_prompt=True)]
    assert state.text().startswith(backend.prompts[0])
    assert state.messages() == [*messages, Message("assistant", "answer")]
    with resume(json.loads(json.dumps(state["saved"])), runtime=backend) as s:
        assert s.messages() == messages[:2]
        s += role("user", "so\n") + assistant(gen("x"))
    assert backend.prompts[1] == backend.prompts[0]
    assert backend.audit() == []


def test_what_is_generated_in_a_turn_that_would_be_rewritten_stays_as_it_is() -> None:
    backend = TemplateBackend(rewriting(REWRITING["json"]), lambda prompt, params: 'a "b"')

    @function
    def program(s: State) -> None:
        with s.role("tool"):
            s += 'the "model" says: ' + gen("x") + ' "so"'
        group = s.fork(2)
        group += role("tool", '"1"') + assistant(gen("y"))

    program(runtime=backend)
    first, *forked = backend.prompts
    assert first.endswith('tool\n"the "model" says: ')
    assert len(forked) == 2
    assert all(prompt.endswith('tool\n"\\"1\\""<|im_end|>\n<|im_start|>assistant\n')
               for prompt in forked)  # fmt: skip


def test_a_refused_order_is_an_error_with_its_place() -> None:
    backend = TemplateBackend(TEMPLATES["llama-2"], ["never"])

    @function
    def program(s: State) -> None:
        s += role("user", "one") + role("user", "two") + assistant(gen("x"))

    with pytest.raises(ProgramError, match=r"alternate") as caught:
        program(runtime=backend)
    assert "test_chat.py:" in caught.value.location


def test_forks_share_the_closing_of_the_turn_before_them() -> None:
    backend = TemplateBackend(TEMPLATES["chatml"], lambda prompt, params: "v")

    @function
    def program(s: State) -> None:
        s += role("user", "shared")
        group = s.fork(3)
        group += lambda i: assistant(f"{i} " + gen("x"))

    program(runtime=backend)
    shared = "<|im_start|>user\nshared<|im_end|>\n<|im_start|>assistant\n"
    num_shared = len(backend.codec.encode_run([Markup(shared)], at_start=True))
    assert backend.stats().num_computed_tokens == num_shared + 3 * len("0 ")


@pytest.mark.parametrize(
    "name", ["user<|im_end|>", "user\n", "", "a b", "1st", "<|im_start|>system", None, 3]
)
def test_a_role_that_is_no_name_is_refused_wherever_it_is_given(name: Any) -> None:
    with pytest.raises(ParameterError, match="a role must be a name"):
        role(name, "content")
    with pytest.raises(ParameterError, match="a role must be a name"):
        Message(name, "content")

    @function
    def program(s: State) -> None:
        with s.role(name):
            s += "content"

    backend = FakeBackend()
    with pytest.raises(ParameterError, match="a role must be a name"):
        program(runtime=backend)
    assert backend.audit() == []


def test_roles_of_templates_may_have_digits_dashes_and_letters_of_any_language() -> None:
    for name in ("user", "tool_2", "end-user", "Größe"):
        assert Message(name, "").role == name
