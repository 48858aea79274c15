"""JSON schemas of two public collections, judged text by text through `match`'s own path."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from radixlang.constraints.specs import JsonSchema, Match, canonical_json
from radixlang.errors import ConstraintError
from radixlang.runtime.constraints.compiled import ConstraintCompiler
from radixlang.runtime.constraints.explain import explain_text
from radixlang.runtime.constraints.vocabulary import Vocabulary

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SUITE = DATA / "json_schema_test_suite.json.gz"
MASKBENCH = DATA / "maskbench_sample.jsonl.gz"
Formats: TypeAlias = Literal["assert", "annotate"]


@dataclass
class Verdicts:
    """Counts, and the exceptions by cause.

    A case passes, is refused, or is an exception: over (valid and refused) or under (invalid and
    accepted).
    """

    num_passed: int = 0
    refused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    over: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    under: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def summary(self) -> str:
        """Percentages of all cases."""
        counts = {"pass": self.num_passed} | {
            name: sum(map(len, getattr(self, name).values()))
            for name in ("refused", "over", "under")
        }
        total = sum(counts.values())
        return ", ".join(f"{n} {100 * c / total:.1f} %" for n, c in counts.items()) + f" of {total}"

    def exceptions(self) -> dict[str, list[str]]:
        """Cases that are over or under, by cause."""
        return {
            f"{kind}: {why}": sorted(cases)
            for kind, causes in (("over", self.over), ("under", self.under))
            for why, cases in causes.items()
        }


def suite(formats: Formats) -> Verdicts:
    """The test suite, 2020-12 without its optional parts, strict, one case a test.

    There formats are annotations; our default is to assert them.
    """
    with gzip.open(SUITE, "rt", encoding="utf-8") as file:
        groups = json.load(file)
    verdicts = Verdicts()
    compiler = _compiler()
    for path, tests in groups.items():
        if not path.startswith("draft2020-12/") or "/optional/" in path:
            continue
        for group in tests:
            name = f"{path.split('/')[1]}: {group['description']}"
            for test, found in _judge(compiler, group["schema"], group["tests"], True, formats):
                _count(verdicts, f"{name}: {test['description']}", [(test, found)])
    return verdicts


def mask_bench(strict: bool, source: Path = MASKBENCH) -> Verdicts:
    """MaskBench, one case a schema: all of its texts must be judged right.

    Args:
        strict: refuse what cannot be enforced.
        source: the sample, or a file or folder as `mask_bench_cases` reads them.
    """
    verdicts, compiler = Verdicts(), _compiler()
    for case in mask_bench_cases(source):
        judged = list(_judge(compiler, case["schema"], case["tests"], strict, "assert"))
        _count(verdicts, case["name"], judged)
    return verdicts


def mask_bench_cases(source: Path) -> Iterator[dict[str, Any]]:
    """Cases of a file of JSON lines, packed or not, or of a folder with one JSON file a case, which
    is how MaskBench itself keeps them."""
    if source.is_dir():
        for path in sorted(source.rglob("*.json")):
            case = json.loads(path.read_text(encoding="utf-8"))
            yield {"name": path.stem, "schema": case["schema"], "tests": case.get("tests", [])}
        return
    packed = source.suffix == ".gz"
    with gzip.open(source, "rt", encoding="utf-8") if packed else source.open() as file:
        yield from map(json.loads, file)


def _compiler() -> ConstraintCompiler:
    return ConstraintCompiler(Vocabulary.of_bytes(), max_cached=4)


def _judge(
    compiler: ConstraintCompiler,
    schema: Any,
    tests: list[Any],
    strict: bool,
    formats: Formats,
) -> Iterator[tuple[Any, Match | ConstraintError]]:
    try:
        compiled = compiler.compile(
            JsonSchema(canonical_json(schema), strict=strict, formats=formats)
        )
    except ConstraintError as error:
        untested = [{"data": None, "valid": True}]  # a schema without tests is refused as well
        yield from ((test, error) for test in tests or untested)
        return
    for test in tests:
        yield test, explain_text(compiled, json.dumps(test["data"], ensure_ascii=False))


def _count(verdicts: Verdicts, name: str, judged: list[tuple[Any, Any]]) -> None:
    wrong = [(t, f) for t, f in judged if isinstance(f, Exception) or bool(f) != t["valid"]]
    if not wrong:
        verdicts.num_passed += 1
        return
    under = [pair for pair in wrong if not isinstance(pair[1], Exception) and pair[1]]
    test, found = (under or wrong)[0]
    if isinstance(found, Exception):
        verdicts.refused[_keyword(str(found))].append(name)
    elif under:
        verdicts.under["accepted"].append(name)
    else:
        verdicts.over[_why_over(name, test["data"], found)].append(name)


def _keyword(message: str) -> str:
    pointer = re.match(r"#\S*?/([^/\s:]*): (?!no value)", message)
    return pointer[1] if pointer else "no value can satisfy it"


def _why_over(name: str, data: Any, found: Match) -> str:
    text = json.dumps(data, ensure_ascii=False)
    if name.startswith("vocabulary.json"):
        return "a dialect of its own that does not validate"
    if name.startswith("format.json"):
        return "a string that breaks its format, which is a remark there"
    if re.match(r"\.\d", text[found.position :]):
        return "an integer written with a fraction"
    return "properties in another order than that of the schema"
