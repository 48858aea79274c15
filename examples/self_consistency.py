"""Self-consistency: many chains of thought from one prompt, and the majority of their answers.

The samples are branches of one fork. Their prompt is stored once, however many there are; each
keeps its own line of reasoning (Wang et al. 2022, arXiv:2203.11171). A 135M model at temperature
1 is often wrong in one chain, and seldom in most of sixteen.
"""

from __future__ import annotations

from collections import Counter

import radixlang
from radixlang import gen, savings

COUNTRIES = {"Egypt": "Africa", "Vietnam": "Asia", "Chile": "South America", "Hungary": "Europe"}
CONTINENTS = ["Africa", "Asia", "Europe", "North America", "South America"]
SHOTS = """\
Q: On which continent is Kenya?
A: Kenya borders Tanzania and Ethiopia. So it is in Africa.

Q: On which continent is Peru?
A: Peru borders Brazil and Ecuador. So it is in South America.

Q: On which continent is Poland?
A: Poland borders Germany and Slovakia. So it is in Europe.

Q: On which continent is Thailand?
A: Thailand borders Laos and Cambodia. So it is in Asia.

Q: On which continent is Sudan?
A: Sudan borders Egypt and Chad. So it is in Africa.

Q: On which continent is Guatemala?
A: Guatemala borders Mexico and Belize. So it is in North America.

"""


@radixlang.function
def locate(s, country, num_samples=16):
    s += f"{SHOTS}Q: On which continent is {country}?\nA: {country} borders"
    with s.fork(num_samples) as samples:
        samples += gen("chain", temperature=1.0, max_tokens=16, stop=(".", "\n"))
        samples += ". So it is in " + gen("answer", choices=CONTINENTS, temperature=0.5) + "."
    s.join(samples)


def main() -> None:
    with radixlang.Runtime() as runtime:
        for country, truth in COUNTRIES.items():
            state = locate(country=country, runtime=runtime, seed=1)
            (winner, count), *others = Counter(state["answer"]).most_common()
            mark = "✓" if winner == truth else f"✗ it is {truth}"
            print(f"{country}: {winner}, by {count} of {len(state['answer'])} votes {mark}")
            print(f"    others: {', '.join(f'{value} ({n})' for value, n in others) or 'none'}")
            print(f"    a chain: {country} borders{state['chain'][0]}.")
        print(f"\n{savings(runtime, tree=True, max_lines=24)}")


if __name__ == "__main__":
    main()
