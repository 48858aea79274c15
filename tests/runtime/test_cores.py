"""The number of threads where a process has fewer cores than the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from radixlang.runtime.process.cores import usable_cores

ALL = 16


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may be scheduled on 16 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(ALL)), raising=False)


def groups(folder: Path, own: str, **files: str) -> tuple[Path, Path]:
    """Control groups with some files, whose paths have __ for /, and the process's own list."""
    for name, text in files.items():
        path = folder / "groups" / name.replace("__", "/").replace("_max", ".max")
        path = path.with_name(path.name.replace("cpu_cfs", "cpu.cfs"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "own").write_text(own)
    return folder / "groups", folder / "own"


@pytest.mark.parametrize(
    ("text", "cores"),
    [("200000 100000\n", 2), ("150000 100000", 2), ("50000 100000", 1), ("max 100000", ALL),
     ("6400000 100000", ALL), ("", ALL), ("two 100000", ALL), ("100000 0", ALL)],
)  # fmt: skip
def test_a_quota_of_version_2(tmp_path: Path, text: str, cores: int) -> None:
    assert usable_cores(*groups(tmp_path, "0::/\n", cpu_max=text)) == cores


def test_the_least_quota_above_counts(tmp_path: Path) -> None:
    found = groups(
        tmp_path, "0::/pods/one\n", pods__cpu_max="300000 100000", pods__one__cpu_max="max 100000"
    )
    assert usable_cores(*found) == 3


@pytest.mark.parametrize(("quota", "cores"), [("400000", 4), ("-1", ALL)])
def test_a_quota_of_version_1(tmp_path: Path, quota: str, cores: int) -> None:
    found = groups(
        tmp_path, "4:memory:/\n2:cpu,cpuacct:/docker/x\n",
        cpu__docker__x__cpu_cfs_quota_us=quota, cpu__docker__x__cpu_cfs_period_us="100000",
    )  # fmt: skip
    assert usable_cores(*found) == cores


def test_without_control_groups_the_cores_that_it_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7}, raising=False)
    assert usable_cores(tmp_path / "none", tmp_path / "nowhere") == 3


CHILD = """
import os
import torch
from radixlang.runtime.process import cores
os.sched_getaffinity = lambda _: set(range(16))
cores.usable_cores = lambda: 3
torch.set_num_threads(8)
cores.fit_threads()
print(torch.get_num_threads())
torch.set_num_threads(8)
cores.fit_threads()
print(torch.get_num_threads())
"""


@pytest.mark.parametrize(
    ("more", "threads"),
    [({}, ["3", "8"]), ({"OMP_NUM_THREADS": "8"}, ["8", "8"]),
     ({"RADIXLANG_PROCESS_OFF": "threads"}, ["8", "8"])],
)  # fmt: skip
def test_threads_are_lowered_once_unless_they_are_given(
    more: dict[str, str], threads: list[str]
) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=kept | more, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == threads
