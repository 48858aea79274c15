"""`radixlang doctor`: what is installed, what is missing, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import radixlang
from radixlang.cli._runtime import diagnose, diagnose_gpu, find_model
from radixlang.errors import RadixlangError
from radixlang.units import bytes_text

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from radixlang.cli._runtime import Finding


_OPTIONAL = {
    "opentelemetry-sdk": "runs as spans of OpenTelemetry",
    "pydantic": "models of pydantic as types of gen",
    "accelerate": "tests that compare with transformers on a GGUF file",
}
_MARKS = {"ok": "ok", "note": "–", "missing": "✗", "failed": "✗"}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `remedy` says what to do if something is missing or could be better; `values`
    are the figures of a check of a GPU."""

    name: str
    status: Literal["ok", "note", "missing", "failed"]
    found: str
    remedy: str = ""
    values: Mapping[str, float | str] = field(default_factory=dict)


def run(args: argparse.Namespace) -> int:
    """0, or 1 if something that is needed is missing, or a check fails."""
    checks = list(_all_checks(args))
    wrong = [check for check in checks if check.status in ("missing", "failed")]
    if args.json:
        print(json.dumps({"ok": not wrong, "checks": [asdict(check) for check in checks]},
                         ensure_ascii=False, indent=2))  # fmt: skip
    else:
        _print(checks)
    return 1 if wrong else 0


def _print(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{_MARKS[check.status]:<2}  {check.name:<{width}}  {check.found}")
        if check.remedy:
            print(f"{'':<{width + 6}}→ {check.remedy}")
    print(f"\n{_summary(checks)}")


def _summary(checks: list[Check]) -> str:
    statuses = [check.status for check in checks]
    missing, failed = statuses.count("missing"), statuses.count("failed")
    parts = []
    if missing:
        parts.append("one thing is missing" if missing == 1 else f"{missing} things are missing")
    if failed:
        parts.append("one check failed" if failed == 1 else f"{failed} checks failed")
    return ", ".join(parts) or "all that is needed is there"


def _all_checks(args: argparse.Namespace) -> Iterator[Check]:
    yield _python()
    yield Check("radixlang", "ok", f"{radixlang.__version__} in {Path(radixlang.__file__).parent}")
    yield from _packages()
    yield _memory()
    if args.gpu is not None:
        yield from _guarded("gpu", lambda: map(_check, diagnose_gpu(args.gpu, args.model)))
    elif args.quick:
        yield from _guarded("model", lambda: iter([Check("model", "ok", find_model(args.model))]))
    else:
        yield from _guarded("engine", lambda: map(_check, diagnose(args.model)))


def _check(finding: Finding) -> Check:
    return Check(finding.name, finding.status, finding.found, finding.remedy, finding.values)


def _guarded(name: str, check: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """The findings of a check; one that cannot run is a finding too, not a failure of doctor."""
    try:
        yield from check()
    except RadixlangError as error:
        yield Check(name, "missing", str(error))
    except Exception as error:
        yield Check(name, "missing", f"{type(error).__name__}: {error}",
                    "install it again: pip install --force-reinstall radixlang")  # fmt: skip


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("python", "ok", found)


def _packages() -> Iterator[Check]:
    """Every requirement of the installed package, from metadata only: nothing is imported."""
    from packaging.requirements import Requirement

    try:
        lines = metadata.requires("radixlang") or []
    except metadata.PackageNotFoundError:
        yield Check("packages", "note", "radixlang is not installed, only importable",
                    "pip install -e . in the source tree")  # fmt: skip
        return
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _package(requirement)
    for name, use in _OPTIONAL.items():
        found = _installed(name)
        if found is None:
            yield Check(name, "note", f"not installed; it is for {use}", f"pip install {name}")


def _package(requirement: Requirement) -> Check:
    found = _installed(requirement.name)
    if found is None:
        return Check(requirement.name, "missing", "not installed", f"pip install '{requirement}'")
    if not requirement.specifier.contains(found, prereleases=True):
        return Check(requirement.name, "missing", f"{found}, and {requirement.specifier} is needed",
                     f"pip install '{requirement.name}{requirement.specifier}'")  # fmt: skip
    return Check(requirement.name, "ok", found)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _memory() -> Check:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return Check("memory", "note", "this system does not tell how much is free")
    remedy = "" if free > 1e9 else "close other programs, or give Runtime a small kv_bytes"
    return Check("memory", "ok" if free > 1e9 else "note", f"{bytes_text(free)} free", remedy)
