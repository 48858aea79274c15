"""What the host has to tell of a step is told while the device computes the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from radixlang.kernels.gpu import launch
from radixlang.runtime.engine.request_table import Requests
from radixlang.runtime.runtime import Runtime
from radixlang.runtime.sampling import device_sampler
from radixlang.sampling_params import SamplingParams
from tests.runtime.gpu.meta_device import Crossings, meta_engine
from tests.runtime.gpu.test_crossings import meta_model

NUM_TOKENS = 6
PARAMS = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, heal=False)


@pytest.fixture
def crossings() -> Iterator[Crossings]:
    with meta_engine() as found:
        yield found


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Launches of attention, deliveries with something in them, and waits for tokens."""
    found: list[str] = []

    def noted(what: Any, name: str, event: str) -> None:
        whole = getattr(what, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if event != "deliver" or args[0]._outbox:
                found.append(event)
            return whole(*args, **kwargs)

        monkeypatch.setattr(what, name, call)

    noted(launch, "attend_triton", "launch")
    noted(Requests, "deliver", "deliver")
    noted(device_sampler, "_sampled", "tokens")
    return found


def streamed(runtime: Runtime, crossings: Crossings) -> list[int]:
    """The token ids of the deltas of one generation, which is followed from its start."""
    runtime.core.call(crossings.__enter__)
    branch = runtime.new_branch()
    branch.extend([5, 7, 9])
    generation = branch.generate(PARAMS)
    found = [token for delta in generation for token in delta.token_ids]
    assert list(generation.result(60).token_ids) == found
    runtime.core.call(lambda: crossings.__exit__(None, None, None))
    return found


def test_text_is_delivered_between_a_launch_and_the_wait_for_its_tokens(
    crossings: Crossings, log: list[str]
) -> None:
    with Runtime(meta_model(), num_pages=500, warm_up=False, cuda_graphs=False) as runtime:
        assert len(streamed(runtime, crossings)) == NUM_TOKENS
    steps = [step.split() for step in " ".join(log).split("tokens")]
    between = [step for step in steps[1:] if step[:1] == ["launch"] and "deliver" in step]
    assert len(between) >= NUM_TOKENS - 2  # but the first, which has nothing to tell, and the last
    for step in between:
        assert step.index("deliver") > max(at for at, x in enumerate(step) if x == "launch")


def test_a_host_delivers_at_once(
    log: list[str], make_runtime: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(draft_tokens=0)
    assert runtime.core._is_owed is False
    branch = runtime.new_branch()
    branch.extend([5, 7, 9])
    assert len(branch.generate(PARAMS).result(60).token_ids) == NUM_TOKENS
    assert runtime.core.call(lambda: runtime.core._is_owed) is False


def test_a_call_between_steps_is_answered_while_others_run(crossings: Crossings) -> None:
    with Runtime(meta_model(), num_pages=500, warm_up=False) as runtime:
        runtime.core.call(crossings.__enter__)
        branch = runtime.new_branch()
        branch.extend([5, 7, 9])
        long = SamplingParams(max_tokens=200, ignore_eos=True, heal=False)
        generation = branch.generate(long)
        for number in range(20):
            assert runtime.core.call(lambda number=number: number) == number  # type: ignore[misc]
        assert len(generation.result(60).token_ids) == 200
        runtime.core.call(lambda: crossings.__exit__(None, None, None))
