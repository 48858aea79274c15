"""Tokens are the truth: runs, special tokens, BOS, bytes, streams and chat templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from radixlang.errors import ParameterError
from radixlang.protocol import Markup, Message
from radixlang.runtime.models.gguf.file import GgufFile
from radixlang.runtime.models.loader import load_gguf_tokenizer
from radixlang.runtime.models.locate import find_default_model
from radixlang.runtime.text.byte_alphabet import byte_alphabet
from radixlang.runtime.text.tokenizer import Tokenizer, TokenizerConfig

# SmolLM2's vocabulary has no token for some control characters and rare planes: it drops them,
# here as in transformers.
CHARACTERS = st.characters(max_codepoint=0x2FFFF, exclude_categories=["Cs", "Cc"])
TEXT = st.text(CHARACTERS, max_size=40) | st.text("ab ▁\n<|im_end|>héé😀", max_size=30)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are Nobody.<|im_end|>\n' }}{% endif %}" + CHATML
)
LLAMA3_LIKE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set text = messages[0]['content'] %}{% set messages = messages[1:] %}"
    "{% else %}{% set text = '' %}{% endif %}"
    "{{ '<|im_start|>system\n\nToday: ' + strftime_now('%Y') + '\n' + text + '<|im_end|>' }}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n\n' + m['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}"
)
GEMMA_LIKE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set first = messages[0]['content'] + '\n\n' %}{% set turns = messages[1:] %}{% else %}"
    "{% set first = '' %}{% set turns = messages %}{% endif %}{% for m in turns %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + (first if loop.first else '') }}"
    "{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return load_gguf_tokenizer(GgufFile(find_default_model()))


def byte_level(template: str | None = None, *, adds_bos: bool = False) -> Tokenizer:
    """Single bytes, with ChatML's markers and a token that is added but not special."""
    vocab = {token: index for index, token in enumerate(byte_alphabet())}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "<|im_start|>", "<|im_end|>"])
    backend.add_tokens([AddedToken("<tool>", normalized=False, special=False)])
    variables = {"bos_token": "<s>"}
    return Tokenizer(backend, TokenizerConfig(256, adds_bos, (), template, variables))


def sentence_piece(prefix: str) -> Tokenizer:
    """Letters, spaces and byte fallback, with a prefix space of the given kind."""
    tokens = [
        "<s>",
        "</s>",
        "▁",
        "a",
        "b",
        "ab",
        "▁a",
        "▁ab",
        *(f"<0x{i:02X}>" for i in range(256)),
    ]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [("a", "b"), ("▁", "ab"), ("▁", "a")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True))
    if prefix == "always":
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=prefix, split=False)
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend, TokenizerConfig(0, True, (1,)))


# Runs


def test_markup_is_syntax_and_data_is_not(smollm2: Tokenizer) -> None:
    marked = smollm2.encode_run([Markup("<|im_start|>user\n"), "hi"], at_start=True)
    plain = smollm2.encode_run(["<|im_start|>user\n", "hi"], at_start=True)
    assert marked[0] == smollm2.token_id("<|im_start|>") == 1
    assert smollm2.special_token_ids.isdisjoint(plain)
    assert smollm2.decode(marked) == smollm2.decode(plain) == "<|im_start|>user\nhi"


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(TEXT, max_size=4))
def test_data_never_becomes_a_special_token(pieces: list[str], smollm2: Tokenizer) -> None:
    ids = smollm2.encode_run(pieces, at_start=True)
    assert smollm2.special_token_ids.isdisjoint(ids)
    assert smollm2.decode(ids) == "".join(pieces)


@settings(max_examples=100, deadline=None)
@given(left=TEXT, right=TEXT)
def test_a_run_does_not_depend_on_its_seams(left: str, right: str, smollm2: Tokenizer) -> None:
    whole = smollm2.encode_run([left + right], at_start=True)
    assert smollm2.encode_run([left, right], at_start=True) == whole


def test_tokens_cross_the_seam_between_markup_and_data(smollm2: Tokenizer) -> None:
    ids = smollm2.encode_run([Markup("<|im_start|>user\nThe ans"), "wer"], at_start=True)
    assert ids == smollm2.encode_run([Markup("<|im_start|>user\nThe answer")], at_start=True)


