"""Text to tokens and back. Tokens are never tokenised again, and data never becomes syntax.

A run is the text between two generations. It is tokenised as one piece, so that tokens may cross
the boundaries between a template's and a program's text; special tokens are recognised only in
`Markup`. Generated text is decoded byte by byte, and never ends in half a character.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend

from radixlang.errors import ParameterError
from radixlang.protocol import Markup, Message
from radixlang.runtime.text.byte_alphabet import byte_alphabet
from radixlang.runtime.text.chat_template import ChatTemplate

Prefix = Literal["never", "first", "always"]
_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """What a model's files say about its tokenizer, apart from the vocabulary."""

    bos_token_id: int | None = None
    adds_bos: bool = False
    eos_token_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    template_variables: Mapping[str, object] = field(default_factory=dict)


class Tokenizer:
    """The tokenizer of one model. Safe to use from several threads.

    Args:
        backend: vocabulary, normaliser, splitter and added tokens; used without a copy.
        config: special ids and the chat template.

    Attributes:
        eos_token_ids: every token that ends a generation: those that the model's files name, and
            the one that the chat template writes after an assistant's turn.
        special_token_ids: tokens that plain text never becomes.
        vocab_size: number of ids, holes included.
    """

    def __init__(self, backend: Backend, config: TokenizerConfig) -> None:
        self.config = config
        _promote_markup(backend, config.chat_template or "")
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        self._bytes = _token_bytes(backend, added)
        self.vocab_size = len(self._bytes)
        self._special = _SpecialTokens(added)
        self._prefix = _prefix_policy(backend)
        plain = self._prefix == "never"
        self._backend = backend
        self._inside = backend if plain else _without_prefix(backend, added)
        self._backend.encode_special_tokens = self._inside.encode_special_tokens = True
        self._template = _chat_template(config)
        self.eos_token_ids = self._all_eos()

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if this model's texts begin with one."""
        return self.config.bos_token_id if self.config.adds_bos else None

    @property
    def chat_template(self) -> str | None:
        """The model's Jinja template, None for a model without one."""
        return self.config.chat_template

    def with_chat_template(self, source: str) -> Tokenizer:
        """The same tokenizer with another Jinja template."""
        copy = type(self._backend).from_str(self._backend.to_str())
        return Tokenizer(copy, replace(self.config, chat_template=source))

    def __reduce__(self) -> tuple[object, ...]:
        """Vocabulary and settings; another process builds its tokenizer from them."""
        return _from_json, (type(self._backend), self._backend.to_str(), self.config)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text at the start of a prompt, BOS excluded."""
        return self._encode_pieces([text], at_start=True)

    def encode_run(self, pieces: Sequence[str], *, at_start: bool) -> list[int]:
        """Token ids of the pieces between two generations, tokenised as one run.

        Special tokens are recognised inside Markup only. Where a special token strips the
        whitespace next to it, it strips that of the Markup and leaves data as it is.

        Args:
            pieces: str is data, `Markup` is text of a template.
            at_start: nothing precedes the run. A BOS is added where the model wants one and the
                run does not begin with it; SentencePiece's prefix space is added there only.
        """
        ids = self._encode_pieces(pieces, at_start=at_start)
        bos = self.bos_token_id
        if at_start and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, token_ids: Sequence[int], *, at_start: bool = False) -> str:
        """Text of token ids, special tokens included; invalid bytes become U+FFFD.

        `at_start` removes the prefix space that the tokenizer puts before a whole prompt.
        """
        text = self.decode_bytes(token_ids).decode("utf-8", "replace")
        if at_start and self._prefix != "never":
            head = self._special.at(text) if self.bos_token_id is not None else ""
            rest = text[len(head) :]
            text = head + rest.removeprefix(" ")
        return text

    def decode_bytes(self, token_ids: Iterable[int]) -> bytes:
        """The concatenated bytes of tokens."""
        return b"".join(map(self.token_bytes, token_ids))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; empty for an id that the vocabulary does not hold (padding).

        Raises:
            ParameterError: a negative id.
        """
        if token_id < 0:
            raise ParameterError(f"token ids are not negative, got {token_id}")
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def token_id(self, token: str) -> int | None:
        """Id of a token in the vocabulary's spelling; None if there is none."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def stream(self) -> TextStream:
        """An incremental decoder of one generation."""
        return TextStream(self)

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The chat template applied to the messages, without a default system text.

        Raises:
            ParameterError: the model has no template, or it refuses the messages.
        """
        return self._chat().render(messages, add_generation_prompt=add_generation_prompt)

    def render_chat_unchanged(
        self, messages: Sequence[Message], *, add_generation_prompt: bool
    ) -> str:
        """The chat template's own output, default system text included, as other software has it.

        Raises:
            ParameterError: the model has no template, or it refuses the messages.
        """
        return self._chat().render_unchanged(messages, add_generation_prompt=add_generation_prompt)

    def render_conversation(
        self, rows: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] = (),
        add_generation_prompt: bool,
    ) -> str:  # fmt: skip
        """The chat template's own output for messages with all their fields, and for tools.

        Raises:
            ParameterError: the model has no template, or it refuses the messages.
        """
        return self._chat().render_rows(
            rows, tools=tools, add_generation_prompt=add_generation_prompt
        )

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts that are syntax in Markup."""
        return tuple(self._special.ids)

    def _chat(self) -> ChatTemplate:
        if self._template is None:
            raise ParameterError(
                "this model has no chat template, so it has no roles; write the prompt as plain "
                "text, or use an instruction-tuned model"
            )
        return self._template

    def _all_eos(self) -> tuple[int, ...]:
        ids = list(self.config.eos_token_ids)
        end = self._template.end_of_turn if self._template is not None else None
        if end is not None and (token := self._special.at(end.lstrip())):
            ids.append(self._special.ids[token])
        return tuple(dict.fromkeys(ids))

    def _encode_pieces(self, pieces: Sequence[str], *, at_start: bool) -> list[int]:
        ids: list[int] = []
        text, first, after_special = "", at_start, False
        for piece in self._cut(pieces):
            if isinstance(piece, str):
                text += piece
                continue
            ids += self._encode_text(text, self._wants_prefix(first, after_special))
            ids.append(piece)
            text, first, after_special = "", False, True
        return ids + self._encode_text(text, self._wants_prefix(first, after_special))

    def _cut(self, pieces: Sequence[str]) -> Iterable[str | int]:
        for piece in pieces:
            if isinstance(piece, Markup):
                yield from self._special.cut(piece)
            else:
                yield piece

    def _wants_prefix(self, first: bool, after_special: bool) -> bool:
        if first:
            return self._prefix != "never"
        return after_special and self._prefix == "always"

    def _encode_text(self, text: str, prefix: bool) -> list[int]:
        if not text:
            return []
        backend = self._backend if prefix else self._inside
        encoding = backend.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self.special_token_ids.isdisjoint(ids):
            return ids
        return self._without_special(text, prefix, encoding)

    def _without_special(self, text: str, prefix: bool, encoding: Encoding) -> list[int]:
        """Encode text that the vocabulary would merge into a special token: cut it inside."""
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self.special_token_ids and end - start > 1:
                cut = start + 1
                head = self._encode_text(text[:cut], prefix)
                return head + self._encode_text(text[cut:], False)
        ids: list[int] = encoding.ids  # an unknown token for a single character
        return ids


class TextStream:
    """Decodes one generation token by token; returned text never changes.

    Bytes of an unfinished character are held back until it is complete, or until `finish`.

    Attributes:
        bytes_of: the bytes of one token.
        is_inside_character: True while bytes of an unfinished character are held back.
    """

    __slots__ = ("_decoder", "_tokenizer", "bytes_of", "is_inside_character")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.bytes_of = tokenizer.token_bytes
        self.is_inside_character = False

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that became final with these tokens."""
        return self.push_bytes(self._tokenizer.decode_bytes(token_ids))

    def push_bytes(self, data: bytes) -> str:
        """Text that became final with these bytes."""
        if not self.is_inside_character:
            try:
                return data.decode()  # nearly always whole, and three times as fast
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(data)
        self.is_inside_character = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """What was held back, an unfinished character as U+FFFD; the stream starts again."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self.is_inside_character = False
        return rest


class _SpecialTokens:
    """Finds special tokens in a template's text, the longest first."""

    def __init__(self, added: dict[int, AddedToken]) -> None:
        special = {t.content: (i, t) for i, t in added.items() if t.special and t.content}
        self.ids = {content: index for content, (index, _) in special.items()}
        longest_first = sorted(special, key=len, reverse=True)
        parts = []
        for content in longest_first:
            token = special[content][1]
            left, right = (r"\s*" if strip else "" for strip in (token.lstrip, token.rstrip))
            parts.append(f"{left}(?:{re.escape(content)}){right}")
        self._pattern = re.compile("|".join(parts)) if parts else None

    def at(self, text: str) -> str:
        """The special token that the text begins with, or an empty string."""
        match = self._pattern.match(text) if self._pattern is not None else None
        return match.group().strip() if match is not None else ""

    def cut(self, text: str) -> Iterable[str | int]:
        """Text and special ids in order."""
        place = 0
        for match in self._pattern.finditer(text) if self._pattern is not None else ():
            if match.start() > place:
                yield str(text[place : match.start()])
            yield self._id(match.group())
            place = match.end()
        if place < len(text):
            yield str(text[place:])

    def _id(self, found: str) -> int:
        return self.ids[found] if found in self.ids else self.ids[found.strip()]


