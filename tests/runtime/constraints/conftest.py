"""What the tests of constraints share: small vocabularies, grammars, and random walks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from radixlang.runtime.constraints.compiled import CompiledConstraint, ConstraintCompiler
from radixlang.runtime.constraints.matcher import Matcher
from radixlang.runtime.constraints.vocabulary import Vocabulary

EOS, END_OF_TURN, IMAGE = 256, 257, 258
CLOSING = frozenset(b'*/\n)]}>";01abx')  # what a late walk takes, to come to an end
MERGES = [
    "the", "ing", " a", " b", '{"', '":', '": "', '", "', "12", "123", "null", "true", "false",
    "name", "é", "日", "abc", "ab", "  ", "\n\n", "if", "select", " from", "()", "[]", "0.", "Dr.",
]  # fmt: skip
WIDTH = 300


def encode(text: str) -> list[int]:
    """Greedy: the longest merge first, then single bytes. Special names are plain text."""
    data, ids = text.encode(), []
    merges = sorted(enumerate(MERGES, 259), key=lambda m: -len(m[1].encode()))
    while data:
        found = [(t, p.encode()) for t, p in merges if data.startswith(p.encode())]
        token, piece = found[0] if found else (data[0], data[:1])
        ids.append(token)
        data = data[len(piece) :]
    return ids


def make_vocabulary(width: int = WIDTH) -> Vocabulary:
    pieces = [bytes([i]) for i in range(256)] + [b"<eos>", b"<|im_end|>", b"<image>"]
    pieces += [piece.encode() for piece in MERGES]
    return Vocabulary(pieces, [EOS, END_OF_TURN, IMAGE], [EOS, END_OF_TURN], encode, width)


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """286 tokens in logits 300 wide: bytes, merges across terminals, two end tokens, one image."""
    return make_vocabulary()


@pytest.fixture(scope="session")
def compiler(vocabulary: Vocabulary) -> ConstraintCompiler:
    return ConstraintCompiler(vocabulary, max_cached=16)


def allowed(matcher: Matcher) -> set[int]:
    """Token ids that a matcher's mask allows."""
    row = np.zeros(-(-matcher.source.vocabulary.vocab_size // 32), dtype=np.int32)
    matcher.fill_bitmask(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


@pytest.fixture(scope="session")
def allowed_tokens() -> Callable[[Matcher], set[int]]:
    return allowed


def random_walk(
    compiled: CompiledConstraint, rng: np.random.Generator, max_tokens: int = 60
) -> str | None:
    """Text of random allowed tokens up to a random end; None where no end came in time."""
    matcher = compiled.matcher()
    ends = set(compiled.vocabulary.eos_token_ids)
    for step in range(max_tokens * 4):
        tokens = allowed(matcher)
        if matcher.is_finished or (tokens & ends and (step > max_tokens or rng.random() < 0.1)):
            return matcher.text_bytes().decode()
        choices = sorted(tokens - ends)
        closing = sorted(CLOSING & tokens)
        late = step > max_tokens and closing and rng.random() < 0.8
        matcher.consume([int(rng.choice(closing if late else choices))])
    return None


@pytest.fixture(scope="session")
def walk() -> Callable[..., str | None]:
    return random_walk


@dataclass(frozen=True)
class GrammarCase:
    """A grammar and texts that lark accepts and refuses."""

    name: str
    text: str
    accepted: tuple[str, ...]
    rejected: tuple[str, ...]


def read_grammars() -> list[GrammarCase]:
    """The cases of grammars.txt: === name, + accepted texts, - rejected texts, ---, grammar."""
    source = (Path(__file__).parent / "grammars.txt").read_text(encoding="utf-8")
    return [_read_case(part) for part in source.split("=== ")[1:]]


def _read_case(part: str) -> GrammarCase:
    head, text = part.split("\n---\n", 1)
    name, *lines = head.splitlines()
    texts = {sign: [t for line in lines if line[0] == sign for t in _strings(line[1:])]
             for sign in "+-"}  # fmt: skip
    return GrammarCase(name, text, tuple(texts["+"]), tuple(texts["-"]))


def _strings(line: str) -> list[str]:
    decoder, found, place = json.JSONDecoder(), [], 0
    while place < len(line):
        if line[place] == " ":
            place += 1
            continue
        text, place = decoder.raw_decode(line, place)
        found.append(text)
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every grammar is a test of its own."""
    if "grammar_case" in metafunc.fixturenames:
        cases = read_grammars()
        metafunc.parametrize("grammar_case", cases, ids=[case.name for case in cases])
