"""Every example runs on the default model, says what is right, and shows what sharing saved."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MAX_LINES = 80

# what an example must print whatever the machine: facts that constraints, copying from the
# prompt or well-known answers make sure of
EXPECTED = {
    "best_of_n": ["In Ghent,", "chosen: In Ghent,"],
    "chain_of_density": ["4 of 4 facts", "Anna Berg", "nine million euros."],
    "chat": ["The capital of Italy is Rome.", "The capital of Japan is Tokyo."],
    "classification": ["unconditional_likelihood_normalized: 8 of 8 right"],
    "constrained_code": ["double(n)", "✓ passes its tests"],
    "constrained_sql": ["WHERE country = 'Portugal';", "[('Porto',), ('Braga',)]"],
    "few_shot_qa": ["12 of 12 right"],
    "generative_agents": ["Mia goes to the bakery", "Tom goes to the school"],
    "json_extraction": ["Order(quantity=20, item='lamp', city='Vienna')"],
    "judge": ["Dear Mr Hale", "politeness"],
    "quick_start": ["The capital of Italy is Rome."],
    "rag": ["[Heron] The Heron is 128 km long.", "[Kestrel] Trout live in it."],
    "react_agent": ["Action: finish 125 km", "Action: finish 87 km"],
    "self_consistency": ["Chile: South America", "of 16 votes"],
    "skeleton_of_thought": ["How do I grow tomatoes", "* "],
    "tree_of_thought": ["from 3 to 31 in 4 moves, 16 leaves", "✓"],
}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.model
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example(name: str, run_example: Callable[[str], str], gallery_runtime: Any) -> None:
    printed = run_example(name)
    for expected in EXPECTED[name]:
        assert expected in printed
    assert "radix tree:" in printed
    saved = re.search(r"([\d,]+) cached, ([\d,]+) computed", printed)
    assert saved is not None
    cached, computed = (int(number.replace(",", "")) for number in saved.groups())
    stats = gallery_runtime.stats()
    assert (cached, computed) == (stats.num_cached_tokens, stats.num_computed_tokens)
    assert cached > computed > 0  # every example shares more than half of its prompts
    assert gallery_runtime.audit() == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short_and_documented(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MAX_LINES
    assert ast.get_docstring(ast.parse(source))


@pytest.mark.model
def test_template_example_by_the_command_line() -> None:
    command = [sys.executable, "-m", "radixlang", "run", str(EXAMPLES / "branching_agent.radix"),
               "--set", "city=Lisbon", "--seed", "1"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    fact, verdict = done.stdout.splitlines()
    assert "the Portuguese language is spoken." in fact
    assert verdict.split() in (["verdict", "yes"], ["verdict", "no"])
    assert done.stderr == ""
