"""OpenVINO GenAI: continuous batching with its prefix cache, the GGUF read by itself.

Arguments: the model, and optionally "lookup": its own prompt lookup, with what its sample sets.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import openvino
import openvino_genai
from worker import Call, Outputs, by_level, serve

CACHE_GIB = 2
LOOKUP_TOKENS, LOOKUP_NGRAM = 5, 3


def greedy(num_tokens: int) -> openvino_genai.GenerationConfig:
    """A fixed number of likeliest tokens."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = num_tokens
    config.ignore_eos = True
    config.do_sample = False
    if with_lookup():
        config.num_assistant_tokens, config.max_ngram_size = LOOKUP_TOKENS, LOOKUP_NGRAM
    return config


def with_lookup() -> bool:
    """Whether prompt lookup is on."""
    return "lookup" in sys.argv[2:]


def main() -> None:
    """Serve workloads. A level's prompts are one call; the cache finds what they share."""
    scheduling = openvino_genai.SchedulerConfig()
    scheduling.enable_prefix_caching = True
    scheduling.cache_size = CACHE_GIB
    properties = {"prompt_lookup": True} if with_lookup() else {}
    pipe = openvino_genai.ContinuousBatchingPipeline(sys.argv[1], scheduling, "CPU", properties)

    def generate(prompts: list[list[int]], counts: list[int]) -> Outputs:
        tensors = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = pipe.generate(tensors, [greedy(count) for count in counts])
        return [list(result.m_generation_ids[0]) for result in results]

    def run_json(calls: list[Call], schema: dict[str, Any]) -> Outputs:
        configs = []
        for call in calls:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens, config.do_sample = call.num_tokens, False
            if with_lookup():
                config.num_assistant_tokens, config.max_ngram_size = LOOKUP_TOKENS, LOOKUP_NGRAM
            config.structured_output_config = openvino_genai.StructuredOutputConfig(
                json_schema=json.dumps(schema)
            )
            configs.append(config)
        tensors = [openvino.Tensor(np.array([call.suffix], np.int64)) for call in calls]
        return [list(r.m_generation_ids[0]) for r in pipe.generate(tensors, configs)]

    def run(calls: list[Call], levels: list[list[int]]) -> Outputs:
        return by_level(calls, levels, generate)

    serve("OpenVINO GenAI, continuous batching", openvino_genai.__version__, run, run_json)


if __name__ == "__main__":
    main()
