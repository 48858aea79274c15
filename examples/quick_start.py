"""A fact sheet of a country: four facts asked side by side, then a sentence that uses them all.

The instructions and worked examples are computed and stored once. The branches of the fork read
them from the radix tree of the KV cache, are joined, and the program goes on with their answers.
"""

from __future__ import annotations

import sys

import radixlang
from radixlang import assistant, gen, savings, system, user

FACTS = ("capital", "language", "currency", "continent")
EXAMPLES = {
    "France": ("Paris", "French", "the euro", "Europe"),
    "Brazil": ("Brasília", "Portuguese", "the real", "South America"),
    "India": ("New Delhi", "Hindi", "the rupee", "Asia"),
    "Poland": ("Warsaw", "Polish", "the zloty", "Europe"),
    "Ghana": ("Accra", "English", "the cedi", "Africa"),
    "Mexico": ("Mexico City", "Spanish", "the peso", "North America"),
}
SENTENCE = (
    "{0} is a country in {4} whose capital is {1}, whose language is {2} and whose currency is {3}."
)


@radixlang.function
def fact_sheet(s, country):
    s += system("You know the countries of the world and answer in one short sentence.")
    for name, values in EXAMPLES.items():
        for fact, value in zip(FACTS, values, strict=True):
            s += user(f"{name}: {fact}?") + assistant(f"The {fact} of {name} is {value}.")
        s += user(f"Introduce {name}.") + assistant(SENTENCE.format(name, *values))
    with s.fork(len(FACTS)) as branches:
        for branch, fact in zip(branches, FACTS, strict=True):
            branch += user(f"{country}: {fact}?")
            answer = gen(fact, temperature=0, max_tokens=8, stop=".")
            branch += assistant(f"The {fact} of {country} is" + answer)
    s.join(branches)
    for branch, fact in zip(branches, FACTS, strict=True):
        s += user(f"{country}: {fact}?") + assistant(f"The {fact} of {country} is{branch[fact]}.")
    s += user(f"Introduce {country}.")
    s += assistant(gen("introduction", temperature=0, max_tokens=48, stop="\n"))


def main(country: str = "Italy") -> None:
    with radixlang.Runtime() as runtime:
        state = fact_sheet(country=country, runtime=runtime)
        for message in state.messages()[-2 * len(FACTS) - 2 :]:
            print(f"{message.role:>9}: {message.content}")
        print(f"\nWhat the KV cache holds now\n\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
