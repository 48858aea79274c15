"""Pages beside exact attention: forced steps agree where all is read, and facts are planted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import page_attention as benchmark
from radixlang import Exact, TopMass, TopPages
from radixlang.runtime.process.native_library import native_library
from tests.conftest import make_tiny_model

IDS = [int(token) for token in np.random.default_rng(0).integers(3, 440, 700)]


def test_steps_that_read_all_are_exact_and_others_are_near() -> None:
    settings = [Exact(), TopPages(10**6), TopPages(1), TopMass(0.6)]
    exact, whole, pages, mass = benchmark.forced(make_tiny_model(), IDS, 10, settings)
    assert max(exact.divergence) == max(whole.divergence) == 0
    assert all(whole.same_top)
    assert whole.num_read == whole.num_pages > pages.num_read
    assert 0 < mass.omitted_mass <= 0.6
    for steps in (pages, mass):
        assert len(steps.divergence) == len(steps.seconds) == 10
        assert min(steps.divergence) > 0


def test_tables_name_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [Exact(), TopPages(1)]
    benchmark.report_steps(make_tiny_model(), IDS, 3, settings)
    benchmark.report_needles(make_tiny_model(), IDS, settings)
    printed = capsys.readouterr().out
    assert printed.count("| Exact() | ") == printed.count("| TopPages(k=1) | ") == 2
    assert printed.count(" of 10 | ") == 2


def test_facts_lie_in_every_tenth_of_a_text_of_the_same_length() -> None:
    model = make_tiny_model()
    planted = benchmark.plant(model, IDS + IDS)
    assert len(planted) == 2 * len(IDS) - benchmark.ROOM
    text = model.tokenizer.decode(planted)
    facts = [f"{benchmark.sentence(c)} {code}." for c, code in
             zip(benchmark.CITIES, benchmark.CODES, strict=True)]  # fmt: skip
    places = [text.index(fact) for fact in facts]
    assert places == sorted(places)


def test_records_are_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"question": "Who?", "answer": "Me."}) + "\n", "utf-8")
    assert benchmark.read([path]) == "Who?\nMe."


def test_a_text_longer_than_the_context_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "load", lambda *_: make_tiny_model())
    monkeypatch.setattr("sys.argv", ["page_attention", "--tokens", "4096"])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "tiny reads at most 2048 tokens" in capsys.readouterr().err


def test_the_command_checks_as_many_cases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["page_attention", "--cases", "5"])
    has_library = native_library() is not None
    assert benchmark.main() == (0 if has_library else 1)
    assert ("5 cases hold" if has_library else "no native library") in capsys.readouterr().out
