"""Rollouts: the answers of a run as a tree of tokens, as rows for a trainer, and scored again.

Two questions below one prompt are answered four times each. The tree has every token once, with the
log-probability that it was sampled with; the rows have what a trainer of policies takes. Scoring
them computes each token of the tree once at most, and gives the same log-probabilities again.
"""

from __future__ import annotations

import radixlang
from radixlang import gen, savings

SHOTS = "Q: Name a fruit.\nA: apple\n\nQ: Name a metal.\nA: iron\n\n"
RIGHT = {
    "Name a planet.": ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn"],
    "Name a colour.": ["red", "green", "blue", "yellow", "orange", "purple", "black", "white"],
}


@radixlang.function
def answers(s, questions, samples):
    s += SHOTS
    for question in questions:
        branch = s.copy()
        branch += f"Q: {question}\nA:"
        group = branch.fork(samples)
        group += gen("answer", max_tokens=6, stop="\n", logprobs=True)
        s[question] = group["answer"]


def main() -> None:
    with radixlang.Runtime() as runtime:
        state = answers(list(RIGHT), 4, runtime=runtime, seed=4)
        tree = state.tree()
        print(tree)
        rows = tree.flatten()
        packed = tree.flatten("once")
        texts = [answer for question in RIGHT for answer in state[question]]
        for index, (row, text) in enumerate(zip(rows, texts, strict=True)):
            reward = text.strip() in RIGHT[list(RIGHT)[index // 4]]
            print(f"{int(reward)} {sum(row.logprobs):6.1f} {text}")
        print(f"packed: {len(packed.token_ids)} tokens")

        runtime.flush_cache()
        before = runtime.stats().num_computed_tokens
        scores = runtime.score(rows)
        computed = runtime.stats().num_computed_tokens - before
        worst = max(abs(new - old) for row, found in zip(rows, scores, strict=True)
                    for new, old in zip(found, row.logprobs, strict=True))  # fmt: skip
        print(f"replayed: {computed} of {tree.num_tokens} tokens computed")
        print("the same log-probabilities:", worst < 0.05)
        print(f"\n{savings(runtime, tree=True, max_lines=12)}")


if __name__ == "__main__":
    main()
