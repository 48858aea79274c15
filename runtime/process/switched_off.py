"""The settings of the whole process that the user has turned off."""

from __future__ import annotations

import os

VARIABLE = "RADIXLANG_PROCESS_OFF"


def is_off(name: str) -> bool:
    """Whether the environment variable lists a setting, as in "malloc,openmp"."""
    return name in os.environ.get(VARIABLE, "").replace(" ", "").split(",")