def _from_json(kind: type[Backend], source: str, config: TokenizerConfig) -> Tokenizer:
    return Tokenizer(kind.from_str(source), config)


def _chat_template(config: TokenizerConfig) -> ChatTemplate | None:
    if config.chat_template is None:
        return None
    return ChatTemplate(config.chat_template, config.template_variables)


def _promote_markup(backend: Backend, chat_template: str) -> None:
    """Make added tokens special that the template writes as markup, whatever their flag says.

    Qwen's <tool_call> and similar tokens are ordinary added tokens, but data that spells one would
    be syntax for the model.
    """
    found = [
        token
        for token in backend.get_added_tokens_decoder().values()
        if not token.special
        and token.content in chat_template
        and (token.content[:1] + token.content[-1:]) in ("<>", "[]")
    ]
    for token in found:
        token.special = True
    backend.add_special_tokens(found)


Part: TypeAlias = dict[str, Any]  # of a tokenizer: the library's own JSON, with its `type`


def _prefix_policy(backend: Backend) -> Prefix:
    """Where the tokenizer puts a space before text: at its start, before every piece, or never."""
    for part in _parts(backend.normalizer) + _parts(backend.pre_tokenizer):
        match part.get("type"):
            case "Prepend":
                return "always"
            case "Metaspace":
                scheme: Prefix = part.get("prepend_scheme", "always")
                return scheme
            case "ByteLevel" if part.get("add_prefix_space"):
                return "always"
    return "never"


