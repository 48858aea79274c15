"""The whole engine on the path of a GPU, kernels interpreted and graphs recorded, against the CPU.

Every scenario runs on both; tokens must be the same, log-probabilities close, and the audit empty.
Models are in plain torch, as on a GPU: what the native CPU library does, no recorder sees.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from radixlang.constraints.specs import Choices, Regex
from radixlang.runtime.models.model import LoadedModel
from radixlang.runtime.models.transformers_model import wrap
from radixlang.runtime.runtime import Runtime
from radixlang.sampling_params import SamplingParams
from tests.conftest import _tiny_tokenizer, make_tiny_model
from tests.kernels.interp.graph_recorder import InterpretedGpu

WAIT_S = 600
Scenario = Callable[[Callable[..., Runtime]], Any]


def ids(seed: int, num: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(3, 440, num).tolist()
    return found


def greedy(num: int = 3, **more: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=num, min_tokens=num, temperature=0.0, ignore_eos=True, heal=False, **more
    )


def answers(
    runtime: Runtime,
    prompts: Sequence[Any],
    params: SamplingParams | Sequence[SamplingParams],
    specs: Sequence[Any] = (),
) -> list[Any]:
    """Token ids of each prompt's generation, with log-probabilities where they are asked for."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    branches = [runtime.new_branch() for _ in prompts]
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.extend(prompt)
    compiled = [None if spec is None else runtime.compile_constraint(spec) for spec in specs]
    futures = [
        branch.generate(own, constraint)
        for branch, own, constraint in zip(
            branches, each, compiled or [None] * len(branches), strict=True
        )
    ]
    found = [future.result(WAIT_S) for future in futures]
    for branch in branches:
        branch.release()
    return [(list(one.token_ids), [round(p.logprob, 3) for p in one.logprobs or ()])
            for one in found]  # fmt: skip


def on_both(scenario: Scenario, model: Any = None) -> tuple[Any, Any, InterpretedGpu]:
    """What a scenario gives on the CPU and on the device's path."""
    results = []
    gpu = InterpretedGpu()

    def open_runtime(**options: Any) -> Runtime:
        made.append(
            Runtime(
                model or make_tiny_model(native=False),
                **{
                    "num_pages": 512,
                    "seed": 0,
                    "debug": True,
                    "draft_tokens": 0,
                    "warm_up": False,
                    **options,
                },
            )
        )
        return made[-1]

    for is_gpu in (False, True):
        made: list[Runtime] = []
        if is_gpu:
            with gpu.installed():
                results.append(scenario(open_runtime))
        else:
            results.append(scenario(open_runtime))
        assert [runtime.audit() for runtime in made] == [[] for _ in made]
        for runtime in made:
            runtime.close()
    return results[0], results[1], gpu


def test_prompts_in_chunks_that_share_a_beginning() -> None:
    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        runtime = open_runtime(max_batch_tokens=40)
        return answers(
            runtime, [ids(1, 70) + ids(2, 3), ids(1, 70) + ids(3, 5), ids(9, 9)], greedy()
        )

    on_cpu, found, gpu = on_both(scenario)
    assert found == on_cpu
    assert gpu.num_replays > 0


def test_forks_within_forks() -> None:
    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        root = open_runtime().new_branch()
        root.extend(ids(1, 40))
        left, right = root.fork(2)
        left.extend(ids(2, 5))
        right.extend(ids(3, 2))
        first = left.generate(greedy(2))
        first.result(WAIT_S)
        inner, other = left.fork(2)
        other.extend(ids(4, 3))
        rest = [branch.generate(greedy(2)) for branch in (right, inner, other)]
        return [list(each.result(WAIT_S).token_ids) for each in (first, *rest)]

    on_cpu, found, _ = on_both(scenario)
    assert found == on_cpu


def test_a_small_pool_evicts_and_retracts() -> None:
    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        runtime = open_runtime(num_pages=72, max_batch_tokens=48)
        found = [answers(runtime, [ids(s, 30), ids(s + 10, 12)], greedy(2)) for s in range(2)]
        found.append(answers(runtime, [ids(0, 20) + ids(i, 3) for i in range(1, 5)], greedy(9)))
        return found

    on_cpu, found, _ = on_both(scenario)
    assert found == on_cpu


def test_nodes_in_8_bits() -> None:
    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        runtime = open_runtime(cold_tokens=200)
        found = [answers(runtime, [ids(0, 40) + ids(1, 3)], greedy(2))]
        memory = runtime.core.memory
        runtime.core.call(lambda: memory.cold.make_room(memory.pool.num_pages))
        assert runtime.stats().num_quantized_tokens or runtime.core.call(lambda: memory.num_cold)
        prompts = [ids(0, 40) + ids(1, 3) + ids(5, 2), ids(0, 40) + ids(7, 4)]
        return [*found, answers(runtime, prompts, greedy(3))]

    on_cpu, found, gpu = on_both(scenario)
    assert found == on_cpu
    assert gpu.num_captures >= 2  # exact nodes alone, and with those in 8 bits


