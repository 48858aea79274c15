"""Whole runs of lm-evaluation-harness over BIG-bench Hard's multiple choices, 3-shot."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
TASKS = ("hyperbaton", "date_understanding")


@pytest.fixture
def bbh(tmp_path: Path) -> list[str]:
    """Names of tasks whose files lie in the test's folder."""
    from benchmarks.evaluation import bbh_folder, write_task

    data = bbh_folder()
    if not data.is_dir():
        pytest.skip(f"BIG-bench Hard's files are not at {data}")
    return [write_task(name, data, tmp_path) for name in TASKS]


def test_choices_and_accuracy_are_those_of_hf(
    bbh: list[str], folder: Path, tmp_path: Path, make_runtime: Callable[..., Any]
) -> None:
    from lm_eval.models.huggingface import HFLM

    from benchmarks.evaluation import evaluate
    from radixlang.evaluation.harness import RadixLM
    from radixlang.runtime.models.loader import load_model

    runtime = make_runtime(load_model(folder, quantization=None, dtype="float32"), num_pages=20_000)
    how = {"limit": 4, "shots": 3}
    ours = evaluate(RadixLM(runtime), bbh, tmp_path, **how)
    hf = HFLM(str(folder), device="cpu", dtype="float32", batch_size=4)
    theirs = evaluate(hf, bbh, tmp_path, **how)
    assert len(ours.logprobs) > 4 * 2 + 4 * 4
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4, rel=1e-6)
    assert ours.accuracies == theirs.accuracies


def test_the_command_line_knows_the_model(
    bbh: list[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from radixlang.evaluation.__main__ import main

    monkeypatch.setattr(sys, "argv", [
        "lm_eval", "run", "--model", "radixlang", "--tasks", bbh[0], "--limit", "2",
        "--include_path", str(tmp_path), "--num_fewshot", "1", "--batch_size", "8",
        "--model_args", f"pretrained={folder},quantization=none,num_pages=9000",
    ])  # fmt: skip
    main()
    printed = capsys.readouterr().out
    assert "radixlang (" in printed
    assert f"|{bbh[0]}" in printed
