"""An adapter against its base, token by token, next to PEFT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import radixlang
from radixlang import contrast
from tests.runtime.adapters.conftest import Reference, our_model

PROMPT = [5, 40, 77, 300, 21, 9, 150, 33, 60, 2, 411, 87]


@torch.no_grad()
def their_contrast(model: Any, weight: float, count: int) -> list[int]:
    """Greedy tokens; the prompt but for its last token is read by the base model."""
    import transformers

    caches = [transformers.DynamicCache(config=model.config) for _ in range(2)]
    with model.disable_adapter():
        for cache in caches:
            model(torch.tensor([PROMPT[:-1]]), cache=cache, use_cache=True)
    ids, made = PROMPT[-1:], []
    for _ in range(count):
        tuned = model(torch.tensor([ids]), cache=caches[0], use_cache=True)
        with model.disable_adapter():
            base = model(torch.tensor([ids]), cache=caches[1], use_cache=True)
        a, b = (out.logits[0, -1].log_softmax(-1) for out in (tuned, base))
        ids = [int((b + weight * (a - b)).argmax())]
        made += ids
    return made


def test_an_adapter_against_its_base_is_pefts(
    reference_for: Callable[..., Reference], make_runtime: Callable[..., Any], tiny_model: Any
) -> None:
    @radixlang.function
    def program(s: radixlang.State, weight: float) -> Any:
        s += runtime.decode(PROMPT)
        tuned, base = s.fork(2)
        with tuned.adapter("a"):
            contrast(tuned, base, weight, "x", max_tokens=6, temperature=0, ignore_eos=True)
        return list(tuned.completion("x").token_ids), base.tokens()

    reference = reference_for("llama")
    runtime = make_runtime(our_model("llama", tiny_model))
    runtime.load_adapter("a", reference.folders["a"])
    model = reference.model
    model.set_adapter("a")
    root = runtime.new_branch()
    root.extend(PROMPT)
    for weight in (1.5, 3.0, -0.5):
        tuned, base = root.fork(2)
        tuned.use_adapter(radixlang.AdapterUse("a"))
        params = radixlang.SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
        done = tuned.contrast(base, params, radixlang.protocol.Contrast(weight)).result(60)
        assert list(done.token_ids) == their_contrast(model, weight, 6)
        assert done.origin.adapter == "a"
        tuned.release()
        base.release()
    root.release()
    ids, whole = program.run(weight=1.5, runtime=runtime).result
    assert list(whole)[-len(ids) :] == ids
