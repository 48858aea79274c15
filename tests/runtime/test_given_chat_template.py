"""A chat template that the user gives, in place of the model's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixlang.errors import ParameterError
from radixlang.protocol import Message
from radixlang.runtime.runtime import Runtime


def test_a_runtime_takes_another_chat_template(make_runtime: Any, tmp_path: Path) -> None:
    """Its end of turn ends generations, and its roles are what it knows."""
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}"
    file = tmp_path / "template.jinja"
    file.write_text(source)
    for given in (source, file, str(file)):
        runtime = make_runtime(chat_template=given)
        messages = [Message("user", "Hi")]
        text = runtime.render_chat(messages, add_generation_prompt=False)
        assert text == "<user>Hi<|im_end|>"
        assert runtime.tokenizer.encode("a b c") == make_runtime().tokenizer.encode("a b c")
        assert runtime.tokenizer.token_id("<|im_end|>") in runtime.loaded.eos_token_ids


@pytest.mark.parametrize(
    ("given", "told"),
    [("nowhere.jinja", "text of a Jinja template or a file"), ("{% for", "line 1")],
)
def test_a_chat_template_that_is_none_is_refused_before_the_model_is_read(
    given: str, told: str
) -> None:
    with pytest.raises(ParameterError, match=told):
        Runtime("no/such/model", chat_template=given)
