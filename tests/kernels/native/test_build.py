"""Building and loading: what is kept is the user's alone, sound, and of a set that the CPU has."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from radixlang.kernels.native import build as building
from radixlang.kernels.native import library as loading
from radixlang.kernels.native.build import BuildError, build, find_compiler
from radixlang.kernels.native.library import ISAS, VARIABLE, isas, load

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of next to nothing, which compiles fast; gives the folder that it is kept in."""
    sources = tmp_path / "sources"
    sources.mkdir()
    for path in building.SOURCES.glob("dispatch.*"):
        shutil.copy(path, sources)
    (sources / "team.h").write_text('extern "C" void rl_shutdown(void);\n')
    (sources / "team.cpp").write_text('#include "team.h"\nvoid rl_shutdown(void) {}\n')
    monkeypatch.setattr(building, "SOURCES", sources)
    monkeypatch.setattr(loading, "_loaded", {})
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "kept"


def times_of(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.so")}


def test_a_library_is_made_once_and_is_the_users_alone(small: Path) -> None:
    path = build(small, "portable")
    made = times_of(small)
    assert build(small, "portable") == path
    assert times_of(small) == made
    for kept in (small, path, path.with_suffix(".sha256")):
        assert kept.stat().st_mode & 0o077 == 0 or kept == path.with_suffix(".sha256")
        assert not kept.stat().st_mode & 0o022
    assert [entry.name for entry in small.iterdir() if entry.is_dir()] == []


def test_other_sources_make_another_library(small: Path) -> None:
    before = build(small, "portable")
    with (building.SOURCES / "team.h").open("a") as header:
        header.write("// changed\n")
    assert build(small, "portable") != before


def test_a_library_that_nobody_asked_for_in_a_month_is_deleted(small: Path) -> None:
    before = build(small, "portable")
    told = before.with_suffix(".sha256")
    os.utime(told, (told.stat().st_atime, told.stat().st_mtime - 31 * 24 * 3600))
    with (building.SOURCES / "team.h").open("a") as header:
        header.write("// changed\n")
    after = build(small, "portable")
    assert sorted(small.glob("*.so")) == [after]
    assert not told.exists()


@pytest.mark.parametrize("harm", ["damaged", "cut", "writable", "unsigned", "link"])
def test_what_others_may_have_changed_is_made_again(
    small: Path, harm: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = build(small, "portable")
    whole = path.read_bytes()
    if harm == "damaged":
        path.write_bytes(whole[:-100] + bytes(100))
    elif harm == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif harm == "writable":
        path.chmod(0o722)
    elif harm == "unsigned":
        path.with_suffix(".sha256").unlink()
    else:
        path.rename(tmp_path / "elsewhere.so")
        path.symlink_to(tmp_path / "elsewhere.so")
    with caplog.at_level(logging.WARNING):
        assert build(small, "portable") == path
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o022 == 0
    assert building._what_is_wrong(path) == ""
    assert ("made again" in caplog.text) == (harm != "unsigned")


def test_a_folder_that_others_write_in_is_emptied(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = build(small, "portable")
    path.write_bytes(b"theirs")
    path.with_suffix(".sha256").write_text(building._checksum(path))
    small.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        build(small, "portable")
    assert small.stat().st_mode & 0o077 == 0
    assert path.read_bytes() != b"theirs"
    assert "could be written by others" in caplog.text


def test_a_folder_of_another_user_is_not_used(
    small: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    small.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: small.stat().st_uid + 1)
    with pytest.raises(BuildError, match="belongs to another user"):
        build(small, "portable")
    with caplog.at_level(logging.WARNING):
        assert load(small) is None
    assert "RADIXLANG_HOME" in caplog.text


def test_without_a_compiler_there_is_none(
    small: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(small))
    with caplog.at_level(logging.WARNING):
        assert load(small) is None
        assert isas(small) == []
    assert "install g++ or clang++" in caplog.text
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    assert load(small) is None


def test_the_set_can_be_capped_and_a_wrong_name_is_refused(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = isas(small)
    assert there == list(ISAS[: len(there)])
    most = load(small)
    assert most is not None
    assert most.isa() == there[-1]
    monkeypatch.setenv(VARIABLE, "portable")
    capped = load(small)
    assert capped is not None
    assert capped.isa() == "portable"
    monkeypatch.setenv(VARIABLE, "avx1024")
    with pytest.raises(ValueError, match="use one of portable, avx2"):
        load(small)
    with pytest.raises(ValueError, match="isa='sse9'"):
        load(small, "sse9")
    missing = ISAS[len(there) :]
    assert [load(small, isa) for isa in missing] == [None] * len(missing)


def test_a_set_that_cannot_be_compiled_gives_way_to_the_next(
    small: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, most = building.flags_of, isas(small)[-1]
    if most == "portable":
        (building.SOURCES / "team.cpp").write_text("this is no C++")
        assert load(small) is None
        return

    def flags(isa: str) -> tuple[str, ...]:
        return (*real(isa), "-mno-such-set") if isa == most else real(isa)

    monkeypatch.setattr(building, "flags_of", flags)
    with caplog.at_level(logging.WARNING):
        found = load(small)
    assert found is not None
    assert ISAS.index(found.isa()) == ISAS.index(most) - 1
    assert f"for {most} is not used" in caplog.text


def test_processes_that_start_together_build_once(small: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from radixlang.kernels.native import build as b;"
        "b.SOURCES = Path(sys.argv[1]); "
        "path = b.build(Path(sys.argv[2]), 'portable'); print(path.stat().st_ino)"
    )
    command = [sys.executable, "-c", code, str(building.SOURCES), str(small)]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
        for _ in range(3)
    ]
    said = {process.communicate()[0] for process in started}
    assert len(said) == 1
    assert [process.returncode for process in started] == [0, 0, 0]
