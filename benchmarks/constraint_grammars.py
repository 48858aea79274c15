"""lark grammars: texts, sentences made by hypothesis, random mask walks, and garbage."""

from __future__ import annotations

import importlib.util
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lark
import numpy as np

from radixlang.constraints.specs import Grammar, Regex, match
from radixlang.errors import ConstraintError
from radixlang.runtime.constraints.compiled import ConstraintCompiler
from radixlang.runtime.constraints.vocabulary import Vocabulary

NUM_WALKS = 5_000
NUM_GARBAGE = 10_000
MANY_BLANKS = 200  # in a row, as hypothesis likes them; the default bound is 24
TESTS = Path(__file__).resolve().parents[1] / "tests" / "runtime" / "constraints"
Row = tuple[str, str, str]


def _shared_with_tests() -> Any:
    """The grammars and the walker of the tests."""
    spec = importlib.util.spec_from_file_location("constraint_tests", TESTS / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["constraint_tests"] = module
    spec.loader.exec_module(module)
    return module


def grammar_row() -> list[Row]:
    """Texts judged as lark does, and the share of lark's own sentences that are accepted."""
    cases = _shared_with_tests().read_grammars()
    num_right = num_texts = num_accepted = num_wide = num_sentences = 0
    for case in cases:
        grammar = Grammar(case.text)
        for text, wanted in [(t, True) for t in case.accepted] + [
            (t, False) for t in case.rejected
        ]:
            num_texts += 1
            num_right += bool(match(grammar, text)) == wanted
        for text in _sentences(case.text, 25):
            num_sentences += 1
            num_accepted += bool(match(grammar, text))
            num_wide += bool(match(Grammar(case.text, whitespace=MANY_BLANKS), text))
    share, wide = (100 * num / max(1, num_sentences) for num in (num_accepted, num_wide))
    return [
        (f"{len(cases)} lark grammars", "every text as lark", f"{num_right} of {num_texts} texts"),
        ("sentences made by hypothesis", ">= 99 % accepted",
         f"{share:.1f} % of {num_sentences} that lark parses; "
         f"{wide:.1f} % with whitespace={MANY_BLANKS}"),
    ]  # fmt: skip


def _sentences(text: str, num: int) -> list[str]:
    """Sentences of a grammar that lark itself parses with the parser that we take."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.extra.lark import from_lark

    try:
        parser = lark.Lark(text, parser="lalr")
    except lark.exceptions.GrammarError:
        parser = lark.Lark(text, parser="earley")
    found: list[str] = []

    @settings(max_examples=num, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck), derandomize=True)  # fmt: skip
    @given(from_lark(parser))
    def collect(sentence: str) -> None:
        try:
            parser.parse(sentence)
            sentence.encode()
        except (lark.exceptions.LarkError, UnicodeEncodeError):
            return
        found.append(sentence)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collect()
    return found


def walk_row() -> list[Row]:
    """Random walks over the masks: every finished text must parse in lark."""
    shared = _shared_with_tests()
    cases, rng = shared.read_grammars(), np.random.default_rng(1)
    compiler = ConstraintCompiler(shared.make_vocabulary())
    compiled = [compiler.compile(Grammar(case.text)) for case in cases]
    num_finished = num_parsed = 0
    for index in range(NUM_WALKS):
        constraint = compiled[index % len(compiled)]
        text = shared.random_walk(constraint, rng, 25)
        if text is None:
            continue
        num_finished += 1
        try:
            constraint.check(text)
            num_parsed += 1
        except ConstraintError as error:
            print(f"  {cases[index % len(cases)].name}: {text!r}: {str(error)[:100]}")
    measured = f"{num_parsed} of {num_finished} finished texts ({NUM_WALKS} walks)"
    return [("random mask walks parse in lark", "all of 5,000", measured)]


def fuzz_row() -> list[Row]:
    """Garbage as grammars and regexes: a typed error or a constraint, within a second."""
    rng = random.Random(5)
    alphabet = "start:|()[]{}*+?\"'/\\~.,%\n aAbB01!^$#<>=-&é"
    compiler = ConstraintCompiler(Vocabulary.of_bytes(), max_cached=4)
    slowest, num_crashes, num_valid = 0.0, 0, 0
    for index in range(NUM_GARBAGE):
        text = "".join(rng.choices(alphabet, k=rng.randrange(1, 40)))
        spec = Regex(text) if index % 2 else Grammar(f"start: {text}")
        begun = time.perf_counter()
        try:
            compiler.compile(spec)
            num_valid += 1
        except ConstraintError:
            pass
        except Exception as error:
            num_crashes += 1
            print(f"  {spec!r}: {error!r:.100}")
        slowest = max(slowest, time.perf_counter() - begun)
    measured = f"{num_crashes} crashes, {num_valid} valid, slowest {slowest * 1e3:.0f} ms"
    return [("garbage grammars and regexes", "10,000 without crash or hang", measured)]
