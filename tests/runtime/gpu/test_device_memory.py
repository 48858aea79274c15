"""What the engine does with a device's memory: counts it, keeps room for a step, gives it back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.errors import ParameterError, RequestError, RuntimeClosedError
from radixlang.runtime import runtime as runtime_module
from radixlang.runtime.cache import kv_cache
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.process.device import CudaDevice
from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams
from tests.conftest import make_tiny_model
from tests.runtime.gpu.conftest import MeteredModel
from tests.runtime.gpu.fake_cuda import FakeCuda

TOKEN_BYTES = 512  # keys and values of the tiny model
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, heal=False)


def ids(seed: int, num: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(3, 440, num).tolist()
    return found


def answers(runtime: Any, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    branches = [runtime.new_branch() for _ in prompts]
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.extend(prompt)
    futures = [branch.generate(GREEDY) for branch in branches]
    found = [future.result(60).token_ids for future in futures]
    for branch in branches:
        branch.release()
    return found


def test_the_engine_runs_on_its_models_device_and_others_stay_where_they_were(
    fake_cuda: FakeCuda, tiny_model: Any, make_runtime: Callable[..., Any]
) -> None:
    model = MeteredModel(tiny_model.model, fake_cuda, 0)
    runtime = make_runtime(replace(tiny_model, model=model))
    answers(runtime, [ids(0, 20)])
    assert model.ran_on == {1}
    assert fake_cuda.current_device() == 0


def test_memory_that_torch_caches_is_free(fake_cuda: FakeCuda) -> None:
    device = CudaDevice(torch.device("cuda"))
    with fake_cuda.hold(48 << 20):
        assert device.free_bytes() == 16 << 20
    assert fake_cuda.mem_get_info(0)[0] == 16 << 20  # the driver's view: still reserved
    assert device.free_bytes() == 64 << 20


def test_the_pool_leaves_room_for_the_largest_step(fake_cuda: FakeCuda, tiny_model: Any) -> None:
    sizes = []
    for bytes_per_row in (0, 2**17):
        model = MeteredModel(tiny_model.model, fake_cuda, bytes_per_row)
        with Runtime(replace(tiny_model, model=model), max_batch_tokens=256) as runtime:
            sizes.append(runtime.core.memory.total_bytes)
        assert model.rows == [256]
    free, step = 64 << 20, 256 * 2**17
    assert sizes == [int(size * 0.9) // TOKEN_BYTES * TOKEN_BYTES for size in (free, free - step)]


def test_a_step_that_does_not_fit_beside_the_weights_is_halved_at_the_start(
    fake_cuda: FakeCuda, tiny_model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = MeteredModel(tiny_model.model, fake_cuda, (64 << 20) // 300)
    with Runtime(replace(tiny_model, model=model), max_batch_tokens=1024) as runtime:
        assert runtime.core.scheduler.limits.max_batch_tokens == 256
    assert model.rows == [1024, 512, 256]
    assert sum("does not fit in memory" in message for message in caplog.messages) == 2


def test_a_device_without_room_for_a_step_is_refused(fake_cuda: FakeCuda, tiny_model: Any) -> None:
    model = MeteredModel(tiny_model.model, fake_cuda, 2 << 20)
    with pytest.raises(ParameterError, match="leaves no memory for a step of 64 tokens"):
        Runtime(replace(tiny_model, model=model))


def test_a_step_that_runs_out_of_memory_is_run_again_in_halves(
    fake_cuda: FakeCuda,
    tiny_model: Any,
    make_runtime: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    prompts = [ids(0, 60) + ids(seed, 20) for seed in range(1, 6)]
    expected = answers(make_runtime(draft_tokens=0), prompts)
    model = MeteredModel(tiny_model.model, fake_cuda, 2**17)
    runtime = make_runtime(replace(tiny_model, model=model), draft_tokens=0, max_batch_tokens=256)
    fake_cuda.outside = (64 << 20) - 25 * 2**17  # another process takes the rest
    assert answers(runtime, prompts) == expected
    assert runtime.stats().num_failed_requests == 0
    assert 2 <= runtime.core.scheduler.limits.max_batch_tokens <= 25
    assert any("from now on a step has at most" in message for message in caplog.messages)
    assert fake_cuda.num_emptied > 0


def test_a_step_of_one_token_that_runs_out_of_memory_fails_alone(
    fake_cuda: FakeCuda, tiny_model: Any, make_runtime: Callable[..., Any]
) -> None:
    model = MeteredModel(tiny_model.model, fake_cuda, 2**17)
    runtime = make_runtime(replace(tiny_model, model=model), max_batch_tokens=64)
    fake_cuda.outside = 64 << 20
    branch = runtime.new_branch()
    branch.extend(ids(0, 9))
    with pytest.raises(RequestError, match="out of memory"):
        branch.generate(GREEDY).result(60)
    fake_cuda.outside = 0
    assert len(answers(runtime, [ids(1, 9)])[0]) == 6


def test_keys_and_values_are_freed_at_close_while_the_name_lives(tiny_model: Any) -> None:
    runtime = Runtime(tiny_model, num_pages=256)
    answers(runtime, [ids(0, 20)])
    plane = weakref.ref(runtime.core.memory.cache[0].k)
    runtime.close()
    gc.collect()
    assert plane() is None
    assert runtime.stats().num_requests == 1
    assert runtime.audit() == []
    with pytest.raises(RuntimeClosedError, match="keys and values are freed"):
        runtime.find_wild_nodes()


def test_what_torch_caches_goes_back_at_close(fake_cuda: FakeCuda, tiny_model: Any) -> None:
    runtime = Runtime(tiny_model, num_pages=256)
    with fake_cuda.hold(1 << 20):
        pass
    runtime.close()
    assert fake_cuda.reserved == fake_cuda.allocated


def test_quantising_takes_a_part_of_a_node_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(2, 50, 2, 8, generator=torch.Generator().manual_seed(0))
    slots = np.random.default_rng(0).permutation(50).astype(np.int32)
    found, sizes, whole = [], [], kv_cache.quantize_tokens

    def watched(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(values.numel())
        return whole(values)

    monkeypatch.setattr(kv_cache, "quantize_tokens", watched)
    for most in (2**22, 100):
        monkeypatch.setattr(kv_cache, "MAX_FLOATS", most)
        cache = KVCache(50, 1, 2, 8, num_cold_slots=50)
        cache[0].k.copy_(values[0])
        cache[0].v.copy_(values[1])
        cache.quantize(slots, np.arange(50, dtype=np.int32))
        found.append(cache.read_cold(np.arange(50, dtype=np.int32)))
    assert torch.equal(found[0], found[1])
    assert max(sizes[2:]) <= 100


def test_loaded_weights_are_overwritten_where_they_are(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = iter([make_tiny_model(seed=0, native=False), make_tiny_model(seed=1, native=False)])
    devices: list[str] = []

    def load(name: str, *, device: str, **_: Any) -> Any:
        devices.append(device)
        return next(models)

    monkeypatch.setattr(runtime_module, "load_model", load)
    with Runtime("first", num_pages=256, device="cuda:1") as runtime:
        held = runtime.loaded.model
        before = [weight.data_ptr() for weight in held.weights()]
        first = answers(runtime, [ids(0, 20)])
        runtime.update_weights("second")
        second = answers(runtime, [ids(0, 20)])
        assert runtime.loaded.model is held
        assert [weight.data_ptr() for weight in held.weights()] == before
    with Runtime(make_tiny_model(seed=1, native=False), num_pages=256) as fresh:
        assert second == answers(fresh, [ids(0, 20)])
    assert first != second
    assert devices == ["cuda:1", "cpu"]


def test_a_model_that_was_given_is_left_as_it_is(fake_cuda: FakeCuda) -> None:
    given, other = make_tiny_model(seed=0, native=False), make_tiny_model(seed=1, native=False)
    before = [weight.clone() for weight in given.model.weights()]
    with Runtime(given, num_pages=256) as runtime:
        runtime.update_weights(other)
        assert runtime.loaded.model is other.model
    assert all(map(torch.equal, before, given.model.weights()))
