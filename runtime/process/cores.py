"""How many threads this process can run at once: fewer than the machine has cores, in a container.

OpenMP counts the cores that the process may be scheduled on, and nothing counts a quota of time: a
team of 64 on a machine of 64 cores with a quota of two is stopped for most of every 0.1 s.
"""

from __future__ import annotations

import logging
import math
import os
from functools import cache
from pathlib import Path

import torch

from radixlang.runtime.process.switched_off import is_off

log = logging.getLogger("radixlang.runtime")
_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Cores that the process may be scheduled on, or its quota of time in cores, rounded up.

    Args:
        groups: where control groups of version 1 or 2 are mounted.
        own: the process's own, as `/proc/self/cgroup` lists them.
    """
    cores = _schedulable()
    quota = min(_quotas(groups, own), default=math.inf)
    return max(1, min(cores, math.ceil(quota) if quota < math.inf else cores))


@cache
def fit_threads() -> None:
    """Lower torch's number of threads to a quota of time; the first call alone does.

    A number given by OMP_NUM_THREADS stays, and one that is set later.
    """
    cores = usable_cores()
    is_free = cores == _schedulable() or torch.get_num_threads() <= cores
    if is_free or is_off("threads") or "OMP_NUM_THREADS" in os.environ:
        return
    log.info("%d threads instead of %d: this process has %d cores' time",
             cores, torch.get_num_threads(), cores)  # fmt: skip
    torch.set_num_threads(cores)


def _schedulable() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _quotas(groups: Path, own: Path) -> list[float]:
    """Quotas of the process's control groups and of those above them, in cores."""
    found = []
    for line in _lines(own):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += [_quota_v2(folder) for folder in _upwards(groups, path)]
        elif "cpu" in controllers.split(","):
            for mount in {"cpu", controllers}:
                found += [_quota_v1(folder) for folder in _upwards(groups / mount, path)]
    return [quota for quota in found if quota is not None and quota > 0]


def _upwards(root: Path, path: str) -> list[Path]:
    """The group's folder and those above it; a container may see its own as the root."""
    below = Path(path.lstrip("/"))
    return [root / each for each in (below, *below.parents) if ".." not in each.parts]


def _quota_v2(folder: Path) -> float | None:
    words = " ".join(_lines(folder / "cpu.max")).split()
    if len(words) != 2 or words[0] == "max":
        return None
    return _ratio(*words)


def _quota_v1(folder: Path) -> float | None:
    quota = _lines(folder / "cpu.cfs_quota_us")
    period = _lines(folder / "cpu.cfs_period_us")
    return _ratio(quota[0], period[0]) if quota and period else None  # -1: none


def _ratio(quota: str, period: str) -> float | None:
    try:
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
