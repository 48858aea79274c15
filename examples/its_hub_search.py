"""its_hub's beam search over our branches: its calls share every prefix.

its_hub writes a chat step by step, and sends all of it again for each step. A short program is its
language model: prompts that begin alike are computed once, and the calls of a round run together.
Needs `pip install its_hub`.
"""

from __future__ import annotations

import asyncio
import itertools

from its_hub.api import AbstractLanguageModel, AbstractProcessRewardModel
from its_hub.core.algorithms.beam_search import BeamSearch
from its_hub.core.lms.step_generation import StepGeneration

import radixlang
from radixlang import gen, savings


@radixlang.function
async def step(s, messages):
    *turns, last = messages
    for turn in turns:
        s += radixlang.role(turn.role, turn.content)
    if last.role == "assistant":  # it goes on where it stopped
        s += radixlang.assistant_begin() + last.content + gen("text")
    else:
        s += radixlang.role(last.role, last.content) + radixlang.assistant_begin()
        s += gen("text")


class RadixModel(AbstractLanguageModel):
    """its_hub's language model on a runtime."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.seeds = itertools.count()  # calls of one prompt differ by it

    async def agenerate(self, messages, stop=None, max_completion_tokens=None, **options):
        """One conversation, or many at once."""
        if not isinstance(messages[0], list):
            return (await self.agenerate([messages], stop, max_completion_tokens, **options))[0]
        shared = {"stop": stop or (), "max_tokens": max_completion_tokens or 24,
                  "temperature": options.get("temperature") or 0.0}  # fmt: skip
        seeds = [next(self.seeds) for _ in messages]
        runs = [step.arun(each, runtime=self.runtime, seed=seed, **shared)
                for each, seed in zip(messages, seeds, strict=True)]  # fmt: skip
        states = await asyncio.gather(*runs)
        return [{"role": "assistant", "content": state["text"]} for state in states]


class Animals(AbstractProcessRewardModel):
    """Rewards steps by the different animals in them."""

    async def ascore(self, prompt_or_messages, steps):
        return [self.reward(text) for text in steps]

    def score(self, prompt_or_messages, steps):
        return [self.reward(text) for text in steps]

    def reward(self, text):
        animals = ("cat", "dog", "horse", "pig", "sheep", "goat", "chicken", "duck", "goose", "cow")
        return sum(animal in text.lower() for animal in animals) / len(animals)


def main() -> None:
    with radixlang.Runtime() as runtime:
        search = BeamSearch(
            StepGeneration(max_steps=3, tokens_per_step=10), Animals(), beam_width=2
        )
        prompt = "Which animals live on a farm? Name many of them in one sentence."
        result = search.infer(RadixModel(runtime), prompt, budget=6, return_response_only=False)
        best = result.selected_index
        print(f"{result.responses[best]['content']}\n(score {result.scores[best]:.1f})")
        print(f"\n{savings(runtime, tree=True, max_lines=16)}")


if __name__ == "__main__":
    main()
