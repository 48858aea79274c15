"""Skeleton of thought: an outline first, then all its points written at the same time.

The outline has four short points; the branches that fill them in share
everything up to it (Ning et al. 2023, arXiv:2307.15337).
"""

from __future__ import annotations

import radixlang
from radixlang import gen, savings

QUESTION = "How do I grow tomatoes in my garden?"
SHOT = """\
Question: How do I make tea?
1. Boil some water.
2. Warm the pot.
3. Pour the water on the tea.
4. Wait three minutes.

More about point 1, Boil some water: Fresh cold water tastes best and should boil only once.
More about point 3, Pour the water on the tea: Use one spoon of tea for each cup of water.

"""
SENTENCE = r" [A-Z][a-z]+( [a-z]+,?){5,16}\."
POINT = {"temperature": 0, "max_tokens": 16, "stop": (".", "\n"), "repetition_penalty": 1.3}


@radixlang.function
def answer(s, question):
    s += f"{SHOT}Question: {question}\n"
    for number in range(1, 5):
        s += f"{number}. " + gen(f"point {number}", **POINT) + ".\n"
    points = [s[f"point {number}"] for number in range(1, 5)]
    with s.fork(4) as group:
        for number, (branch, point) in enumerate(zip(group, points, strict=True), 1):
            branch += f"\nMore about point {number}, {point}:"
            branch += gen("text", regex=SENTENCE, temperature=0, max_tokens=32, finish="close")
    s.join(group, "text")
    return points


def main() -> None:
    with radixlang.Runtime() as runtime:
        state = answer(question=QUESTION, runtime=runtime)
        print(QUESTION)
        for point, text in zip(state.result, state["text"], strict=True):
            print(f"\n* {point}\n  {text.strip()}")
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
