"""A conversation over several turns: each turn computes what is new and reads the rest.

The second and later questions ("And of Egypt?") mean something only with the turns before them.
"""

from __future__ import annotations

import radixlang
from radixlang import assistant, gen, savings, system, user

EXAMPLES = {
    "What is the capital of France?": "The capital of France is Paris.",
    "And of Poland?": "The capital of Poland is Warsaw.",
    "What language do they speak there?": "In Poland they speak Polish.",
}
QUESTIONS = (
    "What is the capital of Italy?",
    "What language do they speak there?",
    "What is the capital of Japan?",
    "And of Spain?",
    "What language do they speak there?",
)


@radixlang.function
def conversation(s, questions):
    s += system("You teach geography and answer in one short sentence.")
    for question, answer in EXAMPLES.items():
        s += user(question) + assistant(answer)
    for turn, question in enumerate(questions):
        s += user(question)
        s += assistant(gen(f"answer {turn}", temperature=0, max_tokens=24, stop="\n"))


def main() -> None:
    with radixlang.Runtime() as runtime:
        state = conversation(questions=QUESTIONS, runtime=runtime)
        for turn, question in enumerate(QUESTIONS):
            usage = state.usage(f"answer {turn}")
            print(f"{question}\n    {state[f'answer {turn}'].strip()}")
            print(f"    ({usage.num_prompt_tokens} tokens of prompt, "
                  f"{usage.num_computed_tokens} of them computed)")  # fmt: skip
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
