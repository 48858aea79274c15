"""Large blocks get pages of their own while a model loads."""

from __future__ import annotations

import ctypes

import pytest
import torch

from radixlang.runtime.models import allocator

LARGE = 1024 * 1024  # float32 elements


def calls_of_mallopt(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is asked of the C library from now on, instead of asking it."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(allocator, "_mallopt", lambda: lambda *call: calls.append(call))
    return calls


def with_large_blocks_apart(calls: list[tuple[int, int]]) -> None:
    with allocator.large_blocks_apart():
        assert calls == [(-3, 256 * 1024)]
        raise ZeroDivisionError


def test_the_threshold_is_set_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of_mallopt(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        with_large_blocks_apart(calls)
    assert calls == [(-3, 256 * 1024), (-3, 32 * 1024 * 1024), (-1, 64 * 1024 * 1024)]


def test_other_allocators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_glibc(name: None) -> object:
        return object()

    monkeypatch.setattr(ctypes, "CDLL", without_glibc)
    with allocator.large_blocks_apart():
        assert torch.ones(LARGE).sum() == LARGE
