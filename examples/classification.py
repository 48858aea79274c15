"""Classification by `select`: probabilities instead of words, and calibrated.

The labels are scored under one shared prompt. Plain likelihood favours labels that are likely
anyway; dividing by their likelihood without the review takes that away ("unconditional
likelihood normalised"). A review whose two labels are close is handed to a person.
"""

from __future__ import annotations

import json
from pathlib import Path

import radixlang
from radixlang import select
from radixlang.report import savings

DATA = Path(__file__).parent / "data" / "reviews.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]
SHOTS, REVIEWS = ROWS[:6], ROWS[6:]
LABELS = ["positive", "negative"]


@radixlang.function
def classify(s, review, scorer):
    s += "Is the review positive or negative?\n\n"
    for shot in SHOTS:
        s += f"Review: {shot['review']}\nLabel: {shot['label']}\n\n"
    s += f"Review: {review}\nLabel: " + select("label", LABELS, scorer=scorer)


def main() -> None:
    with radixlang.Runtime() as runtime:
        for scorer in ("token_length_normalized", "unconditional_likelihood_normalized"):
            rows = [{"review": row["review"]} for row in REVIEWS]
            results = classify.bind(scorer=scorer).run_batch(rows, runtime=runtime)
            right = sum(result["label"] == row["label"]
                        for result, row in zip(results, REVIEWS, strict=True))  # fmt: skip
            print(f"{scorer}: {right} of {len(REVIEWS)} right")
        for row, result in zip(REVIEWS, results, strict=True):
            certain = max(result.state.choice("label").probabilities)
            note = "  → a person should look" if certain < 0.6 else ""
            mark = "✓" if result["label"] == row["label"] else "✗"
            print(f"  {mark} {result['label']} {certain:.2f}  {row['review']}{note}")
        print(f"\n{savings(runtime, tree=True, max_lines=24)}")


if __name__ == "__main__":
    main()
