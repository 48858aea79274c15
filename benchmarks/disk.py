"""The disk tier: what a restart takes, what writing costs, and runtimes killed at random points.

    python benchmarks/disk.py                             # 1,024 tokens, default model
    python benchmarks/disk.py --kills 1000 --damaged 1000   # minutes; runtimes over one folder

A restart is a new Runtime on the folder of one that was closed. What it takes beyond loading is its
time from the start to the first token, less that of a runtime without a disk and a short prompt.
Writing is measured in processor seconds, on every thread, of those of the whole run.

A killed runtime is a child process that asks prompts in random order over a small pool, so that it
reads, evicts and writes; it compares every answer with that of a runtime without a disk. Before
each start, files of the folder are flipped, cut or exchanged.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from radixlang import Runtime, SamplingParams
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.model import LoadedModel

TEXT = "The old harbour of the town lies below the hill, and every morning the boats come in. "
ONE = SamplingParams(temperature=0, max_tokens=1, heal=False)
FEW = SamplingParams(temperature=0, max_tokens=4, heal=False, ignore_eos=True)
POOL = 512  # tokens: less than the prompts of a killed runtime have together
MOST_LINES, MOST_S = 24, 0.03  # that a runtime tells, and seconds after those, until it is killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--damaged", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.kills:
            report_kills(load_model(args.model), Path(folder), args.kills, args.damaged)
        else:
            report_restart(Path(folder) / "disk", args.model, args.tokens)


# ---- a restart


def report_restart(folder: Path, model: str | None, num_tokens: int) -> None:
    first_token(None, model, 8)  # what is cached of the model's files
    without_s, _, _ = first_token(None, model, 8)
    computed_s, _, share = first_token(folder, model, num_tokens)
    again_s, num_cached, _ = first_token(folder, model, num_tokens)
    beyond_s = again_s - without_s
    print(f"start and first token of {num_tokens} tokens: {computed_s:.3f} s computed, "
          f"{again_s:.3f} s with {num_cached} of them from disk ({num_cached / num_tokens:.1%}), "
          f"{beyond_s:.3f} s beyond loading")  # fmt: skip
    print(f"writing: {share:.1%} of the processor seconds of a run that computes {num_tokens} "
          "tokens, generates 64, and closes")  # fmt: skip


def first_token(
    folder: Path | None, model: str | None, num_tokens: int
) -> tuple[float, int, float]:
    """Seconds from the start to the first token, tokens that were cached, and the share of writing
    in the processor seconds from the first prompt to the end of closing."""
    begun = time.perf_counter()
    with Runtime(model, **({} if folder is None else {"disk": folder})) as runtime:
        ids = (runtime.encode(TEXT) * (num_tokens // 10 + 1))[:num_tokens]
        busy = time.process_time()
        branch = runtime.new_branch()
        branch.extend(ids)
        usage = branch.generate(ONE).result().usage
        took_s = time.perf_counter() - begun
        if folder is not None:
            branch.generate(SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)).result()
        branch.release()
    disk = runtime.core.memory.disk
    writing_s = 0.0 if disk is None else disk.writing_s
    return took_s, usage.num_cached_tokens, writing_s / (time.process_time() - busy)


# ---- kills and damage


def report_kills(loaded: LoadedModel, folder: Path, num_kills: int, num_damaged: int) -> None:
    found = killed(loaded, folder, num_kills, num_damaged)
    print(f"{num_kills} runtimes killed, {found['damaged']} files damaged: {found['starts']} had "
          f"started, {found['failures']} failed, {found['right']} answers as without a disk, "
          f"{found['wrong']} others; {found['read']} tokens were read from disk")  # fmt: skip


def killed(loaded: LoadedModel, folder: Path, num_kills: int, num_damaged: int) -> dict[str, int]:
    """Run that many runtimes over one folder, each killed at a random point.

    The model must not have run in this process, which forks.
    """
    chance = random.Random(0)
    told = "".join(_lines_of(lambda tell: _ask_all(loaded, tell)))
    expected = [tuple(map(int, line.split())) for line in told.split("\n")[:-1]]
    counts = dict.fromkeys(("starts", "failures", "right", "wrong", "read", "damaged"), 0)
    for number in range(num_kills):
        share = num_damaged * (number + 1) // num_kills - num_damaged * number // num_kills
        counts["damaged"] += damage(folder / "disk", chance, share)
        run = partial(_run, loaded, folder / "disk", expected, number)
        point = (chance.randrange(MOST_LINES), chance.random() * MOST_S)
        for line in "".join(_lines_of(run, point)).split("\n")[:-1]:
            kind, _, value = line.partition(" ")
            counts[kind] += int(value)
    return counts


def _prompts(loaded: LoadedModel) -> list[list[int]]:
    """Prompts that share beginnings of several lengths."""
    chance = random.Random(1)
    base = [chance.randrange(3, 400) for _ in range(160)]
    return [base[: 40 * (i % 4)] + [chance.randrange(3, 400) for _ in range(100)] for i in range(8)]


def _ask(runtime: Runtime, ids: list[int]) -> tuple[int, ...]:
    branch = runtime.new_branch()
    branch.extend(ids)
    done = branch.generate(FEW).result()
    branch.release()
    return done.token_ids


def _ask_all(loaded: LoadedModel, tell: Callable[[str], None]) -> None:
    with Runtime(loaded, num_pages=POOL) as runtime:
        for ids in _prompts(loaded):
            tell(" ".join(map(str, _ask(runtime, ids))))


def _run(
    loaded: LoadedModel, folder: Path, expected: list[tuple[int, ...]], seed: int,
    tell: Callable[[str], None],
) -> None:  # fmt: skip
    """The life of a runtime that will be killed."""
    chance, prompts = random.Random(seed), _prompts(loaded)
    try:
        while True:
            with Runtime(loaded, disk=folder, num_pages=POOL, disk_bytes=64 << 20) as runtime:
                tell("starts 1")
                for _ in range(chance.randrange(1, 20)):
                    place, before = chance.randrange(len(prompts)), runtime.stats().num_disk_tokens
                    right = _ask(runtime, prompts[place]) == expected[place]
                    tell("right 1" if right else "wrong 1")
                    tell(f"read {runtime.stats().num_disk_tokens - before}")
    except BaseException:
        traceback.print_exc()
        tell("failures 1")


def _lines_of(
    run: Callable[[Callable[[str], None]], None], killed_at: tuple[int, float] | None = None
) -> Iterator[str]:
    """What a child process tells until it ends, or is killed: so many lines and seconds later."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(read_end)
        try:
            run(lambda line: _tell(write_end, line))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as told:
        if killed_at is not None:
            yield from islice(told, killed_at[0])
            time.sleep(killed_at[1])
            os.kill(child, signal.SIGKILL)
        yield from told
    os.waitpid(child, 0)


def _tell(handle: int, line: str) -> None:
    os.write(handle, f"{line}\n".encode())


def damage(folder: Path, chance: random.Random, num_files: int) -> int:
    """Flip, cut, lengthen or exchange files of a folder; returns how many."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    num = 0
    for path in chance.sample(paths, min(num_files, len(paths))):
        with contextlib.suppress(OSError):
            damage_file(path, chance)
            num += 1
    return num


def damage_file(path: Path, chance: random.Random) -> None:
    """Flip a bit, cut the file, lengthen it, or give it another file's content."""
    data = bytearray(path.read_bytes())
    kind = chance.randrange(4)
    if kind == 0 and data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == 1 and data:
        del data[chance.randrange(len(data)) :]
    elif kind == 2:
        data += b"more"
    else:
        data = bytearray(chance.choice(sorted(path.parent.iterdir())).read_bytes())
    path.write_bytes(data)


if __name__ == "__main__":
    main()
