"""Best of n: eight samples from one prompt, scored, and the program goes on from the best.

The score is the model's own mean log-probability. The winner's branch is adopted: nothing is
written or computed again, and the other branches are released.
"""

from __future__ import annotations

import radixlang
from radixlang import gen, mean_logprob, savings

SHOTS = """\
A slogan for a bakery: In Bern, every morning begins with fresh bread.
A slogan for a bicycle shop: In Delft, you see more on two wheels.
A slogan for a bookshop: In Dublin, a good story waits for you.
A slogan for a garden centre: In Graz, spring begins at our door.
"""


@radixlang.function
def slogan(s, shop, town, n=8):
    s += f"{SHOTS}A slogan for a {shop}: In {town},"
    s += gen("slogan", n=n, temperature=0.8, max_tokens=16, stop="\n", logprobs=True)
    scores = list(map(mean_logprob("slogan"), s.samples("slogan")))
    samples = sorted(zip(scores, s["slogan"], strict=True), reverse=True)
    s.choose("slogan", scores.index(max(scores)))
    s += "\nWhy it works: it is" + gen("why", temperature=0, max_tokens=16, stop=(".", "\n"))
    return samples


def main() -> None:
    with radixlang.Runtime() as runtime:
        state = slogan(shop="flower shop", town="Ghent", runtime=runtime, seed=4)
        for score, text in state.result:
            print(f"{score:6.2f}  In Ghent,{text}")
        print(f"\nchosen: In Ghent,{state['slogan']}\nwhy it works: it is{state['why']}.")
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
