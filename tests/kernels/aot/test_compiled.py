"""Kernels compiled for devices that are not here, and held to the gates and the table."""

from __future__ import annotations

import json

import pytest

from radixlang.kernels.tools import check
from radixlang.kernels.tools.compiled import (
    Report,
    compile_variant,
    narrow_offsets,
    outstanding_copies,
)
from radixlang.kernels.tools.variants import TARGETS, KernelVariant, shipped

SAMPLE = [  # the shapes closest to a gate; radixlang.kernels.tools.check compiles them all
    KernelVariant("tree_attn_partial", head_dim=64, packed_rows=16),
    KernelVariant("tree_attn_partial", packed_rows=16),
    KernelVariant("tree_attn_partial", packed_rows=64),
    KernelVariant("tree_attn_partial", packed_rows=64, quantized=True),
    KernelVariant("extend_attn", packed_rows=128, run=True),
    KernelVariant("tree_merge"),
    KernelVariant("append_kv", quantized=True),
    KernelVariant("advance_tails"),
]


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    "variant", SAMPLE, ids=lambda v: f"{v.kernel}-d{v.head_dim}-m{v.packed_rows}"
)
def test_variants_pass_the_gates_and_match_the_table(variant: KernelVariant, target: str) -> None:
    report = compile_variant(variant, target)
    assert check.gates(variant, target, report) == []
    assert check.regressions(report, check.load_table().get(variant.name(target))) == []


def test_the_table_has_every_shipped_variant_and_no_other() -> None:
    names = [variant.name(target) for target in TARGETS for variant in shipped(target)]
    assert len(names) == len(set(names))
    assert sorted(check.load_table()) == sorted(names)


def test_every_row_of_the_table_passes_the_gates() -> None:
    table = check.load_table()
    for target in TARGETS:
        for variant in shipped(target):
            report = Report(**table[variant.name(target)])
            assert check.gates(variant, target, report) == [], variant.name(target)


BAD = Report(255, 16, 0, "-", 0, 1)


def test_the_gates_catch_what_they_are_for() -> None:
    wrong = " ".join(check.gates(KernelVariant("tree_attn_partial"), "sm_90", BAD))
    for part in ("spills 16", "255 registers", "32-bit", "no matrix", "no cp.async"):
        assert part in wrong
    slow = Report(100, 0, 0, "mma.sync", 9, 0, 2)
    tall = KernelVariant("extend_attn", packed_rows=64)
    assert check.gates(tall, "sm_90", slow) == ["uses mma.sync where wgmma is due"]
    assert check.gates(tall, "sm_80", slow) == []


def test_a_loop_that_waits_for_all_copies_and_a_program_that_does_not_fit_are_caught() -> None:
    few = KernelVariant("tree_attn_partial", packed_rows=16)
    assert check.gates(few, "sm_89", Report(96, 0, 38_400, "mma.sync", 9, 0, 2)) == []
    waits = Report(96, 0, 38_400, "mma.sync", 9, 0, 0)
    assert check.gates(few, "sm_89", waits) == ["waits for all copies before it computes"]
    wide = Report(96, 0, 60_000, "mma.sync", 9, 0, 2)
    assert check.gates(few, "sm_80", wide) == []
    assert check.gates(few, "sm_89", wide) == ["runs 1 programs a multiprocessor"]
    too_wide = Report(96, 0, 110_000, "mma.sync", 9, 0, 2)
    (found,) = check.gates(few, "sm_120", too_wide)
    assert found == "takes 110000 bytes shared of 102400"


def test_outstanding_copies_are_those_of_the_loop_that_leaves_the_fewest() -> None:
    loop = """
      %1 = scf.for %i = %a to %b step %c {
        %2 = ttg.async_wait %t {num = NUM : i32}
        %3 = ttg.async_copy_global_to_local %p, %m
        scf.yield %3
      }"""
    assert outstanding_copies(loop.replace("NUM", "4")) == 4
    assert outstanding_copies(loop.replace("NUM", "4") + loop.replace("NUM", "2")) == 2
    assert outstanding_copies(loop.replace("NUM", "4") + loop.replace("NUM", "0")) == 0
    assert outstanding_copies("tt.func") == 0


def test_a_regression_is_named() -> None:
    known = Report(100, 0, 1000, "wgmma.mma_async", 9, 0).as_dict()
    assert check.regressions(Report(104, 0, 1000, "wgmma.mma_async", 9, 0), known) == []
    worse = check.regressions(Report(120, 0, 2000, "mma.sync", 9, 0), known)
    assert len(worse) == 3
    assert "100 before" in worse[0]
    assert check.regressions(BAD, None) == ["is not in the table; run with --update"]


def test_narrow_offsets_are_seen() -> None:
    wide = "%1 = tt.addptr %0, %a : tensor<64x16x!tt.ptr<bf16>>, tensor<64x16xi64>"
    assert narrow_offsets(wide) == 0
    assert narrow_offsets(wide.replace("xi64", "xi32")) == 1


def test_the_command_checks_and_fails_on_a_regression(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    arguments = ["--target", "sm_80", "--match", "advance_tails"]
    assert check.main(arguments) == 0
    assert "1 variants, 0 failed" in capsys.readouterr().out
    stale = json.loads(json.dumps(check.load_table()))
    for row in stale.values():
        row["registers"] = 1
    monkeypatch.setattr(check, "load_table", lambda: stale)
    assert check.main(arguments) == 1
    assert "1 before" in capsys.readouterr().out
