"""A change to the process is made for the first that asks and undone for the last."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from radixlang.runtime.process.shared_setting import WhileAsked


def test_made_for_the_first_and_undone_for_the_last() -> None:
    log: list[str] = []

    def change() -> Callable[[], None]:
        log.append("made")
        return lambda: log.append("undone")

    asked = WhileAsked(change)
    with asked():
        with asked():
            assert log == ["made"]
        assert log == ["made"]
    assert log == ["made", "undone"]
    with pytest.raises(KeyError), asked():
        raise KeyError
    assert log == ["made", "undone"] * 2


@pytest.mark.parametrize(("off", "changes"), [("", True), ("malloc, switch_interval", False)])
def test_a_setting_is_left_alone_where_the_environment_says_so(
    off: str, changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from radixlang.runtime.process import malloc, openmp, switch_interval

    monkeypatch.setenv("RADIXLANG_PROCESS_OFF", off)
    usual = sys.getswitchinterval()
    with switch_interval.often():
        assert (sys.getswitchinterval() != usual) == changes
    assert sys.getswitchinterval() == usual
    assert not off or malloc._glibc() is None
    ended: list[int] = []
    monkeypatch.setattr(openmp, "_pause", lambda: ended.append)
    openmp.end_team()
    monkeypatch.setenv("RADIXLANG_PROCESS_OFF", "openmp")
    openmp.end_team()
    assert len(ended) == 1
