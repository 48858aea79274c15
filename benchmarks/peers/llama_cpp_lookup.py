"""llama.cpp with llama-cpp-python's own prompt lookup, which its interface for one sequence has.

One call after another; what a prompt shares with the one before it stays in the cache. Arguments:
the GGUF to serve, and optionally a type ("q8_0", "q4_0") to requantise it to first.
"""

from __future__ import annotations

import itertools
import os
import sys

import llama_cpp as llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from llama_cpp_shared import requantised
from worker import Outputs, by_level, serve

DRAFT_TOKENS = 2  # what its documentation recommends without a GPU


def main() -> None:
    """Serve workloads."""
    kind = sys.argv[2] if len(sys.argv) > 2 else ""
    threads = os.cpu_count() or 1
    engine = llama.Llama(
        requantised(sys.argv[1], kind) if kind else sys.argv[1],
        n_ctx=4096, n_threads=threads, n_threads_batch=threads, verbose=False, logits_all=True,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=DRAFT_TOKENS),
    )  # fmt: skip

    def generate(prompts: list[list[int]], counts: list[int]) -> Outputs:
        return [
            list(itertools.islice(engine.generate(prompt, temp=0.0), count))
            for prompt, count in zip(prompts, counts, strict=True)
        ]

    name = f"llama.cpp {kind or 'as it is'}, prompt lookup, one call after another"
    serve(name, llama.__version__, lambda calls, levels: by_level(calls, levels, generate))


if __name__ == "__main__":
    main()
