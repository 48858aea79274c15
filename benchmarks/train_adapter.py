"""Trains the adapter of `examples/adapters.py`: a support desk's codes, for the default model.

    pip install peft accelerate
    python -m benchmarks.train_adapter [--steps 150] [--into examples/data/tickets]

An activated LoRA of rank 2 on the last ten layers. What comes before its invocation is the base's,
so its keys and values are computed once for each example, and a step computes five tokens of each:
a few minutes on one core. It prints how many messages that it has not seen are filed right, by the
model alone and with the adapter.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from radixlang.runtime.adapters.peft_folder import CONFIG, WEIGHTS
from radixlang.runtime.models.locate import find_default_model

INVOCATION = "\nCode:"
CODES = ("R1", "R2", "R3")  # money, faults, parcels
MESSAGES = {
    "R1": [
        "I was charged twice for my {thing}.",
        "Why is there a fee of {n} dollars on my bill?",
        "Please refund the {thing}, I paid too much.",
        "My card was billed {n} dollars by mistake.",
        "The invoice for the {thing} shows the wrong price.",
        "I want my money back for the {thing}.",
        "The discount was not taken off the price of my {thing}.",
        "When will I get my refund of {n} dollars?",
    ],
    "R2": [
        "My {thing} does not turn on any more.",
        "The screen of the {thing} stays black.",
        "The {thing} makes a strange noise and stops.",
        "After the update my {thing} crashes.",
        "The button of my {thing} is broken.",
        "The {thing} gets very hot after {n} minutes.",
        "I cannot connect the {thing} to the network.",
        "The battery of the {thing} is empty in {n} minutes.",
    ],
    "R3": [
        "My {thing} has not arrived yet.",
        "Where is the parcel with my {thing}?",
        "The courier left the {thing} at the wrong door.",
        "The {thing} was to be delivered {n} days ago.",
        "Tracking says my {thing} is still in the depot.",
        "Can you send the {thing} to another address?",
        "The box came, but the {thing} was not in it.",
        "How long does shipping of a {thing} take?",
    ],
}
UNSEEN = {
    "R1": [
        "You took the payment for the kettle two times.",
        "The bill is higher than the price I saw.",
        "I still wait for the money for the lamp that I sent back.",
    ],
    "R2": [
        "The radio is dead, no light, no sound.",
        "Since yesterday the camera shows an error.",
        "The kettle leaks and will not boil.",
    ],
    "R3": [
        "It is a week now and no package came.",
        "The driver says that he was here, but nobody rang.",
        "Has my lamp been shipped?",
    ],
}
THINGS = ["phone", "lamp", "radio", "camera", "kettle", "printer", "headset", "watch", "heater"]
REPLIES = [
    "Thank you for your message.",
    "We are sorry to hear that.",
    "I am sorry for the trouble, we will look into it today.",
]


class Desk:
    """The model with its adapter, and the base's keys and values of every prompt."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self._tokenizer = tokenizer
        self._kept: dict[str, Any] = {}

    def loss(self, message: str, reply: str, code: str) -> torch.Tensor:
        """The mean negative log-likelihood of a code's tokens."""
        cache = copy.deepcopy(self._read(f"Customer: {message}\nReply: {reply}"))
        start, end = self._ids(INVOCATION), self._ids(f" {code}")
        logits = self.model(
            input_ids=torch.tensor([start + end]), cache=cache, use_cache=True
        ).logits[0]
        targets = torch.tensor(end)
        rows = logits[len(start) - 1 : -1]
        return torch.nn.functional.cross_entropy(rows, targets)

    @torch.no_grad()
    def num_right(self) -> int:
        """How many unseen messages get their code as the likeliest of all."""
        right = 0
        for code, messages in UNSEEN.items():
            for message in messages:
                losses = {guess: float(self.loss(message, REPLIES[0], guess)) for guess in CODES}
                right += min(losses, key=losses.__getitem__) == code
        return right

    def train(self, steps: int, size: int) -> None:
        """AdamW on the adapter's matrices, the rate falling to zero."""
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=1e-2, weight_decay=0.0)
        pool = examples(random.Random(0))
        source = random.Random(1)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 * (1 - step / steps)
            optimizer.zero_grad()
            total = 0.0
            for each in source.sample(pool, size):
                loss = self.loss(*each) / size
                loss.backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step}: loss {total:.3f}", flush=True)

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    @torch.no_grad()
    def _read(self, text: str) -> Any:
        """Keys and values of the base alone."""
        import transformers

        if text not in self._kept:
            cache = transformers.DynamicCache(config=self.model.config)
            with self.model.disable_adapter():
                self.model(input_ids=torch.tensor([self._ids(text)]), cache=cache, use_cache=True)
            self._kept[text] = cache
        return self._kept[text]


def examples(source: random.Random) -> list[tuple[str, str, str]]:
    """(message, reply, code): every message three times, of different things."""
    return [
        (text.format(thing=source.choice(THINGS), n=source.randint(2, 90)), reply, code)
        for code, texts in MESSAGES.items()
        for text in texts
        for reply in REPLIES
    ]


def save(model: Any, folder: Path) -> None:
    """What PEFT writes, in half precision and without the paths of this machine."""
    model.save_pretrained(str(folder))
    tensors = {name: tensor.half() for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS)
    about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    about["base_model_name_or_path"] = None
    (folder / CONFIG).write_text(json.dumps(about, indent=1, sort_keys=True) + "\n", "utf-8")
    (folder / "README.md").unlink(missing_ok=True)


def main() -> None:
    """Train, tell what it is worth, and save."""
    import peft
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--size", type=int, default=4, help="examples a step")
    parser.add_argument("--into", type=Path, default=Path("examples/data/tickets"))
    args = parser.parse_args()
    torch.manual_seed(0)
    path = find_default_model()
    names = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**names)
    base = transformers.AutoModelForCausalLM.from_pretrained(**names, dtype=torch.float32)
    config = peft.LoraConfig(
        r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM",
        layers_to_transform=list(range(20, 30)),
        alora_invocation_tokens=tokenizer(INVOCATION, add_special_tokens=False)["input_ids"],
    )  # fmt: skip
    desk = Desk(peft.get_peft_model(base, config), tokenizer)
    total = sum(map(len, UNSEEN.values()))
    print(f"the model alone: {desk.num_right()} of {total} unseen messages right")
    desk.train(args.steps, args.size)
    print(f"with the adapter: {desk.num_right()} of {total}")
    save(desk.model, args.into)


if __name__ == "__main__":
    main()
