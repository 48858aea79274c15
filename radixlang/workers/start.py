"""Starting and ending the actors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from radixlang.errors import ParameterError, RadixlangError
from radixlang.workers.handles import WorkerDiedError, WorkerHandle, fetch
from radixlang.workers.messages import WorkerFacts


def imported_ray() -> ModuleType:
    """Ray, or a ParameterError that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise ParameterError("Ray is not installed; pip install 'radixlang[ray]'") from error
    return ray


def actor_options(
    n: int, num_cpus: float | None, num_gpus: float, more: Mapping[str, object]
) -> dict[str, object]:
    """Options of `n` actors that share the cluster."""
    ray = imported_ray()
    if num_cpus is None:
        whole = ray.cluster_resources().get("CPU", 1) // n
        num_cpus = max(1, whole)
    return {
        "num_cpus": num_cpus, "num_gpus": num_gpus, "max_restarts": 0,
        "max_concurrency": 1 << 20, **more,
    }  # fmt: skip


def start_workers(
    model: object,
    n: int,
    asked: Mapping[str, object],
    options: Mapping[str, object],
    timeout_s: float,
) -> list[WorkerHandle]:
    """Workers that have loaded the model; those of a start that fails are killed.

    Raises:
        ParameterError: the cluster could not place all of them in time.
        RadixlangError: the model could not be loaded.
    """
    from radixlang.workers.actor import WorkerActor

    ray = imported_ray()
    kind = ray.remote(WorkerActor).options(**asked)
    actors = [kind.remote() for _ in range(n)]
    try:
        calls = [actor.load.remote(model, options) for actor in actors]
        ready, late = ray.wait(calls, num_returns=n, timeout=timeout_s)
        if late:
            raise ParameterError(
                f"{len(ready)} of {n} workers have started in {timeout_s:g} s. Each asks Ray for "
                f"{asked['num_cpus']:g} CPUs and {asked['num_gpus']:g} GPUs, and the cluster has "
                f"{ray.cluster_resources()}; ask for less, or raise start_timeout_s"
            )
        facts: list[WorkerFacts] = [fetch(call) for call in calls]
    except WorkerDiedError as error:
        kill(actors)
        raise RadixlangError(f"a worker died while it was loading: {error}") from error
    except BaseException:
        kill(actors)
        raise
    return [WorkerHandle(i, *pair) for i, pair in enumerate(zip(actors, facts, strict=True))]


def kill(actors: Iterable[Any]) -> None:  # handles of Ray's
    """End actors at once."""
    ray = imported_ray()
    for actor in actors:
        ray.kill(actor)
