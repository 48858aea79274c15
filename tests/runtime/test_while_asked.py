"""A change to the process is made for the first that asks and undone for the last."""

from __future__ import annotations

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
