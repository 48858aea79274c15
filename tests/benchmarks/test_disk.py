"""Whole runtimes killed at random points over one folder whose files are damaged in between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A process of its own, for it forks, and that must be before any runtime has begun.
SCRIPT = """
import importlib.util, json, sys
from pathlib import Path

def module(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made

benchmark, conftest = map(module, sys.argv[1:3])
print(json.dumps(benchmark.killed(conftest.make_tiny_model(), Path(sys.argv[3]), 30, 60)))
"""


def test_killed_runtimes_and_damaged_files_cost_hits_alone(tmp_path: Path) -> None:
    files = [str(ROOT / "benchmarks" / "disk.py"), str(ROOT / "tests" / "conftest.py")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *files, str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failures"] == found["wrong"] == 0, done.stderr
    assert found["starts"] > 20
    assert found["right"] > 100
    assert found["read"] > 1000
    assert found["damaged"] > 30
