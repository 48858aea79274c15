"""Matchers: masks checked by brute force, forks, rolling back, forced tokens, dead ends."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from radixlang.constraints.specs import Choices, Grammar, JsonSchema, Regex, Sequence, Tools
from radixlang.errors import ConstraintError, InvalidConstraintError
from radixlang.runtime.constraints.mask_worker import MaskWorker
from radixlang.runtime.constraints.vocabulary import Vocabulary

EOS, END_OF_TURN, IMAGE = 256, 257, 258
PERSON = JsonSchema.of(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
SPECS = {
    "regex": Regex("[a-z]+ [a-z]+|é日*"),
    "conjunction": Regex(r"(?!the)[a-z]+(?<!ing)"),
    "choices": Choices(("abc", "ab", "日本", "null")),
    "person": PERSON,
    "compact": JsonSchema(PERSON.schema, whitespace=0),
    "numbers": JsonSchema.of({"type": "array", "items": {"type": "number", "minimum": 0}}),
    "grammar": Grammar('start: "if" NAME | NAME "=" NAME\nNAME: /[a-z]+/\n%ignore " "'),
    "sequence": Sequence(("the ", Regex("[0-9]+"), JsonSchema.of({"type": "null"}))),
    "tools": Tools(({"name": "f", "parameters": {"type": "object"}},), begin="<image>"),
}


@pytest.mark.parametrize("name", SPECS)
def test_every_token_of_every_mask_by_brute_force(
    name: str, compiler: Any, allowed_tokens: Any
) -> None:
    """A token is in the mask if and only if its bytes, one by one, are a valid way on.

    Where the next characters are forced, the mask allows the tokenizer's own token for them only.
    """
    compiled, rng = compiler.compile(SPECS[name]), np.random.default_rng(3)
    pieces, ends = compiled.vocabulary.token_bytes, set(compiled.vocabulary.eos_token_ids)
    matcher = compiled.matcher()
    for _ in range(12):
        mask = allowed_tokens(matcher)
        forced = matcher.forced_tokens()
        if forced:
            assert mask == {forced[0]}
            assert _goes_on(matcher, pieces[forced[0]])
            matcher.consume(forced[:1])
            continue
        for token in range(compiled.vocabulary.vocab_size):
            if token in ends:
                assert (token in mask) == matcher.is_complete
            elif token == IMAGE or not pieces[token]:
                assert token not in mask
            else:
                assert (token in mask) == _goes_on(matcher, pieces[token]), pieces[token]
        choices = sorted(mask - ends)
        if not choices:
            break
        matcher.consume([int(rng.choice(choices))])


def _goes_on(matcher: Any, piece: bytes) -> bool:
    """Whether every byte can be consumed, each as the token of that byte."""
    fork = matcher.fork()
    return fork.num_valid(list(piece)) == len(piece)


def test_end_tokens_come_only_where_the_text_is_complete(
    compiler: Any, allowed_tokens: Any
) -> None:
    """And every one of them ends it (sglang#31533)."""
    matcher = compiler.compile(Regex("[a-z]{2,3}")).matcher()
    matcher.consume([97])
    assert not allowed_tokens(matcher) & {EOS, END_OF_TURN}
    matcher.consume([97])
    assert allowed_tokens(matcher) >= {EOS, END_OF_TURN}, "the union of the end tokens ends it"
    assert matcher.is_complete
    assert not matcher.is_finished
    matcher.consume([97])
    assert matcher.is_finished
    assert allowed_tokens(matcher) == {EOS, END_OF_TURN}


@pytest.mark.parametrize("end", [EOS, END_OF_TURN])
def test_rolling_back_over_an_end_token(compiler: Any, allowed_tokens: Any, end: int) -> None:
    """As vllm's pull request 25905 had to."""
    matcher = compiler.compile(Regex("[a-z]+")).matcher()
    matcher.consume([97, 98])
    before = allowed_tokens(matcher)
    matcher.consume([end])
    assert matcher.is_finished
    assert matcher.forced_tokens() == []
    matcher.rollback(1)
    assert allowed_tokens(matcher) == before
    matcher.rollback(2)
    assert matcher.tokens == []
    with pytest.raises(ConstraintError, match="cannot take back 1 of 0"):
        matcher.rollback(1)


def test_a_refused_token_leaves_the_matcher_where_it_was(compiler: Any) -> None:
    matcher = compiler.compile(Regex("abc[0-9]")).matcher()
    with pytest.raises(ConstraintError, match=r"token 120 \('x'\), number 2.*expected 'c'"):
        matcher.consume([97, 98, 120])
    assert matcher.tokens == []
    matcher.consume([97, 98, 99])
    assert not matcher.is_complete


def test_forks_go_their_own_ways(compiler: Any, allowed_tokens: Any) -> None:
    trunk = compiler.compile(PERSON).matcher()
    trunk.consume(list(b'{"name": "'))
    forks = [trunk.fork() for _ in range(64)]
    for index, fork in enumerate(forks):
        fork.consume([97 + index % 26] * (index % 3 + 1))
    before = allowed_tokens(trunk)
    assert trunk.text_bytes() == b'{"name": "'
    assert allowed_tokens(trunk) == before
    assert forks[4].text_bytes() == b'{"name": "ee'


def test_forced_tokens_are_those_of_the_whole_text(compiler: Any) -> None:
    vocabulary = compiler.vocabulary
    matcher = compiler.compile(JsonSchema(PERSON.schema, whitespace=0)).matcher()
    forced = matcher.forced_tokens()
    assert forced == vocabulary.encode('{"name":"')[: len(forced)]
    assert b"".join(vocabulary.token_bytes[t] for t in forced).startswith(b'{"name"')
    for token in forced:
        matcher.consume([token])
    assert not matcher.is_complete


@pytest.mark.parametrize("options", [("éa", "èa"), ("日", "旦"), ("x😀", "x😁")])
def test_forced_text_never_splits_a_character(compiler: Any, options: tuple[str, ...]) -> None:
    matcher = compiler.compile(Choices(options)).matcher()
    forced = b"".join(compiler.vocabulary.token_bytes[t] for t in matcher.forced_tokens())
    assert forced.decode() in ("", "x")
    start = options[0].encode()[:2]
    matcher.consume(list(start))
    tail = b"".join(compiler.vocabulary.token_bytes[t] for t in matcher.forced_tokens())
    assert not tail or (start + tail).decode() == options[0]


def test_the_texts_of_special_tokens_are_plain_text(compiler: Any, allowed_tokens: Any) -> None:
    matcher = compiler.compile(Choices(("a<image>b", "a<eos>"))).matcher()
    matcher.consume(list(b"a<"))
    assert IMAGE not in allowed_tokens(matcher)
    assert EOS not in allowed_tokens(matcher)
    matcher.consume(list(b"image>b"))
    assert matcher.is_finished


def test_padding_and_special_tokens_are_never_allowed(compiler: Any, allowed_tokens: Any) -> None:
    matcher = compiler.compile(Regex("(?s:.)*")).matcher()
    mask = allowed_tokens(matcher)
    assert not mask & {IMAGE, *range(286, 320)}
    row = np.full(40, -1, dtype=np.int32)  # wider than the logits
    matcher.fill_bitmask(row)
    assert not row[10:].any()


def test_a_model_without_an_end_token() -> None:
    vocabulary = Vocabulary([bytes([i]) for i in range(64, 128)], (), (), lambda t: [])
    from radixlang.runtime.constraints.compiled import ConstraintCompiler

    matcher = ConstraintCompiler(vocabulary).compile(Regex("[a-c]{1,2}")).matcher()
    row = np.zeros(2, dtype=np.int32)
    matcher.fill_bitmask(row)
    assert np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() == [
        33, 34, 35,
    ]  # fmt: skip
    matcher.consume([33, 33])
    assert matcher.is_finished


@pytest.mark.parametrize(
    "spec",
    [
        JsonSchema.of({"$ref": "#"}),
        JsonSchema.of(False),
        JsonSchema.of({"type": "string", "enum": [1]}),
        Regex("(?=[0-9])[a-z]+"),
        Grammar('start: "a" x\nx: "b" x'),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_what_matches_nothing_is_an_error_at_once(spec: Any, compiler: Any) -> None:
    with pytest.raises(InvalidConstraintError, match=r"no text|no value"):
        compiler.compile(spec)


def test_a_dead_end_raises_and_is_never_an_empty_text(compiler: Any) -> None:
    matcher = compiler.compile(Grammar('start: "a" T | "b"\nT: /(?=[0-9])[a-z]+/')).matcher()
    matcher.consume([98])
    matcher.rollback(1)
    matcher.consume([97])
    with pytest.raises(ConstraintError, match=r"no way on after 'a'"):
        matcher.allowed_row()


def test_masks_never_lead_into_a_rule_without_an_end(compiler: Any, allowed_tokens: Any) -> None:
    matcher = compiler.compile(Grammar('start: "a" x | "b"\nx: "c" x')).matcher()
    assert allowed_tokens(matcher) == {98}


def test_compiling_is_cached_by_content_and_failures_too(vocabulary: Any) -> None:
    from radixlang.runtime.constraints.compiled import ConstraintCompiler

    compiler = ConstraintCompiler(vocabulary, max_cached=2)
    first = compiler.compile(Regex("a+"))
    assert compiler.compile(Regex("a+")) is first
    for _ in range(2):
        with pytest.raises(InvalidConstraintError, match="bad regex"):
            compiler.compile(Regex("("))
    compiler.compile(Regex("b+"))
    assert compiler.compile(Regex("a+")) is not first, "the least recently used one was dropped"


def test_masks_of_many_matchers_in_parallel(compiler: Any) -> None:
    worker = MaskWorker(2)
    trunk = compiler.compile(PERSON).matcher()
    trunk.consume(list(b'{"name": "'))
    matchers = [trunk.fork() for _ in range(32)]
    for index, matcher in enumerate(matchers):
        matcher.consume([97 + index % 20])
    expected = [matcher.fork().allowed_row().tolist() for matcher in matchers]
    for matcher in matchers:
        matcher._row = None
    errors = worker.submit(matchers).result(timeout=30)
    assert errors == [None] * 32
    assert [matcher.allowed_row().tolist() for matcher in matchers] == expected
    worker.close()


def test_matchers_of_one_constraint_from_many_threads(compiler: Any, walk: Any) -> None:
    compiled = compiler.compile(PERSON)
    texts: list[str | None] = []

    def work(seed: int) -> None:
        texts.append(walk(compiled, np.random.default_rng(seed), 40))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(texts) == 6
