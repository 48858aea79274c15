"""The disk tier: tokens and seconds of a restart, and blocks after kills at random points.

    python benchmarks/disk.py                    # 1,024 tokens, default model
    python benchmarks/disk.py --kills 1000       # a writer killed so often; every block is checked

A restart is a new Runtime on the folder of one that was closed; its first token is timed with the
prompt on disk, and with an empty folder.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from radixlang import Runtime, SamplingParams
from radixlang.runtime.disk.block_store import BlockStore

TEXT = "The old harbour of the town lies below the hill, and every morning the boats come in. "
WRITER = """
import sys, numpy as np
from pathlib import Path
from radixlang.runtime.disk.block_store import BlockStore
store = BlockStore(Path(sys.argv[1]), 400_000)
print("begun", flush=True)
number = 0
while True:
    store.write(f"b{number % 40}", np.full(9, number % 40, np.int32), bytes([number % 40]) * 20_000)
    number += 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--kills", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.kills:
            report_kills(Path(folder), args.kills)
        else:
            report_restart(Path(folder), args.model, args.tokens)


def report_restart(folder: Path, model: str | None, num_tokens: int) -> None:
    first_s, _ = first_token(folder / "disk", model, num_tokens)
    again_s, num_cached = first_token(folder / "disk", model, num_tokens)
    print(f"first token of {num_tokens} tokens: {first_s:.3f} s computed, {again_s:.3f} s with "
          f"{num_cached} of them from disk ({num_cached / num_tokens:.1%})")  # fmt: skip


def first_token(folder: Path, model: str | None, num_tokens: int) -> tuple[float, int]:
    """Seconds to the first token in a new runtime, and tokens that it found."""
    params = SamplingParams(temperature=0, max_tokens=1, heal=False)
    with Runtime(model, disk=folder) as runtime:
        ids = (runtime.encode(TEXT) * (num_tokens // 10))[:num_tokens]
        warm_up(runtime, params)
        branch = runtime.new_branch()
        branch.extend(ids)
        begun = time.perf_counter()
        usage = branch.generate(params).result().usage
        took_s = time.perf_counter() - begun
        branch.release()
    return took_s, usage.num_cached_tokens


def warm_up(runtime: Runtime, params: SamplingParams) -> None:
    branch = runtime.new_branch(namespace="warm-up")
    branch.extend("Once upon a time")
    branch.generate(params).result()
    branch.release()


def report_kills(folder: Path, num: int) -> None:
    chance, num_whole, num_wrong = random.Random(0), 0, 0
    for _ in range(num):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)],
                                  stdout=subprocess.PIPE)  # fmt: skip
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(chance.random() * 0.02)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        store = BlockStore(folder, 400_000)
        for number in range(40):
            block = store.read(f"b{number}")
            if block is not None:
                is_right = bool((block.tokens == number).all())
                is_right &= block.payload == bytes([number]) * 20_000
                num_whole += int(is_right)
                num_wrong += int(not is_right)
    print(f"{num} kills: {num_whole} blocks read whole, {num_wrong} wrong")


if __name__ == "__main__":
    main()
