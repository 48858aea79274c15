"""An answering model and a filing adapter over one tree: who replies need not be who decides.

The model picks a reply to each customer. A LoRA adapter that knows the desk's codes (R1 money, R2
faults, R3 parcels) then files the message on a branch of the same prompt, and so does the model
alone, which has never seen the codes. The adapter acts from "Code:" on and reads the keys and
values that the model has written before. `benchmarks/train_adapter.py` has trained it, on other
messages.
"""

from __future__ import annotations

from pathlib import Path

import radixlang
from radixlang import savings, select

ADAPTER = Path(__file__).parent / "data" / "tickets"
CODES = [" R1", " R2", " R3"]
REPLIES = [" Thank you for your message.", " We are sorry to hear that."]
MESSAGES = {
    "You took the payment for the kettle two times.": " R1",
    "The bill is higher than the price I saw.": " R1",
    "I still wait for the money for the lamp that I sent back.": " R1",
    "The radio is dead, no light, no sound.": " R2",
    "Since yesterday the camera shows an error.": " R2",
    "The kettle leaks and will not boil.": " R2",
    "It is a week now and no package came.": " R3",
    "The driver says that he was here, but nobody rang.": " R3",
    "Has my lamp been shipped?": " R3",
}


@radixlang.function
def answer(s, message):
    s += f"Customer: {message}\nReply:" + select("reply", REPLIES) + "\nCode:"
    branches = s.fork(2)
    branches[0] += select("code", CODES)
    branches[1] += select("code", CODES, adapter="tickets")
    s.join(branches, "code")


def main() -> None:
    with radixlang.Runtime() as runtime:
        runtime.load_adapter("tickets", ADAPTER)
        right = [0, 0]
        for message, code in MESSAGES.items():
            state = answer.run(message, runtime=runtime)
            found = state["code"]
            right = [count + (each == code) for count, each in zip(right, found, strict=True)]
            adapter, model = (each.strip() for each in reversed(found))
            print(f"{adapter} by the adapter, {model} by the model alone: {message}")
        print(f"right: {right[1]} of {len(MESSAGES)} by the adapter, {right[0]} by the model alone")
        print(f"\n{savings(runtime, tree=True)}")


if __name__ == "__main__":
    main()
