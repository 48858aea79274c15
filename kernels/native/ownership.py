"""Whose a file or folder is: what is loaded must be the user's, and nobody else's to write."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def others_write(about: os.stat_result) -> bool:
    """Whether a user other than the owner may write."""
    return bool(about.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def is_own(path: Path) -> bool:
    """Whether the file or folder belongs to this user and no other user may write to it."""
    if not hasattr(os, "geteuid"):  # Windows has other rights, and separate profiles
        return True
    about = path.stat()
    return about.st_uid == os.geteuid() and not others_write(about)
