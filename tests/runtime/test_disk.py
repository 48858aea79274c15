"""The disk tier: what one process has computed the next reads, and damage costs hits alone."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixlang import function, gen
from radixlang.protocol import Usage
from radixlang.records.checkpoint import resume, take_checkpoint
from radixlang.runtime.disk.block_store import BlockStore, TokenBlock
from radixlang.sampling_params import SamplingParams
from radixlang.state.state import State

Start = Callable[..., Any]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def prompt_ids(num: int, seed: int = 0) -> list[int]:
    """Token ids of a prompt."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, 440, num)]


@pytest.fixture
def start(make_runtime: Start, tmp_path: Path) -> Start:
    """Starts a runtime on the test's folder, as a new process would."""

    def make(**options: Any) -> Any:
        return make_runtime(**{"disk": tmp_path / "disk", "num_pages": 4096, **options})

    return make


def asked(runtime: Any, ids: list[int], **branch: str) -> tuple[tuple[int, ...], Usage]:
    """Tokens and usage of a greedy generation."""
    made = runtime.new_branch(**branch)
    made.extend(ids)
    done = made.generate(GREEDY).result(60)
    made.release()
    return done.token_ids, done.usage


def test_a_restart_reads_what_was_computed(start: Start) -> None:
    ids = prompt_ids(1024)
    first = start()
    expected, cold = asked(first, ids)
    assert cold.num_cached_tokens == 0
    first.close()
    again, warm = asked(start(), ids)
    assert again == expected
    assert warm.num_cached_tokens >= 0.99 * len(ids)


@pytest.mark.parametrize("num", [1, 5, 63, 64, 65, 200])
def test_beginnings_of_any_length_come_back(start: Start, num: int) -> None:
    """Whole blocks, and of the last the part that is the same."""
    ids = prompt_ids(num)
    first = start()
    asked(first, [*ids, 7])
    first.close()
    _, usage = asked(start(), [*ids, 9, 11])
    assert usage.num_cached_tokens == num


def test_a_conversation_goes_on_after_a_restart(start: Start) -> None:
    """Ten turns, restarted at each: no token is computed twice."""

    def talk(*, restarts: bool) -> int:
        runtime, ids, num_computed = start(disk=folder), [], 0
        for turn in range(10):
            ids += prompt_ids(23, turn)
            answer, usage = asked(runtime, ids)
            num_computed += usage.num_computed_tokens
            ids += answer
            if restarts:
                runtime.close()
                runtime = start(disk=folder)
        runtime.close()
        return num_computed

    home = start().config.disk
    folder = home / "one"
    through = talk(restarts=False)
    folder = home / "two"
    assert talk(restarts=True) == through


def test_a_state_goes_on_from_its_checkpoint_in_another_process(start: Start) -> None:
    """The first may be killed right after: it is not closed before the second has read."""
    first, second = start(), start()
    saved: list[Any] = []

    @function
    def talk(s: State) -> None:
        s += "A long beginning, of which nothing is computed twice, " * 4
        s += gen("a", max_tokens=30, temperature=0, heal=False)
        saved.append(take_checkpoint(s))

    told = talk(runtime=first)
    first.core.call(first.core.memory.disk.drain)
    with resume(saved[0], runtime=second) as s:
        s += gen("b", max_tokens=5, temperature=0)
    assert s["a"] == told["a"]
    usage = s.usage("b")
    assert usage.num_prompt_tokens > 100
    assert usage.num_computed_tokens <= 2  # the last token, and what the first had not computed


def test_what_is_evicted_comes_back(start: Start) -> None:
    runtime = start(num_pages=300)
    ids = prompt_ids(128)
    expected, _ = asked(runtime, ids)
    for seed in range(1, 6):
        asked(runtime, prompt_ids(200, seed))
    assert runtime.stats().num_evicted_tokens > 500
    again, usage = asked(runtime, ids)
    assert again == expected
    assert usage.num_cached_tokens >= 127


def test_namespaces_and_other_weights_share_nothing(start: Start, tiny_model: Any) -> None:
    from dataclasses import replace

    ids = prompt_ids(200)
    first = start()
    asked(first, ids, namespace="a")
    first.close()
    assert asked(start(), ids)[1].num_cached_tokens == 0
    assert asked(start(), ids, namespace="a")[1].num_cached_tokens == 199
    other = replace(tiny_model, config=replace(tiny_model.config, norm_eps=1e-4))
    assert asked(start(model=other), ids, namespace="a")[1].num_cached_tokens == 0


