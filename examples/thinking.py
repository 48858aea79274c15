"""Thinking: a budget of tokens for a thought that helps the answer and then leaves the prompt.

The default model has no thinking tags, so they are named here: a line that says where a city is,
then the answer. A budget of 0 writes the tags alone. Whatever the thought, the prompt goes on with
the answers alone, so a question never reads the thoughts before it, and nothing of the conversation
is computed again when they leave. Five thoughts vote on the last question.
"""

from __future__ import annotations

import radixlang
from radixlang import gen, majority, savings

SHOTS = [
    ("Lyon", "Lyon is a city in France.", "Europe"),
    ("Osaka", "Osaka is a city in Japan.", "Asia"),
    ("Lima", "Lima is a city in Peru.", "South America"),
    ("Accra", "Accra is a city in Ghana.", "Africa"),
]
CITIES = {"Cairo": "Africa", "Hamburg": "Europe", "Mumbai": "Asia", "Santiago": "South America"}
CONTINENTS = [" Africa", " Asia", " Europe", " South America"]
TAGS = ("Thought:", "\nContinent:")


def examples(s):
    for city, thought, continent in SHOTS:
        s += f"City: {city}\nThought: {thought}\nContinent: {continent}\n\n"


@radixlang.function
def continents(s, budget):
    examples(s)
    for city in CITIES:
        s += f"City: {city}\n" + gen(
            city, think=budget, think_tags=TAGS, choices=CONTINENTS, temperature=0
        )
        s += "\n\n"


@radixlang.function
def vote(s):
    examples(s)
    s += "City: Nairobi\n"
    thinks = gen("place", think=16, think_tags=TAGS, choices=CONTINENTS, temperature=0.7)
    return majority(s, 5, thinks, "place")


def main() -> None:
    with radixlang.Runtime() as runtime:
        for budget in (0, 16):
            state = continents(budget, runtime=runtime)
            right = sum(state[city].strip() == place for city, place in CITIES.items())
            print(f"think={budget}: {right} of {len(CITIES)} right")
            for city in CITIES:
                print(f"  {city}:{state[city]}  {state.thought(city)}")
        print("five thoughts on Nairobi:", vote(runtime=runtime, seed=1).result.strip())
        print("the prompt ends:", repr(state.text()[-54:]))
        print(f"\n{savings(runtime, tree=True, max_lines=12)}")


if __name__ == "__main__":
    main()
