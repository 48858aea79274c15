"""How often the interpreter switches threads.

A model's step gives the interpreter up hundreds of times and takes it back, each time after the
interpreter's switch interval where another thread of the process computes in Python: at the usual
5 ms a token takes 200 times as long with a busy thread as alone, at 20 us 4 times. So the
interval is short while the engine runs a step, and while a constraint compiles.
"""

from __future__ import annotations

import sys

from radixlang.runtime.process.shared_setting import Undo, WhileAsked
from radixlang.runtime.process.switched_off import is_off

SWITCH_S = 2e-5


def _switch_often() -> Undo:
    usual_s = sys.getswitchinterval()
    if is_off("switch_interval"):
        return lambda: None
    sys.setswitchinterval(min(usual_s, SWITCH_S))
    return lambda: sys.setswitchinterval(usual_s)


often = WhileAsked(_switch_often)
