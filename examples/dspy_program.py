"""DSPy on our runtime: a signature with typed outputs, four candidates from one prefill.

DSPy's JSONAdapter turns the output fields into a JSON schema, which is a constraint here: even a
small model answers in valid JSON. The four candidates are four requests of DSPy's with the same
prompt, which is computed once. Needs `pip install 'radixlang[dspy]'`.
"""

from __future__ import annotations

from collections import Counter

import dspy

import radixlang
from radixlang import savings
from radixlang.dspy_engine import radix_lm


class Dish(dspy.Signature):
    """Read a line of a menu."""

    line: str = dspy.InputField()
    dish: str = dspy.OutputField()
    price: int = dspy.OutputField()
    has_meat: bool = dspy.OutputField()


LINES = ["Tomato soup with bread, 7 euros", "Roast chicken with rice, 14 euros"]


def main() -> None:
    with radixlang.Runtime() as runtime:
        lm = radix_lm(runtime, seed=1, temperature=0.7, max_tokens=60, cache=False)
        read = dspy.Predict(Dish, n=4)
        with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
            for line in LINES:
                found = read(line=line).completions
                ((price, votes),) = Counter(found.price).most_common(1)
                print(f"{line}: {price=}, {votes} of 4 candidates; {found.dish[0]!r}")
        print(f"\n{savings(runtime, tree=True, max_lines=16)}")


if __name__ == "__main__":
    main()
