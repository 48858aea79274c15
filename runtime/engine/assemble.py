"""Puts an engine together from a loaded model and a configuration."""

from __future__ import annotations

import secrets
from pathlib import Path

from radixlang.runtime.cache.pages.page_pool import PagePool
from radixlang.runtime.cache.quantized_tier import ColdTier
from radixlang.runtime.cache.radix_tree import Namespace, RadixTree
from radixlang.runtime.disk.fingerprint import fingerprint_of
from radixlang.runtime.disk.tier import DiskTier
from radixlang.runtime.engine.engine import EngineCore
from radixlang.runtime.engine.warm_up import warm_up
from radixlang.runtime.forward.memory_budget import (
    draft_tokens_for,
    make_cache,
    max_batch_tokens_for,
    max_logit_rows_for,
)
from radixlang.runtime.forward.model_runner import ModelRunner
from radixlang.runtime.forward.step_memory import StepMemory, measure_step
from radixlang.runtime.metrics.stats import Counters, StepProfile
from radixlang.runtime.models.model import LoadedModel
from radixlang.runtime.process.device import device_of
from radixlang.runtime.requests.branch_table import Branches, Serving
from radixlang.runtime.requests.next_use_hints import NextUses
from radixlang.runtime.runtime_config import RuntimeConfig
from radixlang.runtime.sampling.counter_rng import SeedSource
from radixlang.runtime.scheduling.kv_manager import Memory
from radixlang.runtime.scheduling.scheduler import Limits
from radixlang.runtime.speculative.prompt_lookup import PromptLookup


def build_engine(loaded: LoadedModel, config: RuntimeConfig) -> EngineCore:
    """An engine ready to run on its thread."""
    counters, profile = Counters(), StepProfile()
    model, device = loaded.model, device_of(loaded.model.device)
    max_tokens = config.max_batch_tokens or max_batch_tokens_for(model.device)
    max_logit_rows = max_logit_rows_for(model.device, model.config.vocab_size)
    step = measure_step(model, device, max_tokens, max_logit_rows)
    memory = _memory(loaded, config, counters, step)
    num_slots = memory.pool.num_slots
    seed = secrets.randbits(64) if config.seed is None else config.seed
    branches = Branches(
        _serving(loaded, config, num_slots),
        SeedSource(seed),
        NextUses(memory.tree),
        PromptLookup(draft_tokens_for(loaded.model, config)),
    )
    if config.disk is not None:
        disk = DiskTier(
            Path(config.disk),
            config.disk_bytes,
            memory.tree,
            memory.cache,
            fingerprint_of(loaded, Namespace()),
            branches.variants,
        )
        memory.use_disk(disk)
        branches.keep = disk.save
    runner = ModelRunner(
        model,
        memory,
        profile,
        branches.variants,
        deterministic=config.deterministic,
        device=device,
        cuda_graphs=config.cuda_graphs,
    )
    if config.warm_up:
        warm_up(runner, memory.cache, device, config)
    return EngineCore(
        memory,
        runner,
        branches,
        counters,
        profile,
        device=device,
        limits=Limits(step.max_tokens, config.max_running),
        max_logit_rows=max_logit_rows,
        order=config.order,
        max_pinned_tokens=config.max_pinned_tokens or num_slots // 2,
        compaction=config.compaction,
        debug=config.debug,
    )


def _memory(
    loaded: LoadedModel, config: RuntimeConfig, counters: Counters, step: StepMemory
) -> Memory:
    """The pool, the tree over it, and the tensors."""
    cache = make_cache(loaded.config, loaded.model.device, config, step_bytes=step.num_bytes)
    page_size, cold_tokens = config.page_size, config.cold_tokens
    pool = PagePool(cache.num_slots // page_size, page_size, track_holders=config.debug)
    cold_pool = PagePool(cold_tokens) if cold_tokens else None
    tree = RadixTree(pool, policy=config.eviction, cold_pool=cold_pool)
    cold = ColdTier(tree, cache, idle_s=config.cold_idle_s) if cold_tokens else None
    return Memory(pool, tree, cache, counters, cold)


def _serving(loaded: LoadedModel, config: RuntimeConfig, num_slots: int) -> Serving:
    """The model's properties that branches need."""
    model, tokenizer = loaded.config, loaded.tokenizer
    return Serving(
        tokenizer=tokenizer,
        context_length=model.context_length,
        vocab_size=min(model.vocab_size, tokenizer.vocab_size),
        num_logits=model.vocab_size,
        end_ids=loaded.eos_token_ids,
        max_tokens_held=num_slots,
        attention=config.attention,
        reads_pages=device_of(loaded.model.device).is_host,
    )
