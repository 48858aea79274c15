"""A judge with several dimensions: branch, grade each dimension, merge.

Two letters are graded. Each letter is read once for all dimensions; each dimension is a branch
that sees worked grades first. The model gives probabilities, not opinions: a grade is how likely
"good" is against "bad", and the letters are ranked by their mean.
"""

from __future__ import annotations

from pathlib import Path

import radixlang
from radixlang import savings, select

DATA = Path(__file__).parent / "data" / "letters.txt"
LETTERS = [text.strip() for text in DATA.read_text("utf-8").split("---")]
DIMENSIONS = ("politeness", "clarity", "spelling")
SHOTS = """\
Letter: Dear Ms Grant, thank you very much for your kind help last week. I am grateful.
politeness: good
clarity: good
spelling: good

Letter: u r stupid and i hate ur shop gimme my mony bak idiot
politeness: bad
clarity: bad
spelling: bad

"""


@radixlang.function
def judge(s, letter):
    s += f"{SHOTS}Letter: {letter}\n"
    with s.fork(len(DIMENSIONS)) as group:
        for branch, dimension in zip(group, DIMENSIONS, strict=True):
            branch += f"{dimension}: " + select("grade", ["good", "bad"])
    grades = {name: branch.choice("grade").probabilities[0]
              for name, branch in zip(DIMENSIONS, group, strict=True)}  # fmt: skip
    s["mean"] = sum(grades.values()) / len(grades)
    return grades


def main() -> None:
    with radixlang.Runtime() as runtime:
        results = judge.run_batch([{"letter": letter} for letter in LETTERS], runtime=runtime)
        for result in sorted(results, key=lambda result: -result["mean"]):
            print(f"{result['mean']:.2f}  {result.row['letter']}")
            grades = result.state.result
            print("      " + ", ".join(f"{name} {grade:.2f}" for name, grade in grades.items()))
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
