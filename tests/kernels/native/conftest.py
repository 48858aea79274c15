"""The native library for every instruction set that this machine has, built once and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixlang.cache_dir import home
from radixlang.kernels.native.build import find_compiler
from radixlang.kernels.native.library import ISAS, Library, isas, load


@pytest.fixture(scope="session")
def native_folder() -> Path:
    """Where the libraries are kept; skips where nothing can be compiled."""
    if find_compiler() is None:
        pytest.skip("there is no C++ compiler")
    return home() / "native"


@pytest.fixture(scope="session")
def native(native_folder: Path) -> Library:
    """The library of the greatest set."""
    found = load(native_folder)
    assert found is not None
    return found


@pytest.fixture(scope="session")
def every_native(native_folder: Path) -> list[Library]:
    """One library for each set that this machine has, least first."""
    found = [load(native_folder, isa) for isa in isas(native_folder)]
    assert found
    assert all(found)
    return [one for one in found if one is not None]


@pytest.fixture(scope="session", params=ISAS)
def library(native_folder: Path, request: pytest.FixtureRequest) -> Library:
    """The library of each set in turn; skips what this machine has not."""
    found = load(native_folder, request.param)
    if found is None:
        pytest.skip(f"this CPU has no {request.param}")
    return found
