"""Contrasts: an instruction followed more, by the logits of a branch without it.

One branch is told how to answer, the other is not. Both get each token together: weight 0 is the
branch without the instruction, 1 the one with it, and above 1 the answer goes further from what the
model would say anyway (classifier-free guidance), among the tokens that the told branch holds at
least a tenth as likely as its best. All weights run in one batch; each of the two prompts is
computed once.
"""

from __future__ import annotations

import radixlang
from radixlang import assistant_begin, contrast, savings, system, user

WEIGHTS = [0, 1, 2]


@radixlang.function
def guided(s, instruction, question, weights):
    told, plain = s.fork(2)
    told += system(instruction) + user(question) + assistant_begin()
    plain += system("You are a helpful assistant.") + user(question) + assistant_begin()
    answers = []
    for weight in weights:
        a, b = told.copy(), plain.copy()
        contrast(a, b, weight, "answer", temperature=0, max_tokens=32, plausibility=0.1)
        answers.append(a)
    return [each["answer"] for each in answers]


def main() -> None:
    with radixlang.Runtime() as runtime:
        state = guided("Answer like a pirate.", "How do I boil an egg?", WEIGHTS, runtime=runtime)
        for weight, answer in zip(WEIGHTS, state.result, strict=True):
            print(f"weight {weight}: {' '.join(answer.split())}")
        print(f"\n{savings(runtime, tree=True, max_lines=16)}")


if __name__ == "__main__":
    main()
