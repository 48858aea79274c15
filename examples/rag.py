"""Retrieval and reading: documents found by words, read side by side, and quoted exactly.

The question and the instructions are the trunk; each retrieved document is a branch. An answer is
one of the document's own sentences, chosen by likelihood: it cannot be made up, and it names its
source.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path

import radixlang
from radixlang import savings, select

DATA = Path(__file__).parent / "data" / "valley.jsonl"
DOCUMENTS = {
    row["name"]: row["text"] for row in map(json.loads, DATA.read_text("utf-8").splitlines())
}
SHOTS = """\
Text: The Robin is a river of the east. The Robin is 77 km long. Boats sail on it.
Question: How long is the Robin?
Quote: The Robin is 77 km long.

Text: The Swift is a river of the west. The Swift is 80 km long. Ducks swim in it.
Question: Which animals swim in the Swift?
Quote: Ducks swim in it.

"""


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"[a-z]{3,}", text.lower()))


def retrieve(question: str, k: int = 2) -> list[str]:
    """Names of the k documents that share the rarest words with the question."""
    found = {name: words(text) for name, text in DOCUMENTS.items()}
    rarity = Counter(word for each in found.values() for word in each)

    def score(name: str) -> float:
        shared = words(question) & found[name]
        return sum(math.log(1 + len(found) / rarity[word]) for word in shared)

    return sorted(found, key=score, reverse=True)[:k]


@radixlang.function
def read(s, question):
    s += SHOTS
    names = retrieve(question)
    with s.fork(len(names)) as readers:
        for reader, name in zip(readers, names, strict=True):
            sentences = re.findall(r"[^.]+\.", DOCUMENTS[name])
            reader += f"Text: {DOCUMENTS[name]}\nQuestion: {question}\nQuote: "
            reader += select("quote", [sentence.strip() for sentence in sentences])
    return [(reader["quote"], max(reader.choice("quote").probabilities), name)
            for reader, name in zip(readers, names, strict=True)]  # fmt: skip


def main() -> None:
    with radixlang.Runtime() as runtime:
        for question in ("How long is the Heron?", "What animals live in the Kestrel?",
                         "What animals live in the Osprey?"):  # fmt: skip
            print(question)
            for quote, probability, name in read(question=question, runtime=runtime).result:
                print(f"    [{name}] {quote} ({probability:.0%} of its sentences)")
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
