"""`Workers`: several runtimes as one Backend."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from radixlang.errors import (
    ParameterError,
    RuntimeClosedError,
    WorkersLostError,
    refuse_pickling,
)
from radixlang.process_owner import ProcessOwner
from radixlang.protocol import Message
from radixlang.remote.event_loop import LoopThread
from radixlang.routing import Router
from radixlang.workers.branch import WorkerBranch, WorkerConnection
from radixlang.workers.handles import WorkerDiedError, WorkerHandle, fetch
from radixlang.workers.messages import BranchContent, WorkerFacts, WorkerTokenizer
from radixlang.workers.requests import CLOSED, WorkerRequests
from radixlang.workers.start import actor_options, imported_ray, kill, start_workers

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")

_CLOSE_S = 30.0  # seconds that a worker has to close its runtime


class Workers:
    """Runs programs on `n` workers of Ray; implements `radixlang.protocol.Backend`.

    Each worker is an actor that holds a Runtime. A branch is sent where most of its tokens are
    cached, unless the queue there costs more than computing them elsewhere. What runs on a worker
    that dies is run again on another one, with the same seeds.

    Ray is used as it is initialised; if it is not, `ray.init()` starts it here or joins the cluster
    that its environment names, and `close` ends it again.

    Args:
        model: as for `Runtime`, found on every node; or a function without arguments that makes
            one, called in each worker.
        n: the number of workers.
        num_cpus: that Ray reserves for each, and the threads that it computes with; by default an
            equal part of the cluster's.
        num_gpus: that Ray reserves for each, and makes visible to it.
        ray_options: further options of Ray's actors, such as `resources`, `scheduling_strategy`
            and `runtime_env`.
        start_timeout_s: seconds in which all workers must have been placed and have loaded.
        options: of each worker's `Runtime`, such as `kv_bytes` and `context_length`.

    Raises:
        ParameterError: an argument is wrong, or the cluster has no such resources in time.
        ModelNotFoundError, ModelFormatError: a worker cannot load the model.
    """

    def __init__(
        self,
        model: str | Path | Callable[[], object] | None = None,
        n: int = 2,
        *,
        num_cpus: float | None = None,
        num_gpus: float = 0,
        ray_options: Mapping[str, object] | None = None,
        start_timeout_s: float = 600.0,
        **options: object,
    ) -> None:
        if type(n) is not int or n < 1:
            raise ParameterError(f"n is the number of workers, at least 1; got {n!r}")
        self._owner = ProcessOwner("Workers")
        ray = imported_ray()
        owns_ray = not ray.is_initialized()
        if owns_ray:
            ray.init()
        self._loop = LoopThread("radixlang-workers")
        self._workers: list[WorkerHandle] = []
        closing = threading.Event()
        self._closer = weakref.finalize(
            self, _close, self._owner, closing, self._loop, self._workers, owns_ray
        )
        try:
            asked = actor_options(n, num_cpus, num_gpus, ray_options or {})
            self._workers += start_workers(model, n, asked, options, start_timeout_s)
        except BaseException:
            self.close()
            raise
        self._facts = self._workers[0].facts
        self._tokenizer = self._facts.tokenizer
        self._requests = WorkerRequests(
            self._workers, Router(n), self._tokenizer.encode_run, closing
        )
        self._connection = WorkerConnection(self._loop, self._requests, self._facts.num_token_ids)
        self._compiled: set[object] = set()

    # ---- Backend

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self._facts.model_name

    @property
    def context_length(self) -> int:
        """Most tokens of a prompt and its generation together."""
        return self._facts.context_length

    @property
    def tokenizer(self) -> WorkerTokenizer:
        """The model's tokenizer, which `explain` takes."""
        return self._tokenizer

    @property
    def think_tags(self) -> tuple[str, str] | None:
        """The texts that open and close a thought, if the chat template tells of any."""
        return self._facts.think_tags

    def new_branch(self, *, namespace: str = "") -> WorkerBranch:
        """An empty branch. Namespaces share no cached tokens, so timing tells nothing of others."""
        self._owner.check()
        if self._loop.is_closed:
            raise RuntimeClosedError(CLOSED)
        return WorkerBranch(self._connection, BranchContent(namespace))

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The model's own chat template applied to the messages."""
        return self._tokenizer.render_chat(messages, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text run at the start of a prompt, BOS excluded."""
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        return self._tokenizer.decode(token_ids)

    def compile_constraint(self, spec: object) -> object:
        """The specification itself, once a worker has compiled it."""
        if spec not in self._compiled:
            self._of_any(lambda worker: worker.actor.compile_constraint.remote(spec))
            self._compiled.add(spec)
        return spec

    # ---- looking inside

    def stats(self) -> Any:  # a RuntimeStats, which only the runtime defines
        """The sums of all workers' statistics; a worker that has died counts no more."""
        return sum_stats(self.worker_stats())

    def worker_stats(self) -> list[Any]:  # as above
        """The RuntimeStats of each worker that is alive."""
        return self._of_all("stats")

    def reset_stats(self) -> None:
        """Count from zero again."""
        self._of_all("reset_stats")

    def flush_cache(self) -> int:
        """Evict everything that no branch holds; returns the number of tokens."""
        self._given_back()
        return sum(self._of_all("flush_cache"))

    def audit(self) -> list[object]:
        """Violated invariants of all workers."""
        self._given_back()
        return [found for each in self._of_all("audit") for found in each]

    @property
    def facts(self) -> list[WorkerFacts]:
        """What each worker told at its start: its node, its process, its model."""
        return [worker.facts for worker in self._workers]

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._loop.is_closed

    @property
    def num_alive(self) -> int:
        """Workers that have not died, as far as is known."""
        return sum(not worker.is_dead for worker in self._workers)

    @property
    def num_rerun(self) -> int:
        """Requests that were run again because their worker died."""
        return self._requests.num_rerun

    # ---- the end

    def close(self) -> None:
        """Fail what runs with a RuntimeClosedError, end the workers, and Ray if it was started
        here."""
        self._closer()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickling("Workers", "make them in the process that runs the programs")

    def __repr__(self) -> str:
        return f"Workers({self.model_name!r}, {len(self._workers)}, {self.num_alive} alive)"

    def _of_any(self, call: Callable[[WorkerHandle], object]) -> object:
        for worker in self._workers:
            if not worker.is_dead:
                try:
                    return fetch(call(worker))
                except WorkerDiedError:
                    continue
        self._check_open()
        raise WorkersLostError("all workers have died")

    def _of_all(self, method: str) -> list[Any]:  # whatever the method returns
        self._check_open()
        calls = [each.actor.call.remote(method) for each in self._workers if not each.is_dead]
        found = []
        for call in calls:
            try:
                found.append(fetch(call))
            except WorkerDiedError:
                continue
        return found

    def _given_back(self) -> None:
        """Wait until branches that were released are released there."""
        self._check_open()
        self._loop.call(_flush(self._workers))

    def _check_open(self) -> None:
        self._owner.check()
        if self._loop.is_closed:
            raise RuntimeClosedError(CLOSED)


def sum_stats(found: Sequence[Record]) -> Record:
    """Records of counts, added field by field."""
    names = [each.name for each in dataclasses.fields(found[0])]
    return type(found[0])(**{name: sum(getattr(each, name) for each in found) for name in names})


async def _flush(workers: Sequence[WorkerHandle]) -> None:
    for worker in workers:
        worker.flush()


def _close(
    owner: ProcessOwner, closing: threading.Event, loop: LoopThread,
    workers: Sequence[WorkerHandle], owns_ray: bool,
) -> None:  # fmt: skip
    """End everything; in a child of `fork` nothing is here to end."""
    if not owner.is_here:
        return
    import ray

    closing.set()
    loop.close()
    if not ray.is_initialized():
        return
    ended = [each.actor.close.remote() for each in workers if not each.is_dead]
    if ended:
        ray.wait(ended, num_returns=len(ended), timeout=_CLOSE_S)
    kill(worker.actor for worker in workers)
    if owns_ray:
        ray.shutdown()
