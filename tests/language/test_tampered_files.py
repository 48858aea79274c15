"""Checkpoints and replay files that were changed after they were saved: a clear error, or a run."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import radixlang
from radixlang import State, function, gen, user
from radixlang.errors import ParameterError, RadixlangError

Make = Callable[..., Any]
OTHERS: tuple[Any, ...] = (None, True, -1, 2.5, "x", [], {}, [None], {"text": 1}, [[]], "\ud800")


@function
def greet(s: State, name: str) -> None:
    s += user(f"Hello {name}") + gen("reply", max_tokens=5)
    s["count"] = 3


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of the data with every key or index in it."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield data, key
        if isinstance(value, (dict, list)):
            yield from places(value)


def tampered(data: Any) -> Iterator[Any]:
    """Copies of the data, each with one place dropped or replaced by something else."""
    for number in range(len(list(places(data)))):
        for other in ("drop", *OTHERS):
            changed = copy.deepcopy(data)
            container, key = list(places(changed))[number]
            if other == "drop":
                del container[key]
            else:
                container[key] = other
            yield changed


def test_a_tampered_checkpoint_is_our_error_or_a_run(fake: Make) -> None:
    backend = fake(lambda prompt, params: "hi")
    data = json.loads(json.dumps(radixlang.take_checkpoint(greet("Ann", runtime=backend))))
    refused = 0
    for changed in tampered(data):
        try:
            with radixlang.resume(changed, runtime=backend) as s:
                s += gen("more", max_tokens=3)
                s.text()
        except RadixlangError:
            refused += 1
    assert refused > 100


def test_a_tampered_replay_is_our_error_or_a_difference(fake: Make, tmp_path: Path) -> None:
    backend = fake(lambda prompt, params: "hi")
    path = tmp_path / "replay.json"
    radixlang.save_replay(greet("Ann", runtime=backend), path)
    data, refused = json.loads(path.read_text("utf-8")), 0
    for changed in tampered(data):
        path.write_text(json.dumps(changed), "utf-8")
        try:
            radixlang.verify_replay(greet, path, runtime=backend)
        except RadixlangError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("data", [None, [], "text", 7, {"kind": "checkpoint"}])
def test_what_is_no_checkpoint_is_refused(fake: Make, data: Any) -> None:
    with pytest.raises(ParameterError, match="checkpoint"):
        radixlang.resume(data, runtime=fake())


def test_the_damaged_place_is_named(fake: Make) -> None:
    data = radixlang.take_checkpoint(greet("Ann", runtime=fake(lambda prompt, params: "hi")))
    data["pieces"][1] = {"text": 5}
    with pytest.raises(ParameterError, match=r"damaged: pieces\[1\] has to be .*save it again"):
        radixlang.resume(data, runtime=fake())
