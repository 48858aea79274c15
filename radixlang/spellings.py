"""Hints for unknown names: one table of other tools' spellings and what they are called here."""

from __future__ import annotations

from collections.abc import Iterable

from radixlang.suggestions import suggestion

_GEN = {
    "max_tokens": "max_new_tokens max_completion_tokens max_output_tokens max_gen_len max_length "
    "num_predict n_predict num_tokens",
    "min_tokens": "min_new_tokens min_length",
    "temperature": "temp",
    "top_k": "topk",
    "top_p": "topp nucleus",
    "stop": "stop_strings stop_sequences stop_sequence stop_words stops until stop_at",
    "stop_token_ids": "eos_token_id eos_token_ids stop_tokens stop_ids",
    "stop_regex": "stop_pattern stop_patterns",
    "repetition_penalty": "repeat_penalty rep_pen",
    "frequency_penalty": "freq_penalty",
    "presence_penalty": "pres_penalty",
    "logprobs": "output_logprobs return_logprob return_logprobs",
    "top_logprobs": "top_logprobs_num num_logprobs",
    "seed": "random_seed random_state sampling_seed",
    "n": "num_samples num_return_sequences num_completions samples",
    "regex": "guided_regex regexp regex_pattern pattern",
    "json_schema": "guided_json schema response_schema output_schema json",
    "grammar": "guided_grammar cfg ebnf gbnf lark",
    "choices": "guided_choice choice options enum",
}
_RUN = {
    "runtime": "backend model engine llm client",
    "timeout": "timeout_s deadline max_time",
    "max_total_tokens": "token_budget budget max_budget",
}
_BATCH = {
    "max_workers": "num_threads num_workers n_jobs workers",
    "max_in_flight": "batch_size concurrency max_concurrency",
    "progress": "progress_bar show_progress tqdm",
    "save_to": "out output output_path save_path",
}
_RUNTIME = {
    "model": "model_path model_name model_id model_name_or_path repo_id checkpoint "
    "pretrained_model_name_or_path",
    "context_length": "max_model_len max_seq_len max_seq_length n_ctx ctx_size max_context_length",
    "device": "device_map",
    "dtype": "torch_dtype precision weight_dtype",
    "kv_dtype": "kv_cache_dtype cache_dtype",
    "quantization": "load_in_8bit quantize quant",
    "kv_bytes": "gpu_memory_utilization mem_fraction_static kv_cache_memory_bytes cache_size "
    "kv_cache_size",
    "num_pages": "num_gpu_blocks num_blocks max_total_tokens",
    "page_size": "block_size",
    "max_running": "max_num_seqs max_running_requests max_batch_size batch_size",
    "max_batch_tokens": "max_num_batched_tokens chunked_prefill_size max_prefill_tokens n_batch",
    "eviction": "eviction_policy radix_eviction_policy",
    "order": "schedule_policy scheduling_policy",
    "seed": "random_seed",
    "deterministic": "enable_deterministic_inference batch_invariant",
    "draft_tokens": "num_speculative_tokens speculative_num_draft_tokens",
    "chat_template": "chat_format chat_template_path custom_chat_template",
}
_TYPE = "a type is the second argument, as in gen('x', int)"
_PREFIXES = "prefixes are always shared, so there is nothing to switch"
_ONE_DEVICE = "a model runs on one device here; device= says which"
_ADVICE = {
    "gen": {
        "dtype": _TYPE, "type": _TYPE, "output_type": _TYPE, "return_type": _TYPE,
        "response_format": "a type is the second argument, as in gen('x', Book), and json_schema= "
        "takes a schema",
        "do_sample": "temperature=0 is greedy, and any other temperature samples",
        "greedy": "write temperature=0",
        "stream": "program.stream(…) gives pieces as they come",
        "best_of": "radixlang.best_of(…) takes the best of several samples",
        "num_beams": "radixlang.beam(…) searches with beams",
        "beam_width": "radixlang.beam(…) searches with beams",
        "scorer": "select(…) takes a scorer",
    },
    "a run": {"dtype": "Runtime(dtype=…) sets a model's, and gen('x', int) an answer's"},
    "Runtime": {
        "backend": "there is one engine; device= says where it runs",
        "tensor_parallel_size": _ONE_DEVICE, "tp_size": _ONE_DEVICE, "tp": _ONE_DEVICE,
        "n_gpu_layers": _ONE_DEVICE, "num_gpus": _ONE_DEVICE,
        "load_in_4bit": "quantization= takes \"file\", \"int8\" or None",
        "bits": "quantization= takes \"file\", \"int8\" or None",
        "enable_prefix_caching": _PREFIXES, "disable_radix_cache": _PREFIXES,
        "n_threads": "set OMP_NUM_THREADS before Python starts",
        "num_threads": "set OMP_NUM_THREADS before Python starts",
        "trust_remote_code": "code of a model's repository is never run",
        "tokenizer": "the tokenizer is the one in the model's folder",
        "tokenizer_path": "the tokenizer is the one in the model's folder",
        "cache_dir": "set HF_HOME", "download_dir": "set HF_HOME",
        "token": "set HF_TOKEN", "hf_token": "set HF_TOKEN",
    },
}  # fmt: skip
_OWNERS = {"gen": _GEN, "a run": _RUN, "run_batch": _BATCH, "Runtime": _RUNTIME}
_THEIRS: dict[str, dict[str, str]] = {
    owner: {their: ours for ours, names in table.items() for their in names.split()}
    for owner, table in _OWNERS.items()
}


def hint_for(name: str, known: Iterable[str], owner: str, otherwise: str | None = None) -> str:
    """What to write instead of an unknown name.

    Args:
        known: the known names.
        owner: whose names they are: "gen", "a run", "run_batch" or "Runtime". Other tools' names
            are looked up among these first, then among those of other owners.
        otherwise: the hint if no name is near; None lists the known names.
    """
    names = list(known)
    return _theirs(name, names, owner) or suggestion(name, names, otherwise)


def _theirs(name: str, known: list[str], owner: str) -> str | None:
    for each in sorted(_OWNERS, key=lambda other: other != owner):
        ours = _THEIRS[each].get(name)
        if ours is not None and ours in known:
            return f"it is called {ours!r} here"
        if ours is not None and each != owner:
            return f"that is {ours!r} of {each}"
        advice = _ADVICE.get(each, {}).get(name)
        if advice is not None:
            return advice
        if each != owner and name in _OWNERS[each]:
            return f"it is an option of {each}"
    return None
