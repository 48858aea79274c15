"""`store` and `parent_id`: a reply's branch is kept, and a later request forks it.

A reply's id stands for its first choice, `ID:2` for its third.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from radixlang.errors import ParameterError
from radixlang.protocol import Branch
from radixlang.serving.kept_branches import KeptBranch, KeptBranches
from radixlang.serving.openai_api.schemas import SamplingFields
from radixlang.serving.sampling_job import Sample


@dataclass(slots=True)
class StoredTurn:
    """What one request has to do with stored replies."""

    kept: KeptBranches
    namespace: str
    kind: str
    parent_id: str | None
    is_stored: bool
    stored_s: float
    roles: tuple[str, ...] = field(default=(), init=False)  # of the turns before, then with this
    _parent: Branch | None = field(default=None, init=False)

    @classmethod
    def of(
        cls, body: SamplingFields, kept: KeptBranches, namespace: str, kind: str, stored_s: float
    ) -> StoredTurn:
        """What a request asks for.

        Raises:
            ParameterError: together with fields that need a whole prompt, or a choice among
                samples.
            ServingError: there is no such reply.
        """
        made = cls(kept, namespace, kind, body.parent_id, bool(body.store), stored_s)
        if made.is_stored and (body.best_of or body.n) > body.n:
            raise ParameterError("store keeps every choice, so best_of cannot be above n with it")
        if body.parent_id is not None:
            if body.prompt_logprobs is not None or getattr(body, "echo", False):
                raise ParameterError(
                    "parent_id goes on from a stored reply, whose prompt is not told again; leave "
                    "out echo and prompt_logprobs"
                )
            made._parent, made.roles = kept.fork(_choice_of(body.parent_id), namespace, kind)
        return made

    @property
    def new_root(self) -> Callable[[], Branch] | None:
        """Makes branches that go on from the parent; None without one."""
        parent = self._parent
        return None if parent is None else lambda: parent.fork(1)[0]

    def keeper(self, reply_id: str) -> Callable[[Sample], None] | None:
        """Takes over the branches of ended generations; None if they are released."""
        if not self.is_stored:
            return None
        loop = asyncio.get_running_loop()

        def keep(sample: Sample) -> None:
            if sample.generation.cancelled() or sample.generation.exception(0) is not None:
                sample.branch.release()
                return
            done = sample.generation.result(0)
            num = done.usage.num_prompt_tokens + len(done.token_ids)
            kept = KeptBranch(sample.branch, self.namespace, self.kind, self.roles, num)
            self.kept.put(f"{reply_id}:{sample.place}", kept)
            if not loop.is_closed():
                loop.call_soon_threadsafe(loop.call_later, self.stored_s, self.kept.expire)

        return keep

    def close(self) -> None:
        """Release the parent, which its forks do not need."""
        if self._parent is not None:
            self._parent.release()


def _choice_of(parent_id: str) -> str:
    return parent_id if ":" in parent_id else f"{parent_id}:0"