def test_damaged_files_are_misses(start: Start, tmp_path: Path) -> None:
    """Hundreds of files with flipped bits, cut or swapped: never another token."""
    ids = prompt_ids(1000)
    first = start()
    expected, _ = asked(first, ids)
    first.close()
    chance, num_damaged = random.Random(1), 0
    for trial in range(20):
        copy = tmp_path / str(trial)
        shutil.copytree(tmp_path / "disk", copy)
        for path in sorted(copy.iterdir())[trial % 3 :]:
            damage(path, chance)
            num_damaged += 1
        runtime = start(disk=copy, debug=False)
        assert asked(runtime, ids)[0] == expected
        runtime.close()
    assert num_damaged > 250


def damage(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    kind = chance.randrange(4)
    if kind == 0:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del data[chance.randrange(len(data)) :]
    elif kind == 2:
        data += b"more"
    else:
        data = bytearray(chance.choice(sorted(path.parent.iterdir())).read_bytes()[::-1])
    path.write_bytes(data)


def test_two_runtimes_share_a_folder(start: Start) -> None:
    ids, others = prompt_ids(300), prompt_ids(300, 1)
    one, two = start(), start()
    expected = asked(one, ids)[0]
    asked(two, others)
    one.close()
    assert asked(two, ids)[1].num_cached_tokens == 299
    two.close()
    third = start()
    assert asked(third, ids)[0] == expected
    assert asked(third, others)[1].num_cached_tokens == 299


@pytest.mark.parametrize("kind", ["file", "full"])
def test_a_failing_disk_costs_hits_alone(
    start: Start, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "broken"
    if kind == "file":
        folder.write_text("no folder")
    else:

        def full(*_: Any, **__: Any) -> Any:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("radixlang.runtime.disk.block_store.tempfile.mkstemp", full)
    ids = prompt_ids(200)
    expected, _ = asked(start(disk=None), ids)
    runtime = start(disk=folder)
    assert asked(runtime, ids)[0] == expected
    runtime.close()
    assert asked(start(disk=folder), ids)[1].num_cached_tokens == 0


# ---- the store


def block(value: int, num_bytes: int) -> TokenBlock:
    return TokenBlock(np.full(9, value, np.int32), np.full(num_bytes, value, np.uint8))


@pytest.fixture
def store(tmp_path: Path) -> Callable[[int], BlockStore]:
    return lambda max_bytes: BlockStore(tmp_path / "blocks", max_bytes)


def test_the_least_recently_used_goes_first(store: Any, tmp_path: Path) -> None:
    import os

    blocks = store(10_000)
    for number in range(9):
        blocks.write(f"b{number}", block(number, 900))
        os.utime(tmp_path / "blocks" / f"b{number}", (number, number))
    assert blocks.read("b0") is not None  # now the last used
    blocks.write("b9", block(9, 900))
    left = {path.name for path in (tmp_path / "blocks").iterdir()}
    assert {"b0", "b9"} <= left
    assert "b1" not in left
    assert sum(path.stat().st_size for path in (tmp_path / "blocks").iterdir()) <= 10_000
    blocks.write("large", block(1, 20_000))
    assert blocks.read("large") is None


WRITER = """
import sys, numpy as np
from pathlib import Path
from radixlang.runtime.disk.block_store import BlockStore, TokenBlock
store = BlockStore(Path(sys.argv[1]), 400_000)
blocks = [TokenBlock(np.full(9, n, np.int32), np.full(20_000, n, np.uint8)) for n in range(40)]
print("begun", flush=True)
number = 0
while True:
    store.write(f"b{number % 40}", blocks[number % 40])
    number += 1
"""


def test_a_killed_writer_leaves_whole_blocks(store: Any, tmp_path: Path) -> None:
    """Killed at random points, over the folder that the ones before have left."""
    chance = random.Random(2)
    num_read = 0
    for _ in range(12):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "blocks")],
                                  stdout=subprocess.PIPE)  # fmt: skip
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"begun\n"
        time.sleep(chance.random() * 0.05)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        blocks = store(400_000)
        for number in range(40):
            found = blocks.read(f"b{number}")
            if found is not None:
                assert (found.tokens == number).all()
                assert found.payload.tobytes() == bytes([number]) * 20_000
                num_read += 1
    assert num_read > 50
