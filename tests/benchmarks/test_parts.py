"""Our own parts off, the profile of a step, and the peers that only a fake can stand in for."""

from __future__ import annotations

import argparse
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import step
from benchmarks.peers import radixlang_run
from radixlang import Runtime
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import slots_seen
from radixlang.runtime.forward import model_runner as runner
from radixlang.runtime.metrics.stats import PROFILE_PARTS


def forest() -> TreeBatch:
    """A prefix of 3 tokens with branches of 2 and 1 below it."""
    return TreeBatch(
        segment_slots=[np.array(s, np.int32) for s in ([4, 5, 6], [9, 1], [7])],
        segment_parent=np.array([-1, 0, 0], np.int32),
        segment_start=np.array([0, 3, 3], np.int32),
        branch_segment=np.array([1, 2], np.int32),
        branch_query_start=np.array([4, 3], np.int32),
        branch_num_queries=np.array([1, 1], np.int32),
    )


def test_branches_apart_see_the_same_slots_and_share_no_segment() -> None:
    apart = radixlang_run.apart(forest())
    assert slots_seen(apart, None) == slots_seen(forest(), None) == [[4, 5, 6, 9, 1], [4, 5, 6, 7]]
    assert [slots.tolist() for slots in apart.segment_slots] == [[4, 5, 6, 9, 1], [4, 5, 6, 7]]
    assert apart.segment_parent.tolist() == [-1, -1]


def test_reading_alone_changes_no_token(
    make_runtime: Any, tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [radixlang_run.Call(None, list(range(20, 60)), 0)]
    calls += [radixlang_run.Call(0, [60 + i, 80 + i], 6) for i in range(4)]
    expected = radixlang_run.run(make_runtime(), calls, [])
    monkeypatch.setattr(runner, "tree_batch", runner.tree_batch)  # put back at the end
    radixlang_run.read_alone()
    with Runtime(tiny_model, num_pages=4096) as runtime:  # its plan is none that an audit passes
        assert radixlang_run.run(runtime, calls, []) == expected
    assert [len(tokens) for tokens in expected] == [0, 6, 6, 6, 6]


def test_upkeep_is_what_is_neither_model_nor_sampling() -> None:
    found = dict.fromkeys(PROFILE_PARTS, 1.0) | {"model": 90.0, "sampling": 4.0}
    assert step.upkeep(found) == pytest.approx(6 / 100)


def test_decode_steps_are_profiled_by_part(
    make_runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "MARGIN", 1)
    monkeypatch.setattr(step, "wait_for", lambda is_reached: None)
    sizes = argparse.Namespace(branches=3, shared=20, private=4, tokens=5)
    found = step.decode(make_runtime(draft_tokens=0), list(range(20, 60)), sizes)
    assert tuple(found) == PROFILE_PARTS
    assert min(found[part] for part in PROFILE_PARTS) >= 0
    assert min(found[part] for part in ("model", "sampling", "plan", "other")) > 0


def test_random_model_has_every_tensor_a_decoder_asks_for(tiny_model: Any) -> None:
    config = tiny_model.config
    noise = step.Noise(config)
    assert noise.take("layers.1.k.weight").shape == (32, 64)
    assert noise.take("embed.weight").shape == (config.vocab_size, 64)
    assert "layers.2.k.weight" not in noise
    assert noise.take("norm.weight").tolist() == [1.0] * 64


class FakeManager:
    """Answers requests last first."""

    def __init__(self, error: str | None = None) -> None:
        self._asked: list[Any] = []
        self._error = error

    def add_request(self, prompt: list[int], max_new_tokens: int) -> str:
        name = f"request {len(self._asked)}"
        self._asked.append(SimpleNamespace(
            request_id=name, error=self._error, generated_tokens=prompt[:max_new_tokens]
        ))  # fmt: skip
        return name

    def get_result(self, timeout: float) -> Any:
        return self._asked.pop() if self._asked else None

    def is_running(self) -> bool:
        return False


def test_continuous_batching_gives_answers_in_the_order_of_their_prompts() -> None:
    from benchmarks.peers.transformers_batched import generate

    assert generate(FakeManager(), [[1, 2], [3, 4]], [1, 2]) == [[1], [3, 4]]
    with pytest.raises(RuntimeError, match="out of pages"):
        generate(FakeManager("out of pages"), [[1]], [1])


def test_onnx_generator_is_run_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", SimpleNamespace(__version__="0"))
    from benchmarks.peers.onnx_genai_batched import finish

    class Generator:
        """Appends 7 to every row until rows have 4 tokens."""

        def append_tokens(self, tokens: Any) -> None:
            self.rows = tokens

        def is_done(self) -> bool:
            return bool(self.rows.shape[1] == 4)

        def generate_next_token(self) -> None:
            self.rows = np.pad(self.rows, ((0, 0), (0, 1)), constant_values=7)

        def get_sequence(self, row: int) -> Any:
            return self.rows[row]

    assert finish(Generator(), [[1, 2], [3, 4]]) == [[7, 7], [7, 7]]
