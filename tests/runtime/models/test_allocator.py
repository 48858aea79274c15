"""Memory that nobody uses: large blocks while a model loads, free heaps, code that has run."""

from __future__ import annotations

import ctypes
import mmap
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from radixlang.runtime.process import malloc as allocator

LARGE = 1024 * 1024  # float32 elements
MB = 1 << 20


def calls_of_mallopt(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is asked of the C library from now on, instead of asking it."""
    calls: list[tuple[int, int]] = []
    libc = SimpleNamespace(mallopt=lambda *call: calls.append(call))
    monkeypatch.setattr(allocator, "_glibc", lambda: libc)
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
    allocator.give_back()
    allocator.release_code()
    assert torch.ones(LARGE).sum() == LARGE


def test_a_thread_gives_back_what_its_heap_keeps_free() -> None:
    with allocator.large_blocks_apart():
        pass  # from here on large blocks come from the heaps, which keep them
    held: list[int] = []

    def work() -> None:
        blocks = [torch.ones(LARGE) for _ in range(12)]
        blocks.clear()
        held.append(resident_bytes())
        allocator.give_back()
        held.append(resident_bytes())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert held[0] - held[1] > 40 * MB


def test_code_that_is_let_go_runs_again() -> None:
    torch.linalg.qr(torch.randn(9, 9))
    before = code_bytes()
    allocator.release_code()
    assert code_bytes() < before / 2
    q, r = torch.linalg.qr(torch.eye(9))
    assert torch.equal(q @ r, torch.eye(9))


def test_code_that_was_changed_in_memory_is_told_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "code.so"
    file.write_bytes(b"code" * mmap.PAGESIZE)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as code:
        window = ctypes.c_char.from_buffer(code)
        start = ctypes.addressof(window)
        del window
        assert code[:4] + code[-4:] == b"codecode"
        assert allocator.is_as_in_file(start, start + len(code))
        code[2 * mmap.PAGESIZE] = 0
        assert not allocator.is_as_in_file(start, start + len(code))
        assert allocator.is_as_in_file(start, start + 2 * mmap.PAGESIZE)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def code_bytes() -> int:
    """Bytes of torch's machine code in this process's memory."""
    kinds = re.findall(
        r"^\S+ r-xp .*/libtorch\S*\n(?:\w+:.*\n)*?Rss: +(\d+) kB",
        Path("/proc/self/smaps").read_text(),
        re.MULTILINE,
    )
    assert kinds
    return sum(map(int, kinds)) * 1024


def test_a_heap_of_steps_is_given_back_behind_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    seen: list[int] = []
    monkeypatch.setattr(allocator, "give_back", lambda: given.append(len(seen)))
    heap = allocator.StepHeap()
    for num_rows in (512, 512, 100, 16, 16, 400, 64, 32, *[16] * 40):
        seen.append(num_rows)
        heap.computed(num_rows)
    assert given == [3, 7, 18, 30, 42]  # after a prefill, and every 192 rows
