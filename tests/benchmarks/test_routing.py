"""The simulation of routing rules: what each caches, and what it leaves to the busiest worker."""

from __future__ import annotations

import pytest

from benchmarks import routing


@pytest.mark.parametrize("workload", routing.WORKLOADS)
def test_prefixes_are_found_without_leaving_workers_idle(workload: str) -> None:
    found = {rule: routing.simulate(workload, rule, 6, 16_000, 200) for rule in routing.RULES}
    ours = found["ours"]
    for rule in ("round robin", "least loaded"):
        assert ours.hit_rate > found[rule].hit_rate, rule
    assert ours.makespan <= 1.15 * min(each.makespan for each in found.values())
    assert all(0 <= each.hit_rate < 1 and each.imbalance >= 1 for each in found.values())


def test_the_table_has_each_rule_on_each_workload(capsys: pytest.CaptureFixture[str]) -> None:
    routing.main(["--workers", "3", "--size", "0.3"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == [
        "a decision over 10,000 nodes of 2 workers",
        "a decision over 10,000 nodes of 3 workers",
    ]
    for workload in routing.WORKLOADS:
        assert [line[17:30].strip() for line in lines if line.startswith(f"{workload:<17}")] == [
            *routing.RULES
        ]
