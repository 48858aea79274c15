"""transformers, prefixes shared by hand: a parent's cache is copied to its children. fp32."""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from typing import Any

import torch
import transformers
from transformers_plain import load
from worker import Call, Outputs, serve


def decode(model: Any, cache: Any, suffixes: torch.Tensor, count: int) -> tuple[torch.Tensor, Any]:
    """Prefill the suffixes over the cache and generate greedily. Returns tokens and the cache."""
    out = model(suffixes, past_key_values=cache, use_cache=True, logits_to_keep=1)
    made = []
    for step in range(count):
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        made.append(token)
        if step + 1 < count:
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
    return torch.cat(made, 1) if made else suffixes[:, :0], out.past_key_values


def main() -> None:
    """Serve workloads. A family (the children of one parent) runs as one batch."""
    transformers.logging.set_verbosity_error()
    model = load(sys.argv[1])

    def run(calls: list[Call], levels: list[list[int]]) -> Outputs:
        outputs: Outputs = [[] for _ in calls]
        states: dict[int, tuple[Any, list[int]]] = {}  # call → its cache, and tokens not in it yet
        for level in levels:
            families = defaultdict(list)
            for i in level:
                families[calls[i].parent if calls[i].parent is not None else f"root {i}"].append(i)
            for parent, members in families.items():
                run_family(parent, members, calls, states, outputs)
        return outputs

    def run_family(parent: Any, members: list[int], calls: Any, states: Any, outputs: Any) -> None:
        cache, pending = states.get(parent, (None, []))
        if cache is not None:
            cache = copy.deepcopy(cache)
            cache.batch_repeat_interleave(len(members))
        suffixes = torch.tensor([pending + calls[i].suffix for i in members])
        tokens, cache = decode(model, cache, suffixes, calls[members[0]].num_tokens)
        parents = {call.parent for call in calls}
        for row, i in enumerate(members):
            outputs[i] = tokens[row].tolist()
            if i in parents:
                mine = copy.deepcopy(cache)
                mine.batch_select_indices(torch.tensor([row]))
                states[i] = (mine, outputs[i][-1:])

    def guarded(calls: list[Call], levels: list[list[int]]) -> Outputs:
        with torch.inference_mode():
            return run(calls, levels)

    serve("transformers, prefix shared by hand", transformers.__version__, guarded)


if __name__ == "__main__":
    main()
