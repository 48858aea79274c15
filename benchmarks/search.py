"""A beam search by `search` and the same one over llama-cpp-python, side by side in one run.

    python -m benchmarks.search --peer PYTHON [--depth 6] [--width 4] [--branching 4]

PYTHON is the interpreter of an environment with llama-cpp-python (`benchmarks.speed --install`
makes one). There the search is written as its users do: a Llama object with its RAM cache, one
completion a node, prompts as token ids, so a child begins where the cache has its parent. Both
serve SmolLM2's GGUF on one thread and make the same number of nodes and tokens, end tokens ignored;
a node's value is a checksum of its text, so neither search is cheaper than the other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path

import radixlang
from radixlang import Beam, SearchResult, State, gen, search
from radixlang.runtime.models.locate import find_default_model

PROMPT = (
    "A tree of thought explores several ways to go on, judges each, and keeps the best of them. "
    "We plan a day in a small town by the sea, for a family with two children who like boats, old "
    "towers and ice cream, and who have to be back at the station before the evening train. "
) * 4
STEP = "\nNext thought:"
THEIRS = """
import json, sys, time
from llama_cpp import Llama, LlamaRAMCache

work = json.loads(sys.argv[1])
llm = Llama(work["model"], n_ctx=4096, n_threads=1, n_threads_batch=1, verbose=False, seed=1)
llm.set_cache(LlamaRAMCache(2 << 30))
step = llm.tokenize(work["step"].encode(), add_bos=False, special=False)
end = {llm.token_eos(): -100.0}

def grow(path, seed):
    prompt = path + step
    out = llm.create_completion(prompt, max_tokens=work["tokens"], temperature=0.8, seed=seed,
                                logit_bias=end, top_k=0, top_p=1.0, min_p=0.0)
    text = out["choices"][0]["text"]
    return prompt + llm.tokenize(text.encode(), add_bos=False, special=False), out["usage"]

def run(prompt):
    root = llm.tokenize(prompt.encode(), add_bos=False, special=False)
    beams, made, num_tokens = [root], 0, 0
    for _ in range(work["depth"]):
        grown = []
        for path in beams:
            for _ in range(work["branching"]):
                made += 1
                child, usage = grow(path, made)
                num_tokens += usage["completion_tokens"]
                grown.append((sum(child) % 997, -made, child))
        grown.sort(reverse=True)
        beams = [child for _, _, child in grown[: work["width"]]]
    return made, num_tokens

run("Warm up.")
start = time.perf_counter()
made, num_tokens = run(work["prompt"])
print(json.dumps([time.perf_counter() - start, made, num_tokens]))
"""


def ours(options: argparse.Namespace) -> tuple[float, int, int]:
    """Seconds, nodes and generated tokens of `search`."""
    found: list[SearchResult] = []
    many = {"max_tokens": options.tokens, "min_tokens": options.tokens, "ignore_eos": True}

    def value(branch: State) -> float:
        return float(sum(map(ord, branch.text())) % 997)

    @radixlang.function
    def plan(s: State, prompt: str) -> None:
        s += prompt
        policy = Beam(options.width, options.branching)
        step = STEP + gen("thought", temperature=0.8, **many)
        found.append(search(s, step, value, policy=policy, depth=options.depth, budget=10_000))

    with radixlang.Runtime() as runtime:
        plan.run("Warm up.", runtime=runtime, seed=1).text()
        runtime.reset_stats()
        start = time.perf_counter()
        plan.run(PROMPT, runtime=runtime, seed=1).text()
        seconds = time.perf_counter() - start
        return seconds, len(found[-1].nodes), runtime.stats().num_generated_tokens


def theirs(options: argparse.Namespace) -> tuple[float, int, int]:
    """The same of llama-cpp-python, in its own process."""
    work = {"model": str(find_default_model()), "prompt": PROMPT, "step": STEP,
            "tokens": options.tokens, "depth": options.depth, "width": options.width,
            "branching": options.branching}  # fmt: skip
    told = subprocess.run(
        [options.peer, "-c", THEIRS, json.dumps(work)], capture_output=True, text=True, check=True
    )
    seconds, made, num_tokens = json.loads(told.stdout.splitlines()[-1])
    return float(seconds), int(made), int(num_tokens)


def main() -> None:
    """Measure in turn and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peer", type=Path, required=True, metavar="PYTHON")
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--branching", type=int, default=4)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=16, help="of a step")
    options = parser.parse_args()
    rows = {"radixlang search": ours(options), "llama-cpp-python": theirs(options)}
    first = rows["radixlang search"][0]
    for name, (seconds, made, num_tokens) in rows.items():
        print(
            f"{name:18} {seconds:7.2f} s  {seconds / first:5.2f}  {made} nodes, {num_tokens} tokens"
        )


if __name__ == "__main__":
    main()
