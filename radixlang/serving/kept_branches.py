"""Branches at the ends of replies that a client has asked to store, so that a later request may go
on from one: at most so many, of so many tokens, for so long."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from radixlang.protocol import Branch
from radixlang.serving.config import ServerConfig
from radixlang.serving.failures import ServingError


@dataclass(frozen=True, slots=True)
class KeptBranch:
    """The end of one choice of a reply.

    Attributes:
        namespace: whose requests may go on from it.
        kind: the endpoint's; a conversation is continued by a conversation only.
        roles: of the turns on it, in their order; none for a completion.
    """

    branch: Branch
    namespace: str
    kind: str
    roles: tuple[str, ...]
    num_tokens: int


class KeptBranches:
    """Kept branches by the ids of their replies; for any thread. The longest unused go first."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._kept: OrderedDict[str, tuple[KeptBranch, float]] = OrderedDict()
        self._num_tokens = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: str, kept: KeptBranch) -> None:
        """Keep a branch, which is this object's from now on."""
        with self._lock:
            self._kept[key] = (kept, self._until())
            self._num_tokens += kept.num_tokens
            self._drop()

    def fork(self, key: str, namespace: str, kind: str) -> tuple[Branch, tuple[str, ...]]:
        """A branch that goes on from a kept one, and the roles of the turns on it.

        Raises:
            ServingError: there is none of that id, any more or in this namespace.
        """
        with self._lock:
            self._drop()
            kept, _ = self._kept.get(key, (None, 0.0))
            if kept is None or kept.namespace != namespace or kept.kind != kind:
                raise ServingError(
                    404, f"no stored reply {key!r} to go on from: it was not asked for with "
                    "store=true and the same key and salt here, or was dropped since; send the "
                    "whole conversation", param="parent_id", code="parent_not_found",
                )  # fmt: skip
            self._kept[key] = (kept, self._until())
            self._kept.move_to_end(key)
            return kept.branch.fork(1)[0], kept.roles

    def expire(self) -> None:
        """Release what has not been used for long."""
        with self._lock:
            self._drop()

    def close(self) -> None:
        """Release all."""
        with self._lock:
            while self._kept:
                self._release_oldest()

    def _until(self) -> float:
        return time.monotonic() + self._config.stored_s

    def _drop(self) -> None:
        config = self._config
        while self._kept and (
            len(self._kept) > config.max_stored
            or self._num_tokens > config.max_stored_tokens
            or next(iter(self._kept.values()))[1] <= time.monotonic()
        ):
            self._release_oldest()

    def _release_oldest(self) -> None:
        _, (kept, _) = self._kept.popitem(last=False)
        self._num_tokens -= kept.num_tokens
        kept.branch.release()