def test_vocabulary_that_spells_a_special_token_by_merging() -> None:
    vocab = {t: i for i, t in enumerate([*byte_alphabet(), "<x", "<x>"])}
    backend = Backend(models.BPE(vocab=vocab, merges=[("<", "x"), ("<x", ">")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<x>"])
    tokenizer = Tokenizer(backend, TokenizerConfig())
    ids = tokenizer.encode_run(["a<x>b<x>"], at_start=True)
    assert tokenizer.token_id("<x>") not in ids
    assert tokenizer.decode(ids) == "a<x>b<x>"
    assert tokenizer.encode_run([Markup("<x>")], at_start=True) == [tokenizer.token_id("<x>")]


def test_added_tokens_that_the_template_writes_are_markup_too() -> None:
    ordinary, marked = byte_level(CHATML), byte_level(CHATML + "<tool>")
    tool = ordinary.token_id("<tool>")
    assert tool in ordinary.encode_run(["<tool>"], at_start=True)
    assert tool not in marked.encode_run(["<tool>"], at_start=True)
    assert marked.encode_run([Markup("<tool>")], at_start=True) == [tool]


def test_special_tokens_strip_markup_and_leave_data() -> None:
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(byte_alphabet())}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<e>", rstrip=True, lstrip=True, special=True)])
    tokenizer = Tokenizer(backend, TokenizerConfig())
    ids = tokenizer.encode_run([Markup("a <e>\n"), "\n b"], at_start=True)
    assert tokenizer.decode(ids) == "a<e>\n b"


# BOS and the prefix space


def test_bos_is_added_once_and_only_at_the_start() -> None:
    tokenizer = byte_level(adds_bos=True)
    plain = tokenizer.encode_run(["a"], at_start=True)
    assert plain == [256, ord("a") - 33 + byte_alphabet().index("!")]
    assert tokenizer.encode_run([Markup("<s>"), "a"], at_start=True) == plain
    assert tokenizer.encode_run([Markup("<s>a")], at_start=True) == plain
    assert tokenizer.encode_run(["a"], at_start=False) == plain[1:]
    assert tokenizer.encode("a") == plain[1:]
    assert tokenizer.encode_run([], at_start=True) == [256]
    literal = tokenizer.encode_run(["<s>a"], at_start=True)
    assert literal.count(256) == 1
    assert tokenizer.decode(literal) == "<s><s>a"


def test_no_bos_where_the_model_wants_none(smollm2: Tokenizer) -> None:
    assert smollm2.bos_token_id is None
    assert smollm2.encode_run([""], at_start=True) == []


@pytest.mark.parametrize(
    ("prefix", "start", "after"),
    [("first", ["▁ab"], ["ab"]), ("always", ["▁ab"], ["▁ab"]), ("never", ["ab"], ["ab"])],
)
def test_prefix_space(prefix: str, start: list[str], after: list[str]) -> None:
    tokenizer = sentence_piece(prefix)
    bos, eos = 0, 1
    tokens = {name: [tokenizer.token_id(t) for t in ts] for name, ts in
              {"start": start, "after": after, "inside": ["ab"]}.items()}  # fmt: skip
    assert tokenizer.encode_run(["ab"], at_start=True) == [bos, *tokens["start"]]
    assert tokenizer.encode_run(["ab"], at_start=False) == tokens["inside"]
    marked = tokenizer.encode_run([Markup("</s>"), "ab"], at_start=False)
    assert marked == [eos, *tokens["after"]]
    ids = tokenizer.encode_run(["ab a"], at_start=True)
    assert tokenizer.decode(ids, at_start=True) == "<s>ab a"
    assert tokenizer.decode(tokenizer.encode_run([" ab"], at_start=False)) == " ab"


@settings(max_examples=100, deadline=None)
@given(text=TEXT)
@pytest.mark.parametrize("prefix", ["first", "always", "never"])
def test_sentence_piece_continues_byte_for_byte(prefix: str, text: str) -> None:
    tokenizer = sentence_piece(prefix)
    text = text.replace("▁", "_")  # its own stand-in for a space cannot be told from one
    assert tokenizer.decode(tokenizer.encode_run([text], at_start=False)) == text


# Bytes and streams


@settings(max_examples=150, deadline=None)
@given(text=TEXT, data=st.data())
def test_stream_gives_whole_characters_and_loses_nothing(
    text: str, data: st.DataObject, smollm2: Tokenizer
) -> None:
    ids = smollm2.encode_run([text], at_start=False)
    stream, pieces = smollm2.stream(), []
    while ids:
        count = data.draw(st.integers(1, len(ids)))
        pieces.append(stream.push(ids[:count]))
        ids = ids[count:]
    assert "�" not in "".join(pieces) or "�" in text
    assert "".join(pieces) + stream.finish() == text


def test_stream_holds_an_unfinished_character_back() -> None:
    tokenizer = byte_level()
    first, *rest = tokenizer.encode("é")
    stream = tokenizer.stream()
    assert stream.push([first]) == ""
    assert stream.push(rest) == "é"
    assert stream.push([first]) == ""
    assert stream.finish() == "�"
    assert stream.push(tokenizer.encode("ok")) == "ok"


def test_byte_fallback_tokens_join_to_characters() -> None:
    tokenizer = sentence_piece("first")
    stream = tokenizer.stream()
    ids = tokenizer.encode_run(["😀"], at_start=False)
    assert len(ids) == 4
    assert [stream.push([i]) for i in ids] == ["", "", "", "😀"]


def test_token_bytes(smollm2: Tokenizer) -> None:
    assert smollm2.token_bytes(2) == b"<|im_end|>"
    assert smollm2.token_bytes(smollm2.encode(" the")[0]) == b" the"
    assert smollm2.token_bytes(10**6) == b""
    with pytest.raises(ParameterError, match="not negative"):
        smollm2.token_bytes(-1)
    assert smollm2.vocab_size == 49152


# Chat templates


def test_smollm2_renders_no_hidden_system_text(smollm2: Tokenizer) -> None:
    messages = [Message("user", "Hi <|im_end|>"), Message("assistant", "Hello")]
    text = smollm2.render_chat(messages, add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, "<|im_start|>user\nhi<|im_end|>\n"),
        (DEFAULT_SYSTEM, "<|im_start|>user\nhi<|im_end|>\n"),
        (LLAMA3_LIKE, "<s><|im_start|>user\n\nhi<|im_end|>"),
        (GEMMA_LIKE, "<s><|im_start|>user\nhi<|im_end|>\n"),
    ],
    ids=["chatml", "default-system", "dated-system", "system-in-first-turn"],
)
def test_hidden_system_text_is_taken_off(template: str, expected: str) -> None:
    tokenizer = byte_level(template)
    assert tokenizer.render_chat([Message("user", "hi")], add_generation_prompt=False) == expected


