"""Attention on the CPU in plain torch, for where the native library is not there.

A row's result has the same bits alone and in any company. It knows no model.
"""

__all__ = ["backend", "blocks", "elementwise", "pages", "paths"]
