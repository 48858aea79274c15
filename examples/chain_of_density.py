"""Chain of density: a summary rewritten three times, each time with one more fact in it.

What a denser summary must contain is a pattern, not a hope: every rewriting keeps the facts that
the one before had and adds one; which one, and in what order they stand, the model chooses
(Adams et al. 2023, arXiv:2309.04269). The article is computed once for all rewritings.
"""

from __future__ import annotations

from itertools import permutations

import radixlang
from radixlang import gen, savings

ARTICLE = (
    "The old bridge over the Alder was opened again on Sunday. Anna Berg, the mayor, cut the "
    "ribbon. The repair took two years and cost nine million euros. Three hundred people came to "
    "the festival, and a brass band played until midnight."
)
SUBJECT = "The old bridge over the Alder was opened again"
FACTS = (" on Sunday", " by the mayor Anna Berg", " after two years", " for nine million euros")


def sentences(known: set[str], count: int) -> list[str]:
    """Every sentence with `count` facts, the known ones among them, in any order."""
    return [SUBJECT + "".join(chosen) + "."
            for chosen in permutations(FACTS, count) if known <= set(chosen)]  # fmt: skip


@radixlang.function
def densify(s):
    s += f"Article: {ARTICLE}\n"
    known: set[str] = set()
    for count in range(1, len(FACTS) + 1):
        name = f"summary {count}"
        s += f"\nSummary with {count} of the facts: "
        s += gen(name, choices=sentences(known, count), temperature=0, max_tokens=48)
        known = {fact for fact in FACTS if fact in s[name]}


def main() -> None:
    with radixlang.Runtime() as runtime:
        state = densify(runtime=runtime)
        for count in range(1, len(FACTS) + 1):
            text = state[f"summary {count}"]
            print(f"{count} of 4 facts in {len(text.split()):>2} words: {text}")
        usage = state.usage()
        print(f"\nof {usage.num_generated_tokens} tokens, {usage.num_forced_tokens} were forced")
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
