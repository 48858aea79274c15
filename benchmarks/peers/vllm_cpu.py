"""vLLM's CPU build: continuous batching with its prefix cache, fp32.

Arguments: a model folder, and optionally "lookup": its own drafts by n-grams of the prompt.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import vllm
from vllm.sampling_params import StructuredOutputsParams
from worker import Call, Outputs, by_level, serve

LOOKUP = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}


def main() -> None:
    """Serve workloads. A level's prompts are one call; the cache finds what they share."""
    options: dict[str, Any] = {}
    if "lookup" in sys.argv[2:]:
        options["speculative_config"] = LOOKUP
    engine = vllm.LLM(
        sys.argv[1], dtype="float32", enable_prefix_caching=True, max_model_len=4096, **options
    )

    def generate(prompts: list[list[int]], counts: list[int]) -> Outputs:
        params = [
            vllm.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
            for count in counts
        ]
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = engine.generate(inputs, params, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    def run_json(calls: list[Call], schema: dict[str, Any]) -> Outputs:
        engine.reset_prefix_cache()
        outputs = StructuredOutputsParams(json=schema)
        params = [
            vllm.SamplingParams(
                temperature=0, max_tokens=call.num_tokens, structured_outputs=outputs
            )
            for call in calls
        ]
        inputs = [{"prompt_token_ids": call.suffix} for call in calls]
        results = engine.generate(inputs, params, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    def run(calls: list[Call], levels: list[list[int]]) -> Outputs:
        engine.reset_prefix_cache()
        return by_level(calls, levels, generate)

    serve("vLLM, CPU build", vllm.__version__, run, run_json)


if __name__ == "__main__":
    main()