def test_every_sampling_option_in_one_step() -> None:
    options: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.8},
        {"temperature": 1.3, "min_p": 0.1, "top_k": 7},
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.95, "repetition_penalty": 1.3},
        {"temperature": 1.0, "frequency_penalty": 0.5, "presence_penalty": 0.3, "top_logprobs": 2},
    ]
    params = [SamplingParams(max_tokens=3, min_tokens=2, seed=i, heal=False, **each)
              for i, each in enumerate(options)]  # fmt: skip

    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        return answers(open_runtime(), [ids(i, 8) for i in range(len(params))], params)

    on_cpu, found, _ = on_both(scenario)
    assert found == on_cpu


def test_masks_and_scores() -> None:
    specs = [Regex("[a-z]{3}!"), Choices(("yes", "no")), None]
    params = [SamplingParams(max_tokens=7, temperature=0.0), SamplingParams(max_tokens=4, seed=4),
              SamplingParams(max_tokens=3, seed=9, min_tokens=3)]  # fmt: skip

    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        runtime = open_runtime()
        found = answers(runtime, ["Answer: "] * 3, params, specs)
        branch = runtime.new_branch()
        branch.extend("The theatre in the")
        scores = branch.score([" north", " town plays", " night"]).result(WAIT_S)
        branch.release()
        return found, [round(score.mean, 3) for score in scores]

    on_cpu, found, _ = on_both(scenario)
    assert found == on_cpu


def test_the_same_answer_in_any_company_with_deterministic() -> None:
    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        runtime = open_runtime(deterministic=True)
        together = answers(runtime, [ids(1, 30) + ids(i, 3) for i in range(2)], greedy())
        runtime.flush_cache()
        return together, answers(runtime, [ids(1, 30) + ids(0, 3)], greedy())

    on_cpu, found, _ = on_both(scenario)
    assert found == on_cpu
    assert found[0][0] == found[1][0]


def test_slots_that_move_under_a_captured_plan() -> None:
    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        runtime = open_runtime()
        found = [answers(runtime, [ids(i, 10) + ids(50 + i, 3)], greedy(2)) for i in range(2)]
        branch = runtime.new_branch()
        branch.extend(ids(0, 10) + ids(50, 3))
        future = branch.generate(greedy(5))
        runtime.core.call(lambda: runtime.core.upkeep.compactor.compact())
        found.append(list(future.result(WAIT_S).token_ids))
        branch.release()
        return found

    on_cpu, found, _ = on_both(scenario)
    assert found == on_cpu


def test_weights_that_are_replaced() -> None:
    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        runtime = open_runtime()
        first = answers(runtime, [ids(1, 12)], greedy())
        runtime.update_weights(make_tiny_model(seed=1, native=False))
        return first, answers(runtime, [ids(1, 12)], greedy())

    on_cpu, found, gpu = on_both(scenario)
    assert found == on_cpu
    assert found[0] != found[1]
    assert gpu.num_captures == 2


def transformers_model() -> LoadedModel:
    """An architecture that runs through transformers' own classes."""
    torch.manual_seed(3)
    config = transformers.GPTNeoXConfig(
        vocab_size=480, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=128, dtype="float32",
    )  # fmt: skip
    model = wrap(transformers.AutoModelForCausalLM.from_config(config), "tiny")
    return LoadedModel(model, _tiny_tokenizer(), model.config)


def test_models_of_transformers_decode_by_graphs_too() -> None:
    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        runtime = open_runtime()
        return answers(runtime, [ids(1, 12) + ids(i, 1 + i) for i in range(2)], greedy(4))

    on_cpu, found, gpu = on_both(scenario, transformers_model())
    assert found == on_cpu
    assert gpu.num_captures in (1, 2)  # as the two start in one step, or one after the other
    assert gpu.num_replays >= 3


def test_batches_that_shrink_share_what_was_captured() -> None:
    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        prompts = [ids(1, 12) + ids(i, 2) for i in range(4)]
        return answers(open_runtime(), prompts, [greedy(2 + 2 * i) for i in range(4)])

    on_cpu, found, gpu = on_both(scenario)
    assert found == on_cpu
    assert gpu.num_captures == 3  # 4 and 3 branches, 2, 1
    assert gpu.num_replays >= 7


@pytest.mark.parametrize(
    "failure", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("not permitted")]
)
def test_a_capture_that_fails_in_the_engine(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def scenario(open_runtime: Callable[..., Runtime]) -> Any:
        return answers(open_runtime(), [ids(1, 12), ids(2, 9)], greedy())

    expected, _, gpu = on_both(scenario)
    assert gpu.num_captures
    with caplog.at_level(logging.WARNING), InterpretedGpu().installed() as broken:
        broken.failures = [failure] * 9
        with Runtime(
            make_tiny_model(native=False), num_pages=512, seed=0, draft_tokens=0, warm_up=False
        ) as runtime:
            assert answers(runtime, [ids(1, 12), ids(2, 9)], greedy()) == expected
    assert len(broken.failures) == 8
    assert sum("CUDA graphs are off" in message for message in caplog.messages) == 1


def test_graphs_can_be_turned_off() -> None:
    with (
        InterpretedGpu().installed() as gpu,
        Runtime(
            make_tiny_model(native=False),
            num_pages=512,
            draft_tokens=0,
            cuda_graphs=False,
            warm_up=False,
        ) as runtime,
    ):
        assert len(answers(runtime, [ids(1, 12)], greedy(2))[0][0]) == 2
    assert gpu.num_captures == 0