def _without_prefix(backend: Backend, added: dict[int, AddedToken]) -> Backend:
    """The same tokenizer without the prefix space of its normaliser and splitter."""
    normalizer = [p for p in _parts(backend.normalizer) if p["type"] != "Prepend"]
    splitter = [_part_without_prefix(p) for p in _parts(backend.pre_tokenizer)]
    shell = _shell(normalizer, splitter)
    copy = Backend(backend.model)
    if normalizer:
        copy.normalizer = shell.normalizer
    if splitter:
        copy.pre_tokenizer = shell.pre_tokenizer
    copy.add_tokens([added[index] for index in sorted(added)])
    return copy


def _part_without_prefix(part: Part) -> Part:
    if part["type"] == "Metaspace":
        return part | {"prepend_scheme": "never"}
    return part | ({"add_prefix_space": False} if part["type"] == "ByteLevel" else {})


def _shell(normalizer: list[Part], splitter: list[Part]) -> Backend:
    """A tokenizer without a vocabulary, by which the library reads these parts from JSON."""
    return Backend.from_str(
        json.dumps({
            "version": "1.0",
            "added_tokens": [],
            "normalizer": {"type": "Sequence", "normalizers": normalizer},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": splitter},
            "model": {"type": "BPE", "vocab": {}, "merges": []},
        })
    )  # fmt: skip


def _parts(component: Any) -> list[Part]:  # the library's classes share no type
    """JSON of a normaliser, splitter or decoder, sequences flattened."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    nested = state.get("normalizers") or state.get("pretokenizers") or state.get("decoders")
    return list(nested) if state.get("type") == "Sequence" else [state]


def _token_bytes(backend: Backend, added: dict[int, AddedToken]) -> list[bytes]:
    """The bytes of every id; empty for a hole in the vocabulary."""
    byte_level = any(p["type"] == "ByteLevel" for p in _parts(backend.decoder))
    values = {char: byte for byte, char in enumerate(byte_alphabet())}
    vocab = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values()) + 1)
    for token, index in vocab.items():
        if index in added:
            table[index] = added[index].content.encode()
        elif byte_level:
            table[index] = _byte_level_bytes(token, values)
        else:
            table[index] = _sentence_piece_bytes(token)
    return table


def _byte_level_bytes(token: str, values: dict[str, int]) -> bytes:
    try:
        return bytes([values[char] for char in token])
    except KeyError:  # not written in the alphabet: it stands for itself
        return token.encode()


def _sentence_piece_bytes(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(_SPACE, " ").encode()
