"""The folder of files kept between runs: $RADIXLANG_HOME, or a folder in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The folder; it may not exist yet."""
    given = os.environ.get("RADIXLANG_HOME")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else cache / "radixlang"
