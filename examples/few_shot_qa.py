"""Few-shot question answering: one prefix of worked examples, many questions in one batch.

Every row shares the examples, so they are computed once; each row adds a few tokens of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

import radixlang
from radixlang import gen, savings

DATA = Path(__file__).parent / "data" / "capitals.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]
SHOTS, QUESTIONS = ROWS[:6], ROWS[6:]


@radixlang.function
def capital_of(s, country):
    s += "Questions about the capitals of the world, and their answers.\n\n"
    for shot in SHOTS:
        s += f"Q: What is the capital of {shot['country']}?\nA: {shot['capital']}.\n\n"
    s += f"Q: What is the capital of {country}?\nA:"
    s += gen("answer", temperature=0, max_tokens=6, stop=(".", "\n"))


def main() -> None:
    with radixlang.Runtime() as runtime:
        rows = [{"country": row["country"]} for row in QUESTIONS]
        results = capital_of.run_batch(rows, runtime=runtime)
        num_right = 0
        for row, result in zip(QUESTIONS, results, strict=True):
            answer = result["answer"].strip()
            num_right += answer == row["capital"]
            mark = "✓" if answer == row["capital"] else f"✗ it is {row['capital']}"
            print(f"{row['country']:<10} {answer:<12} {mark}")
        print(f"\n{num_right} of {len(results)} right\n\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
