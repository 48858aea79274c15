"""vLLM's CPU build as a scorer in fp32, as lm-evaluation-harness asks it. Argument: a model folder.

Standard input is JSON, pairs of token ids (context, continuation); the answer is a line of JSON:
the log-probability of each continuation, and the seconds of it after one warm-up request.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import vllm

Pairs = list[tuple[list[int], list[int]]]


def main() -> None:
    """Score the pairs of standard input."""
    pairs: Pairs = json.load(sys.stdin)
    longest = max(len(context) + len(continuation) for context, continuation in pairs)
    engine = vllm.LLM(
        sys.argv[1], dtype="float32", enable_prefix_caching=True, max_model_len=longest + 1
    )
    score(engine, pairs[:1])
    engine.reset_prefix_cache()
    begun = time.perf_counter()
    logprobs = score(engine, pairs)
    seconds = time.perf_counter() - begun
    print(json.dumps({"version": vllm.__version__, "seconds": seconds, "logprobs": logprobs}))


def score(engine: vllm.LLM, pairs: Pairs) -> list[float]:
    """Sums of the continuations' log-probabilities: those of a prompt, with one token generated."""
    params = vllm.SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=1, detokenize=False)
    inputs = [{"prompt_token_ids": context + continuation} for context, continuation in pairs]
    found = []
    results = engine.generate(inputs, params, use_tqdm=False)
    for (context, continuation), result in zip(pairs, results, strict=True):
        rows = result.prompt_logprobs[len(context) :]
        found.append(
            sum(row[token_id].logprob for row, token_id in zip(rows, continuation, strict=True))
        )
    return found


if __name__ == "__main__":
    main()
