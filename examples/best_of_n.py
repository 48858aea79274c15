"""Best of n: eight samples from one prompt, scored, and the conversation goes on from the best.

The score is a rule of Python (must name the town, and be short) and then the model's own mean
log-probability. The chosen sample's branch is adopted, not written again.
"""

from __future__ import annotations

import radixlang
from radixlang import gen
from radixlang.report import savings

SHOTS = """\
Slogan for a bakery in Bern: Fresh bread in Bern, every morning.
Slogan for a bicycle shop in Delft: See Delft on two wheels.
Slogan for a bookshop in Dublin: A good story waits in Dublin.
Slogan for a garden centre in Graz: Bring the garden home to Graz.
Slogan for a"""


@radixlang.function
def slogan(s, shop, town, n=8):
    s += f"{SHOTS} {shop} in {town}:"
    s += gen("slogan", n=n, temperature=0.9, max_tokens=16, stop="\n", logprobs=True)
    group = s.samples("slogan")

    def score(index):
        text, tokens = s["slogan"][index], group[index].completion("slogan").logprobs
        fits = town in text and text.endswith(".") and len(text.split()) < 10
        return fits, sum(token.logprob for token in tokens) / len(tokens)

    scores = [score(index) for index in range(n)]
    texts = list(s["slogan"])
    s.choose("slogan", max(range(n), key=scores.__getitem__))
    return sorted(zip(scores, texts, strict=True), reverse=True)


def main() -> None:
    with radixlang.Runtime() as runtime:
        state = slogan(shop="flower shop", town="Ghent", runtime=runtime, seed=4)
        for (fits, mean), text in state.result:
            print(f"{'fits' if fits else '    '}  {mean:6.2f}  {text.strip()}")
        print(f"\nchosen: {state['slogan'].strip()}")
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
