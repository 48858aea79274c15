"""Programs as endpoints: typed arguments in, typed results out, and a stream of events.

The server runs beside the program here; `radixlang serve examples/program_endpoints.py` runs it
alone, with /programs/trip and /programs/capital beside OpenAI's API and on the same tree. Clients
in any language send JSON; /openapi.json describes arguments and results.
"""

from __future__ import annotations

import json
from typing import Literal

import httpx2

import radixlang
from radixlang import assistant, gen, savings, select, system, user
from radixlang.serving import serving


@radixlang.function
def capital(s: radixlang.State, country: str) -> str:
    """The capital of a country, in one sentence."""
    s += system("You teach geography and answer in one short sentence.")
    s += user(f"What is the capital of {country}?")
    s += assistant(gen("answer", max_tokens=16, temperature=0))
    return str(s["answer"])


@radixlang.function
def trip(s: radixlang.State, countries: list[str], way: Literal["train", "ship"] = "train") -> int:
    """The capitals of countries, each on a branch, and whether to go there."""
    s += system("You teach geography and answer in one short sentence.")
    with s.fork(len(countries)) as towns:
        for town, country in zip(towns, countries, strict=True):
            town += user(f"What is the capital of {country}?")
            town += assistant(gen("town", max_tokens=16, temperature=0))
            town += user(f"Is it reached by {way}?") + assistant(select("go", ["Yes.", "No."]))
    return sum(go == "Yes." for go in towns["go"])


def main() -> None:
    with radixlang.Runtime() as runtime, serving(runtime, programs=[capital, trip]) as url:
        client = httpx2.Client(base_url=f"{url}/programs", timeout=60)
        print(client.post("/capital", json={"country": "Italy"}).json()["returned"])

        asked = {"countries": ["Japan", "Spain"], "way": "ship"}
        reply = client.post("/trip?seed=1", json=asked).json()
        print(reply["values"], reply["returned"], "to go to")

        with client.stream("POST", "/capital?stream=true", json={"country": "Peru"}) as stream:
            lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
        *pieces, result = map(json.loads, lines[:-1])
        print("".join(piece["text"] for piece in pieces), f"({result['type']})")

        wrong = client.post("/trip", json={"countries": "Japan"})
        print(wrong.status_code, wrong.json()["error"]["message"])
        client.close()
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
