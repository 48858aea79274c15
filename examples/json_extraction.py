"""Information out of free text, as dataclasses: valid JSON by construction, and typed.

One worked example shows what is meant; the schema does the rest. Every message is a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import radixlang
from radixlang import gen, savings

MESSAGES = (Path(__file__).parent / "data" / "orders.txt").read_text("utf-8").splitlines()


@dataclass
class Order:
    quantity: int
    item: Literal["chair", "table", "lamp", "shelf", "desk"]
    city: str


SHOTS = """\
Message: Hello, I need 3 lamps sent to Lyon, please.
Order: {"quantity": 3, "item": "lamp", "city": "Lyon"}

Message: Please deliver 12 chairs to our office in Turin.
Order: {"quantity": 12, "item": "chair", "city": "Turin"}

Message: We are in Porto and would like 2 shelves.
Order: {"quantity": 2, "item": "shelf", "city": "Porto"}

"""


@radixlang.function
def extract(s, message):
    s += f"{SHOTS}Message: {message}\nOrder: "
    s += gen("order", Order, temperature=0, max_tokens=48, whitespace=1)


def main() -> None:
    with radixlang.Runtime() as runtime:
        rows = [{"message": message} for message in MESSAGES]
        for result in extract.run_batch(rows, runtime=runtime):
            print(f"{result.row['message']}\n    {result['order']}")
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
