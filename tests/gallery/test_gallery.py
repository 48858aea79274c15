"""Every example runs on the default model, says what is right, and shows what sharing saved.

docs/gallery.md shows what was printed; `make pages` writes it again.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

from radixlang.cli.main import main as command_line

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MAX_LINES = 80

# what an example must print whatever the machine: facts that constraints, copying from the
# prompt or well-known answers make sure of
EXPECTED = {
    "adapters": ["of 9 by the adapter, 3 by the model alone"],
    "best_of_n": ["In Ghent,", "chosen: In Ghent,"],
    "chain_of_density": ["4 of 4 facts", "Anna Berg", "nine million euros."],
    "chat": ["The capital of Italy is Rome.", "The capital of Japan is Tokyo."],
    "classification": [
        "unconditional_likelihood_normalized: 8 of 8 right",
        "smelled awful.  → a person should look",
        "chosen label: 0.8",
    ],
    "constrained_code": ["double(n)", "✓ passes its tests"],
    "constrained_sql": ["WHERE country = 'Portugal';", "[('Porto',), ('Braga',)]"],
    "contrast": ["weight 0: Boil", "weight 1: Boilin", "weight 2: Boilin"],
    "dspy_program": ["price=", "of 4 candidates"],
    "evaluation": ["✓  What do bees make?  Bees make honey.", "accuracy 0."],
    "few_shot_qa": ["12 of 12 right"],
    "generative_agents": ["Mia goes to the bakery", "Tom goes to the school"],
    "json_extraction": ["Order(quantity=20, item='lamp', city='Vienna')"],
    "its_hub_search": ["(score 0."],
    "judge": ["Dear Mr Hale", "politeness"],
    "page_attention": [
        "Exact(): Athens, Havana,",
        "TopMass(epsilon=0.03): Athens, Havana,",
        "at most 0.03 of the mass missed",
    ],
    "program_endpoints": ["The capital of Italy is Rome.", "Lima", "400 countries:"],
    "quick_start": ["The capital of Italy is Rome."],
    "rag": ["[Heron] The Heron is 128 km long.", "[Kestrel] Trout live in it."],
    "react_agent": ["Action: finish 125 km", "Action: finish 87 km"],
    "search": ["BestFirst 3 → ", "SMC       3 → ", "A line about the sea: The", " particles died"],
    "rollouts": ["8 rollouts", "of 44 tokens computed", "the same log-probabilities: True"],
    "self_consistency": ["Chile: South America", "of 16 votes"],
    "skeleton_of_thought": ["How do I grow tomatoes", "* "],
    "served": ["The capital of Italy is Rome.", "The capital of Japan is Tokyo."],
    "thinking": ["think=16: 4 of 4 right", "five thoughts on Nairobi: Africa"],
    "token_level": ["Japan: Tokyo", "the letter e: 0 times"],
    "treequest_search": ["Bananas", "12 nodes"],
    "tree_of_thought": ["from 3 to 31 in 4 moves, 16 leaves", "✓"],
}


TEMPLATE = "branching_agent.radix"
NEEDS_PYTHON_3_11 = {"its_hub_search", "treequest_search"}  # as the libraries do


def first_words(printed: str) -> list[str]:
    """Of what stands above the tree, the first word of every line."""
    above = printed.partition("radix tree:")[0]
    words = (line.split() for line in above.splitlines())
    return [re.sub(r"-?[\d.,]+", "…", each[0]) if each else "" for each in words]


def compare(page: Any, file: str, printed: str) -> None:
    """The page's section is much like what was printed; or, where that is asked for, becomes it.

    Texts, probabilities and sizes hang on the last bits of arithmetic, and those on the machine,
    its compiler, and on which branches met in a step: some answers may begin otherwise. What must
    be right whatever they are is in EXPECTED.
    """
    if os.environ.get("RADIXLANG_UPDATE_DOCS"):
        page.write(file, printed)
    shown = page.section(file)[1]
    alike = SequenceMatcher(None, first_words(shown), first_words(printed), autojunk=False)
    assert alike.ratio() > 0.75, f"make pages: {first_words(shown)}, now {first_words(printed)}"


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED)
    assert [path.name for path in EXAMPLES.glob("*.radix")] == [TEMPLATE]


@pytest.mark.parametrize("file", [*(f"{name}.py" for name in sorted(EXPECTED)), TEMPLATE])
def test_page_has_a_section_in_the_words_of_the_example(file: str, gallery_page: Any) -> None:
    words, shown = gallery_page.section(file)
    if file != TEMPLATE:
        assert words == ast.get_docstring(ast.parse((EXAMPLES / file).read_text("utf-8")))
    assert "radix tree:" in shown


@pytest.mark.model
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example(
    name: str,
    run_example: Callable[[str], str],
    gallery_runtime: Any,
    gallery_page: Any,
) -> None:
    if name in NEEDS_PYTHON_3_11 and sys.version_info < (3, 11):
        pytest.skip("the library of this example needs Python 3.11")
    printed = run_example(name)
    for expected in EXPECTED[name]:
        assert expected in printed
    saved = re.search(r"([\d,]+) cached, ([\d,]+) computed", printed)
    assert saved is not None
    cached, computed = (int(number.replace(",", "")) for number in saved.groups())
    stats = gallery_runtime.stats()
    assert (cached, computed) == (stats.num_cached_tokens, stats.num_computed_tokens)
    assert cached > computed > 0  # every example shares more than half of its prompts
    assert gallery_runtime.audit() == []
    compare(gallery_page, f"{name}.py", printed)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short_and_documented(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MAX_LINES
    assert ast.get_docstring(ast.parse(source))


@pytest.mark.model
def test_template_example_by_the_command_line(
    gallery_page: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RADIXLANG_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    commands = [
        f"radixlang run examples/{TEMPLATE} --set city=Lisbon --seed 1",
        "radixlang tree",
    ]
    lines = []
    for command in commands:
        assert command_line(shlex.split(command)[1:]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        lines += [f"$ {command}", *printed.out.splitlines()]
    fact, verdict = lines[1:3]
    assert "speak Portuguese." in fact
    assert verdict.split() in (["verdict", "yes"], ["verdict", "no"])
    compare(gallery_page, TEMPLATE, "\n".join(lines) + "\n")
