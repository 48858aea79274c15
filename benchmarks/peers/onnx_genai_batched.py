"""ONNX Runtime GenAI in int8 or int4: static batches of whole prompts.

Arguments: a folder of safetensors, and "int8" or "int4". Its engine that shares pages between
requests needs PagedAttention, which its builder refuses for a CPU ("requires CUDA with FP16/BF16
or WebGPU"), so a level's shared prompts are computed again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as genai
from worker import Call, Outputs, by_level, in_batches, serve

MAX_BATCH = 8


def converted(folder: str, precision: str) -> str:
    """The model as its own builder makes it from the fp32 weights, once a machine."""
    target = Path(folder).with_name(f"{Path(folder).name}-onnx-{precision}")
    if not (target / "genai_config.json").exists():
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-e", "cpu"]
        paths = ["-i", folder, "-o", str(target), "-c", str(target / "cache")]
        subprocess.run([*builder, "-p", precision, *paths], check=True, stdout=sys.stderr)
    return str(target)


def generate(model: Any, prompts: list[list[int]], counts: list[int]) -> Outputs:
    """Greedy tokens for prompts of equal length and count, together."""
    length = len(prompts[0]) + counts[0]
    params = genai.GeneratorParams(model)
    params.set_search_options(
        do_sample=False, batch_size=len(prompts), min_length=length, max_length=length
    )
    return finish(genai.Generator(model, params), prompts)


def run_json(model: Any, calls: list[Call], schema: dict[str, Any]) -> Outputs:
    """One call after another: in a batch, a row that ends before the others is an error."""
    outputs: Outputs = []
    for call in calls:
        params = genai.GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=len(call.suffix) + call.num_tokens)
        params.set_guidance("json_schema", json.dumps(schema))
        outputs += finish(genai.Generator(model, params), [call.suffix])
    return outputs


def finish(generator: Any, prompts: list[list[int]]) -> Outputs:
    """Run a generator to its end; what it wrote after each prompt."""
    generator.append_tokens(np.array(prompts, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [
        generator.get_sequence(row)[len(prompt) :].tolist() for row, prompt in enumerate(prompts)
    ]


def main() -> None:
    """Serve workloads."""
    precision = sys.argv[2]
    model = genai.Model(converted(sys.argv[1], precision))

    batches = in_batches(partial(generate, model), MAX_BATCH)

    def run(calls: list[Call], levels: list[list[int]]) -> Outputs:
        return by_level(calls, levels, batches)

    name = f"ONNX Runtime GenAI {precision}"
    serve(name, genai.__version__, run, lambda *asked: run_json(model, *asked))


if __name__ == "__main__":
    main()
