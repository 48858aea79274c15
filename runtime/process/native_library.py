"""The native CPU library as the runtime has it: built at first use, kept in the user's folder."""

from __future__ import annotations

import sys

from radixlang.kernels.native.library import Library, load
from radixlang.runtime.process.disk_cache import kept_root


def native_library() -> Library | None:
    """The library for this CPU, in $RADIXLANG_NATIVE or `home()`.

    None where the variable is empty, on Windows, and without a C++ compiler.
    """
    root = kept_root("RADIXLANG_NATIVE", "native")
    return None if root is None or sys.platform == "win32" else load(root)
