"""Token-level programs: what the model knows before it speaks, and a story without the letter e.

The distribution of the next token says how sure the model is of a capital, for all countries in one
batch below one shared prompt, and nothing is generated. A bias of -inf bans every token with an "e"
in it; a function of logits also bans the words of the story so far, so that it never turns round.
"""

from __future__ import annotations

import math

import radixlang
from radixlang import gen, savings

COUNTRIES = ["Italy", "Japan", "Norway", "Egypt", "Chile", "Spain"]


@radixlang.function
def capitals(s, countries):
    s += "Country: France, capital: Paris\nCountry: Austria, capital: Vienna\n"
    group = s.fork(len(countries))
    group += [f"Country: {country}, capital:" for country in countries]
    return group.next_token(top=5)


@radixlang.function
def story(s, banned, rule=None):
    s += "Once upon a day a boy took his dog for a walk. It ran to" + gen(
        "story", temperature=0, max_tokens=32, logit_bias=banned, logits=rule
    )


def no_word_twice(context):
    """Ban the tokens that the story has already, but for the shortest."""
    seen = context.generated_ids[context.generated_ids > 1000].astype("int64")
    context.logits[seen] = -math.inf


def main() -> None:
    with radixlang.Runtime() as runtime:
        known = dict(zip(COUNTRIES, capitals(COUNTRIES, runtime=runtime).result, strict=True))
        for country, guess in sorted(known.items(), key=lambda pair: pair[1].entropy):
            print(f"{country}:{guess.texts[0]}, or{','.join(guess.texts[1:3])}")

        texts = [runtime.decode([token_id]) for token_id in range(runtime.tokenizer.vocab_size)]
        banned = {i: -math.inf for i, text in enumerate(texts) if "e" in text.lower()}
        for rule in (None, no_word_twice):
            found = story(banned, rule, runtime=runtime)["story"]
            print(f"{len(banned)} tokens banned:{found}")
            print("the letter e:", found.lower().count("e"), "times")
        print(f"\n{savings(runtime, tree=True, max_lines=16)}")


if __name__ == "__main__":
    main()