@pytest.mark.parametrize("template", [CHATML, DEFAULT_SYSTEM, LLAMA3_LIKE, GEMMA_LIKE])
@pytest.mark.parametrize("prompt", [False, True])
def test_renders_like_transformers_when_there_is_a_system_message(
    template: str, prompt: bool, smollm2: Tokenizer
) -> None:
    messages = [Message("system", "Be brief."), Message("user", " hi\n"), Message("assistant", "x")]
    found = byte_level(template).render_chat(messages, add_generation_prompt=prompt)
    assert found == reference(template, messages, prompt)


def reference(template: str, messages: list[Message], prompt: bool) -> str:
    """What transformers' apply_chat_template gives."""
    from transformers.utils.chat_template_utils import render_jinja_template

    rows = [{"role": m.role, "content": m.content} for m in messages]
    rendered, _ = render_jinja_template(
        [rows], chat_template=template, add_generation_prompt=prompt, bos_token="<s>"
    )
    text: str = rendered[0]
    return text


def test_smollm2_renders_like_transformers(smollm2: Tokenizer) -> None:
    template = smollm2.chat_template
    assert template is not None
    for messages in (
        [Message("system", "S"), Message("user", "U")],
        [Message("system", ""), Message("user", "U"), Message("assistant", "A\n\n")],
        [Message("user", "U"), Message("user", "V")],
    ):
        for prompt in (False, True):
            expected = reference(template, messages, prompt)
            if messages[0].role != "system":
                default = expected.index("<|im_start|>user")
                expected = expected[default:]
            assert smollm2.render_chat(messages, add_generation_prompt=prompt) == expected


def test_rendered_chat_tokenises_as_transformers_does(smollm2: Tokenizer) -> None:
    from transformers import AutoTokenizer

    path = find_default_model()
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    messages = [Message("system", "Be brief."), Message("user", "What is 12 + 30?")]
    rows = [{"role": m.role, "content": m.content} for m in messages]
    expected = theirs.apply_chat_template(rows, add_generation_prompt=True, return_dict=False)
    text = smollm2.render_chat(messages, add_generation_prompt=True)
    assert smollm2.encode_run([Markup(text)], at_start=True) == expected


def test_end_of_turn_ends_generation(smollm2: Tokenizer) -> None:
    assert smollm2.eos_token_ids == (2,)
    assert byte_level(CHATML).eos_token_ids == (258,)
    assert byte_level(None).eos_token_ids == ()


def test_no_template_is_a_parameter_error() -> None:
    with pytest.raises(ParameterError, match=r"no chat template.*plain text"):
        byte_level().render_chat([Message("user", "hi")], add_generation_prompt=True)


def test_template_that_refuses_names_the_roles() -> None:
    tokenizer = byte_level(GEMMA_LIKE)
    with pytest.raises(ParameterError, match=r"roles: user, user\): Conversation roles must alt"):
        tokenizer.render_chat(
            [Message("user", "a"), Message("user", "b")], add_generation_prompt=True
        )


def test_generation_blocks_and_loop_controls_are_understood() -> None:
    template = (
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}"
    )
    text = byte_level(template).render_chat(
        [Message("user", "<é>")] * 3, add_generation_prompt=False
    )
    assert text == '{"role": "user", "content": "<é>"}' * 2


def test_templates_cannot_reach_python() -> None:
    tokenizer = byte_level("{{ messages.__class__.__mro__ }}{{ ''.__class__.mro() }}")
    with pytest.raises(ParameterError, match="refuses these messages"):
        tokenizer.render_chat([Message("user", "a")], add_generation_prompt=False)


def test_default_model_file_exists() -> None:
    assert isinstance(find_default_model(), Path)
