"""One DSPy program on radixlang and on transformers, side by side in one run.

    python -m benchmarks.dspy_program [--lines 2] [--candidates 4]

A signature with typed outputs (JSONAdapter), n candidates a line of a menu. The peer is an engine
over transformers' `generate` with the same weights in float32: each candidate computes its whole
prompt, and no constraint holds its output. Prints seconds, and of how many lines all candidates
could be read as values; models are loaded and have answered once before the clock starts.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import dspy
import torch

from radixlang import Runtime
from radixlang.dspy_engine import RadixEngine, radix_lm
from radixlang.runtime.models.locate import find_default_model

if TYPE_CHECKING:
    from dspy.lm15 import Request, Response

LINES = ["Tomato soup with bread, 7 euros", "Roast chicken with rice, 14 euros",
         "Grilled trout, 18 euros", "Pancakes with plums, 9 euros"]  # fmt: skip
MAX_TOKENS = 60


class Dish(dspy.Signature):
    """Read a line of a menu."""

    line: str = dspy.InputField()
    dish: str = dspy.OutputField()
    price: int = dspy.OutputField()
    has_meat: bool = dspy.OutputField()


class PlainEngine(RadixEngine):
    """The same requests by transformers' generate, each prompt as a whole."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        from transformers import AutoModelForCausalLM

        path = find_default_model()
        self._model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()

    @torch.inference_mode()
    def complete(self, request: Request) -> Response:
        """Answer one request."""
        from dspy.lm15 import Message, Response, Usage

        from radixlang.protocol import Markup
        from radixlang.protocol import Message as Turn

        turns, options = self._asked(request)
        text = self.runtime.render_chat([Turn(*turn) for turn in turns], add_generation_prompt=True)
        ids = self.runtime.encode(Markup(text))
        torch.manual_seed(options["seed"])
        made = self._model.generate(
            torch.tensor([ids]), do_sample=True, temperature=options["temperature"],
            max_new_tokens=MAX_TOKENS, pad_token_id=2, eos_token_id=2,
        )[0, len(ids) :].tolist()  # fmt: skip
        return Response(
            id=None, model=request.model, finish_reason="stop",
            message=Message.assistant(self.runtime.decode(made).replace("<|im_end|>", "")),
            usage=Usage(input_tokens=len(ids), output_tokens=len(made)),
        )  # fmt: skip


def measure(lm: Any, lines: list[str], num: int) -> tuple[float, int]:
    """Seconds, and lines of which every candidate is a value of each type."""
    read, valid = dspy.Predict(Dish, n=num), 0
    begun = time.perf_counter()
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        for line in lines:
            try:
                found = read(line=line).completions
            except Exception:  # DSPy raises what its adapter cannot read
                continue
            valid += all(isinstance(price, int) for price in found.price)
    return time.perf_counter() - begun, valid


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lines", type=int, default=2)
    parser.add_argument("--candidates", type=int, default=4)
    options = parser.parse_args()
    lines = LINES[: options.lines]
    how: dict[str, Any] = {"temperature": 0.7, "max_tokens": MAX_TOKENS, "cache": False}
    print("| | seconds | lines with valid candidates |")
    print("|---|---|---|")
    for name, kind in (("radixlang, 8 bits", {}), ("radixlang, float32", {"quantization": None})):
        with Runtime(dtype="float32", seed=0, **kind) as runtime:
            lm = radix_lm(runtime, seed=1, **how)
            measure(lm, ["Bread, 2 euros"], 1)
            seconds, valid = measure(lm, lines, options.candidates)
            print(f"| {name} | {seconds:.1f} | {valid} of {len(lines)} |", flush=True)
            if "quantization" in kind:
                peer = dspy.LM("transformers/default", engine=PlainEngine(runtime), **how)
                seconds, valid = measure(peer, lines, options.candidates)
                print(f"| transformers, float32 | {seconds:.1f} | {valid} of {len(lines)} |")


if __name__ == "__main__":
    main()
