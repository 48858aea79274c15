"""Evaluation: lm-evaluation-harness over the radix tree, on a task written in place.

Every option of a question is read in full, after the same few-shot prompt. The harness asks for
each of them apart; the prompt is computed once for all, and a question once for all its options.
Needs `pip install 'radixlang[eval]'`.
"""

from __future__ import annotations

import lm_eval
from datasets import Dataset

import radixlang
from radixlang import savings
from radixlang.evaluation.harness import RadixLM

QUESTIONS = [
    ("What is the capital of Norway?", ["The capital is Oslo", "The capital is Bergen"], 0),
    ("What is the capital of Chile?", ["The capital is Lima", "The capital is Santiago"], 1),
    ("What do bees make?", ["Bees make honey", "Bees make milk", "Bees make wine"], 0),
    ("What falls in winter?", ["Snow falls in winter", "Sand falls in winter"], 0),
    ("What is ice made of?", ["Ice is made of salt", "Ice is made of water"], 1),
    ("Where do whales live?", ["Whales live in the desert", "Whales live in the sea"], 1),
    ("Which animal barks?", ["A cat barks", "A fish barks", "A dog barks"], 2),
    ("When does the sun rise?", ["It rises in the morning", "It rises at midnight"], 0),
]
ROWS = [dict(zip(("question", "options", "answer"), row, strict=True)) for row in QUESTIONS]
TASK = {
    "task": "everyday",
    "custom_dataset": lambda **_: {
        "test": Dataset.from_list(ROWS[2:]),
        "shots": Dataset.from_list(ROWS[:2]),
    },
    "test_split": "test",
    "fewshot_split": "shots",
    "fewshot_config": {"sampler": "first_n"},
    "output_type": "multiple_choice",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_choice": lambda doc: doc["options"],
    "doc_to_target": "answer",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def main() -> None:
    with radixlang.Runtime() as runtime:
        model = RadixLM(runtime)
        results = lm_eval.simple_evaluate(model, tasks=[TASK], num_fewshot=2, bootstrap_iters=0)
        for sample in results["samples"]["everyday"]:
            options = sample["doc"]["options"]
            values = [float(answer[0][0]) for answer in sample["resps"]]
            best = options[values.index(max(values))]
            print(f"{'✓' if sample['acc'] else '✗'}  {sample['doc']['question']}  {best}.")
        print(f"accuracy {results['results']['everyday']['acc,none']:.2f}")
        print(f"\n{savings(runtime, tree=True, max_lines=16)}")


if __name__ == "__main__":
    main()
