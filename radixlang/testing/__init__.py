"""A scripted fake model for tests of programs: the same protocol as the engine, without weights.

It knows the protocol and texts. It knows no engine.
"""

from radixlang.testing.fake_backend import FakeBackend

__all__ = ["FakeBackend"]
