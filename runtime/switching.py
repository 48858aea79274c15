"""How often threads of the interpreter take turns.

A model's step gives the interpreter up hundreds of times and takes it back, each time after the
interpreter's switch interval where another thread of the process computes in Python: at the usual
5 ms a token takes 200 times as long beside a busy thread as alone, at 20 us 4 times. So the
interval is short while the engine runs a step, and while a constraint compiles.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_S = 2e-5


class _Switches:
    """The interpreter's switch interval, short while anybody asks for that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_asking = 0
        self._usual_s = 0.0

    @contextmanager
    def often(self) -> Iterator[None]:
        """Short until the end of the block."""
        with self._lock:
            if not self._num_asking:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual_s, SWITCH_S))
            self._num_asking += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_asking -= 1
                if not self._num_asking:
                    sys.setswitchinterval(self._usual_s)


_switches = _Switches()
often = _switches.often
