"""Tokenizers of the scripted fake: bytes, characters, or any object with encode and decode."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from radixlang.errors import ParameterError
from radixlang.protocol import Markup

SPECIAL = ("<|im_start|>", "<|im_end|>")
_SPECIAL_PATTERN = re.compile("|".join(map(re.escape, SPECIAL)))
_FIRST_SPECIAL = 0x110000  # above every byte and every code point


class TextCodec(Protocol):
    """The tokenizer's interface that a fake needs."""

    def encode_run(self, pieces: Sequence[str], *, at_start: bool) -> list[int]:
        """Token ids of a run of text; special tokens only inside Markup."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""
        ...


class Encoder(Protocol):
    """Any tokenizer: it may have a `decode` and an `encode_run` as well."""

    def encode(self, text: str) -> Iterable[int]: ...


class PlainCodec:
    """One token for each byte of UTF-8, or each character; ChatML's special tokens in Markup."""

    def __init__(self, unit: Literal["byte", "char"]) -> None:
        self.unit = unit

    def encode_run(self, pieces: Sequence[str], *, at_start: bool) -> list[int]:
        """Token ids of a run; they do not depend on where it was cut into pieces."""
        ids: list[int] = []
        for piece in pieces:
            ids.extend(self._markup(piece) if isinstance(piece, Markup) else self._plain(piece))
        return ids

    def _plain(self, text: str) -> list[int]:
        if self.unit == "byte":
            return list(text.encode("utf-8", "surrogatepass"))
        return [ord(character) for character in text]

    def _markup(self, text: str) -> list[int]:
        ids: list[int] = []
        position = 0
        for found in _SPECIAL_PATTERN.finditer(text):
            ids += self._plain(text[position : found.start()])
            ids.append(_FIRST_SPECIAL + SPECIAL.index(found.group()))
            position = found.end()
        return ids + self._plain(text[position:])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids; bytes that are not UTF-8 become replacement characters."""
        texts: list[str] = []
        run: list[int] = []
        for token in token_ids:
            if token >= _FIRST_SPECIAL:
                texts += [self._decode_run(run), SPECIAL[token - _FIRST_SPECIAL]]
                run = []
            else:
                run.append(token)
        return "".join([*texts, self._decode_run(run)])

    def _decode_run(self, ids: list[int]) -> str:
        if self.unit == "byte":
            return bytes(ids).decode("utf-8", "replace")
        return "".join(map(chr, ids))


class EncoderCodec:
    """A codec over an object with `encode(text)`; without a `decode` it shows joined ids."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def encode_run(self, pieces: Sequence[str], *, at_start: bool) -> list[int]:
        """Token ids of the run, by the encoder's own run method if it has one."""
        run = getattr(self._encoder, "encode_run", None)
        if run is not None:
            return list(run(pieces, at_start=at_start))
        return list(self._encoder.encode("".join(pieces)))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""
        decode = getattr(self._encoder, "decode", None)
        return str(decode(token_ids)) if decode is not None else " ".join(map(str, token_ids))


def codec_of(tokens: object) -> TextCodec:
    """A codec from "byte", "char", or an object with encode.

    Raises:
        ParameterError: it is none of these.
    """
    if tokens in ("byte", "char"):
        return PlainCodec(tokens)
    for inner in ("codec", "tokenizer"):  # a backend was given: take its tokenizer
        if hasattr(getattr(tokens, inner, None), "encode_run"):
            return codec_of(getattr(tokens, inner))
    if hasattr(tokens, "encode_run") and hasattr(tokens, "decode"):
        codec: TextCodec = tokens
        return codec
    if hasattr(tokens, "encode"):
        return EncoderCodec(tokens)
    raise ParameterError(f'tokens must be "byte", "char" or a tokenizer, got {tokens!r}')
