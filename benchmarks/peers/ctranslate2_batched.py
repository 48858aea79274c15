"""CTranslate2 in int8: static batches of whole prompts. Argument: a folder of safetensors.

It has no prefix cache that outlives a call, so a level's shared prompts are computed again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ctranslate2
import transformers
from worker import Call, Outputs, by_level, serve

MAX_BATCH = 8


def converted(folder: str) -> str:
    """The model in CTranslate2's own format, made once a machine."""
    target = Path(folder).with_name(Path(folder).name + "-ctranslate2")
    if not target.exists():
        ctranslate2.converters.TransformersConverter(folder).convert(
            str(target), quantization="int8"
        )
    return str(target)


def main() -> None:
    """Serve workloads."""
    threads = os.cpu_count() or 1
    generator = ctranslate2.Generator(
        converted(sys.argv[1]), compute_type="int8", inter_threads=1, intra_threads=threads
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])

    def generate(prompts: list[list[int]], counts: list[int]) -> Outputs:
        results = generator.generate_batch(
            [tokenizer.convert_ids_to_tokens(prompt) for prompt in prompts],
            max_batch_size=MAX_BATCH,
            max_length=counts[0],
            min_length=counts[0],
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return [list(result.sequences_ids[0]) for result in results]

    def run(calls: list[Call], levels: list[list[int]]) -> Outputs:
        return by_level(calls, levels, generate)

    serve("CTranslate2 int8", ctranslate2.__version__, run)


if __name__ == "__main__":
    main()
