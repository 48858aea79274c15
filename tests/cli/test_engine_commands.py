"""Commands that open the runtime, on the default model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.cli.main import FAILED, NO_MODEL, USAGE, main
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.radix_tree import Namespace, RadixTree
from radixlang.runtime.saved_prefixes.file_format import Fingerprint, save_prefixes

pytestmark = pytest.mark.model
PROGRAM = """
from radixlang import function, gen

@function
def capital(s, country):
    s += "Q: What is the capital of France?\\nA: Paris.\\n"
    s += "Q: What is the capital of Peru?\\nA: Lima.\\n"
    s += f"Q: What is the capital of {country}?\\nA:" + gen("answer", max_tokens=4, stop=".")
    if country == "Nowhere":
        raise LookupError("no such country")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RADIXLANG_HOME", str(tmp_path / "home"))
    file = tmp_path / "capital.py"
    file.write_text(PROGRAM, encoding="utf-8")
    return str(file)


@pytest.fixture
def data(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command with --json; its exit code must be 0."""

    def run(*argv: str) -> Any:
        assert main([*argv, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_a_saved_prefix_is_found_by_the_next_start(program: str, data: Callable[..., Any]) -> None:
    saved = data("prefix", "build", "capitals", "--program", program)
    assert saved["num_tokens"] > 20
    assert [each["name"] for each in data("prefix", "list")] == ["capitals"]
    options = ("run", program, "--set", "country=Italy", "--temperature", "0")
    cold, warm = data(*options), data(*options, "--prefixes", "capitals")
    assert warm["values"] == cold["values"]
    assert "Rome" in warm["values"]["answer"]
    assert cold["savings"]["num_cached_tokens"] == 0
    assert warm["savings"]["num_cached_tokens"] >= saved["num_tokens"] - 2  # the cut may move
    assert data("prefix", "drop", "capitals") == ["capitals"]
    assert data("prefix", "list") == []


def test_a_damaged_prefix_is_named_in_the_list_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Callable[..., Any]
) -> None:
    monkeypatch.setenv("RADIXLANG_HOME", str(tmp_path))
    folder = tmp_path / "prefixes"
    folder.mkdir()
    fingerprint = Fingerprint("w", "t", "r", "a", "float32", 1, 1, 4, Namespace(""))
    tree, cache = RadixTree(PagePool(8, 1)), KVCache(8, 1, 1, 4)
    node = tree.insert(
        tree.root(Namespace("")), np.array([1, 2], np.int32), tree.pool.alloc(2)
    ).node
    cache.write(node.slots, torch.zeros(1, 2, 2, 1, 4))
    save_prefixes(folder / "good.prefix", tree, cache, [node], fingerprint)
    whole = (folder / "good.prefix").read_bytes()
    (folder / "cut.prefix").write_bytes(whole[:-3])
    (folder / "other.prefix").write_text("something else")
    listed = {each["name"]: each for each in data("prefix", "list")}
    assert listed["good"]["num_tokens"] == 2
    assert "damaged after" in listed["cut"]["error"]
    assert "no file of saved prefixes" in listed["other"]["error"]


def test_prefixes_that_are_not_there_are_named(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prefix", "drop", "gone"]) == USAGE
    assert "no saved prefix 'gone'" in capsys.readouterr().err
    assert main(["prefix", "build", "../x", "--text", "hello"]) == USAGE
    assert "is no name for a prefix" in capsys.readouterr().err


def test_doctor_looks_at_device_kernels_and_model(data: Callable[..., Any]) -> None:
    report = data("doctor")
    assert report["ok"] is True
    found = {check["name"]: check for check in report["checks"]}
    assert found["kernels"]["status"] == "ok"
    assert "SmolLM2" in found["model"]["found"]
    assert any(name.startswith("device ") for name in found)


def test_doctor_says_what_to_do_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--quick", "--model", "./gone.gguf"]) == FAILED
    assert "no such folder or file" in capsys.readouterr().out


def test_bench_counts_what_the_fork_computed(data: Callable[..., Any]) -> None:
    sizes = ("--shared", "48", "--branches", "4", "--private", "8", "--tokens", "3")
    fork = data("bench", *sizes)["fork"]
    assert fork["num_prompt_tokens"] == 4 * (48 + 8)
    assert fork["num_generated_tokens"] == 4 * 3
    assert 48 + 4 <= fork["num_computed_tokens"] <= 48 + 4 * 8
    assert fork["memory_factor"] > 2


def test_view_is_written_as_one_page(program: str, tmp_path: Path) -> None:
    page = tmp_path / "view.html"
    assert main(["run", program, "--set", "country=Italy", "--html", str(page)]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_an_exception_of_the_program_is_named_with_its_line(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", program, "--set", "country=Nowhere", "--json"]) == FAILED
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert error["location"] == f"{program}:10"
    assert "LookupError: no such country" in printed.err


def test_no_model_has_an_exit_code_of_its_own(program: str) -> None:
    assert main(["run", program, "--set", "country=Italy", "--model", "./gone.gguf"]) == NO_MODEL
