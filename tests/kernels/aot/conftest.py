"""Compilation ahead of time: not in a process that interprets, where nothing compiles."""

from __future__ import annotations

import os

import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    raise pytest.UsageError(
        "tests/kernels/aot compiles kernels, which Triton cannot do while it interprets; "
        "unset TRITON_INTERPRET for it"
    )
