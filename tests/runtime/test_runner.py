"""From sequences to the forest that attention reads, and when a plan is built anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from radixlang.kernels.attention import plan_attention
from radixlang.runtime.adapters.variants import VariantTable
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.radix_tree import Namespace, RadixTree
from radixlang.runtime.forward.model_runner import ModelRunner, tree_batch
from radixlang.runtime.metrics.stats import Counters, StepProfile
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.sequence import TokenSequence
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60


class Job:
    """What memory asks of a job."""

    samples = False
    num_cached = num_computed = 0


def make_memory(config: Any, num_slots: int = 512) -> Memory:
    pool = PagePool(num_slots)
    cache = KVCache(num_slots, config.num_layers, config.num_kv_heads, config.head_dim)
    return Memory(pool, RadixTree(pool), cache, Counters())


def make_sequence(memory: Memory, tokens: list[int]) -> TokenSequence:
    job: Any = Job()
    array = np.array(tokens, np.int32)
    made = TokenSequence(job, Namespace(), array, first_logit=len(tokens) - 1, holder="test")
    memory.attach(made)
    return made


@torch.inference_mode()
def compute(
    memory: Memory, runner: ModelRunner, sequence: TokenSequence, num_new: int
) -> torch.Tensor:
    memory.reserve(sequence, num_new, 0)
    hidden = runner.run([(sequence, num_new)]).hidden
    memory.wrote(sequence, num_new)
    memory.commit(sequence, sequence.num_computed)
    return hidden


def test_forest_holds_every_shared_node_once(tiny_model: Any) -> None:
    memory = make_memory(tiny_model.config)
    runner = ModelRunner(tiny_model.model, memory, StepProfile(), VariantTable())
    stem = list(range(10, 30))
    compute(memory, runner, make_sequence(memory, [*stem, 5]), 21)
    sequences = [make_sequence(memory, [*stem, 40 + i, 50]) for i in range(3)]
    for each in sequences:
        memory.reserve(each, each.num_pending, 0)
    batch = tree_batch([(each, each.num_pending) for each in sequences])
    assert batch.segment_parent.tolist() == [-1, 0, 0, 0]
    assert batch.segment_start.tolist() == [0, 20, 20, 20]
    assert batch.branch_query_start.tolist() == [20, 20, 20]
    assert [len(slots) for slots in batch.segment_slots] == [20, 2, 2, 2]
    plan = plan_attention(batch, num_heads=4, num_kv_heads=2, head_dim=16)
    assert plan.positions.tolist() == [20, 21] * 3


def test_output_on_a_cached_prefix_equals_the_whole_prompt(tiny_model: Any) -> None:
    tokens = list(range(100, 140))
    fresh, warm = make_memory(tiny_model.config), make_memory(tiny_model.config)
    whole = compute(fresh, ModelRunner(tiny_model.model, fresh, StepProfile(), VariantTable()),
                    make_sequence(fresh, tokens), 40)  # fmt: skip
    runner = ModelRunner(tiny_model.model, warm, StepProfile(), VariantTable())
    compute(warm, runner, make_sequence(warm, [*tokens[:25], 7]), 26)
    sequence = make_sequence(warm, tokens)
    assert sequence.num_computed == 25
    rest = compute(warm, runner, sequence, 15)
    torch.testing.assert_close(rest, whole[25:], atol=1e-4, rtol=1e-4)


def test_decoding_moves_one_plan_on(make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime(draft_tokens=0)
    branches = [runtime.new_branch() for _ in range(4)]
    for index, branch in enumerate(branches):
        branch.extend([20 + index, 30, 40])
    params = SamplingParams(max_tokens=100, min_tokens=100, ignore_eos=True)
    for generation in [branch.generate(params) for branch in branches]:
        generation.result(TIMEOUT)
    assert runtime.stats().num_steps >= 100
    assert runtime.core.runner.num_plans <= 8
    for branch in branches:
        branch.release()


def test_slots_that_move_under_a_lease_are_read_anew(make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    expected = runtime.new_branch()
    expected.extend("The theatre in the north")
    tokens = expected.generate(params).result(TIMEOUT).token_ids
    expected.release()
    runtime.flush_cache()

    def move_leased_nodes() -> None:
        memory = runtime.core.memory
        for node in list(memory.tree.nodes()):
            target = memory.pool.alloc(node.length)
            memory.cache.move(node.slots, target)
            memory.cache.poison(node.slots)
            memory.tree.store(node, target, quantized=False)

    branch = runtime.new_branch()
    branch.extend("The theatre in the north")
    generation = branch.generate(params)
    for count, _ in enumerate(generation):
        if count % 10 == 1:
            runtime.core.call(move_leased_nodes)
    assert generation.result(TIMEOUT).token_ids == tokens
    branch.release()
