"""An agent that reasons and acts: a search tool over a local corpus, and a calculator.

Every action is generated under a pattern of what makes sense now: names that the question has and
that were not looked up, numbers that a tool has returned. What a tool returns goes back into the
prompt, and the loop goes on from the cache (Yao et al. 2022, arXiv:2210.03629).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import radixlang
from radixlang import gen, savings

DATA = Path(__file__).parent / "data" / "valley.jsonl"
CORPUS = {row["name"]: row["text"] for row in map(json.loads, DATA.read_text("utf-8").splitlines())}
SHOTS = """\
Question: How much longer is the Osprey than the Wren?
Action: search Osprey
Result: The Osprey is 510 km long.
Action: search Wren
Result: The Wren is 46 km long.
Action: calculate 510 - 46
Result: 464
Action: finish 464 km

"""


def search(name: str) -> str:
    """The sentence of the corpus that says how long a river is."""
    return next(line for line in CORPUS[name].split(". ") if "km" in line).rstrip(".") + "."


def calculate(expression: str) -> str:
    left, sign, right = re.fullmatch(r"(\d+) ([+-]) (\d+)", expression).groups()
    return str(int(left) + int(right) if sign == "+" else int(left) - int(right))


def allowed(question: str, seen: list[str], results: list[str]) -> str:
    """A pattern of the actions that make sense: nothing twice, no number out of thin air."""
    lengths = [re.search(r"(\d+) km", result)[1] for result in results if "km" in result]
    actions = [f"search {name}" for name in CORPUS if name in question and name not in seen]
    numbers = [result for result in results if "km" not in result]
    if len(lengths) > 1 and not numbers:
        actions += [f"calculate {lengths[0]} [+-] {lengths[1]}"]
    return "|".join(actions + [f"finish {number} km" for number in numbers])


@radixlang.function
def agent(s, question):
    s += f"{SHOTS}Question: {question}\n"
    seen, results = [], []
    while True:
        name = f"action {len(seen)}"
        pattern = allowed(question, seen, results)
        s += "Action: " + gen(name, regex=pattern, temperature=0, max_tokens=16)
        tool, _, argument = s[name].partition(" ")
        if tool == "finish":
            return argument
        seen.append(argument)
        results.append(search(argument) if tool == "search" else calculate(argument))
        s += f"\nResult: {results[-1]}\n"


def main() -> None:
    with radixlang.Runtime() as runtime:
        for question in ("How much longer is the Kestrel than the Alder?",
                         "How much longer is the Alder than the Heron?"):  # fmt: skip
            state = agent(question=question, runtime=runtime)
            print(state.text()[len(SHOTS) :], end="\n\n")
        print(savings(runtime, tree=True))


if __name__ == "__main__":
    main()
