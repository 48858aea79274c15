"""Options behind a long run get the tokens they would get alone."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from radixlang.protocol import Markup
from radixlang.runtime.text.option_tokens import option_runs

WORDS = ["the", "town", "theatre", "sleeps", "every", "night", "é", "日本", "10", "\n", "x=1"]


def random_pieces(seed: int) -> list[str]:
    choose = random.Random(seed)
    pieces = []
    for _ in range(choose.randint(1, 5)):
        text = " ".join(choose.choice(WORDS) for _ in range(choose.randint(1, 120)))
        pieces.append(Markup(f"<|im_start|>{text}") if choose.random() < 0.4 else text)
    return pieces


@pytest.mark.parametrize("seed", range(25))
def test_runs_equal_those_tokenised_in_full(tiny_model: Any, seed: int) -> None:
    encode = tiny_model.tokenizer.encode_run
    pieces = random_pieces(seed)
    options = [" ".join(random.Random(i).sample(WORDS, 3)) for i in range(40)]
    start, rest = partial(encode, at_start=True), partial(encode, at_start=False)
    assert option_runs(pieces, options, start, rest) == [start((*pieces, o)) for o in options]


def test_long_run_is_tokenised_a_few_times_only(tiny_model: Any) -> None:
    encode = tiny_model.tokenizer.encode_run
    num_chars = 0

    def counting(pieces: Any) -> list[int]:
        nonlocal num_chars
        num_chars += sum(map(len, pieces))
        found: list[int] = encode(pieces, at_start=True)
        return found

    text = "the town sleeps every night " * 400
    options = [f"option {i}" for i in range(500)]
    runs = option_runs([text], options, counting, partial(encode, at_start=False))
    assert num_chars < 10 * len(text)
    assert runs[123] == encode([text + options[123]], at_start=True)


def test_tokenizer_that_sees_the_whole_text_is_asked_for_each_option() -> None:
    def encode(pieces: Any) -> list[int]:
        return [len("".join(pieces))]  # depends on everything

    options = [str(i) for i in range(50)]
    text = "a b " * 300
    assert option_runs([text], options, encode, encode) == [[len(text + o)] for o in options]
