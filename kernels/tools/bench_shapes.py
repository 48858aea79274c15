"""The trees that attention is measured on, and what a device could do at best on each."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from radixlang.kernels.plan.topology import build_topology
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.tools.forests import level_forest


@dataclass(frozen=True, slots=True)
class Shape:
    """One tree with the heads that attend over it."""

    name: str
    counts: tuple[int, ...]  # nodes a level
    lengths: tuple[int, ...]  # tokens a node
    heads: tuple[int, int] = (32, 8)  # query, key
    head_dim: int = 128
    num_queries: int = 1
    quantized: bool = False
    on_cpu: bool = False

    def batch(self) -> TreeBatch:
        """The tree, every node one run of slots."""
        return level_forest(self.counts, self.lengths, num_queries=self.num_queries)

    @property
    def flops(self) -> float:
        """Of the products with keys and with values that a row sees."""
        num_rows = self.counts[-1] * self.num_queries
        num_keys = sum(self.lengths) - (self.num_queries - 1) / 2
        return 4.0 * self.heads[0] * self.head_dim * num_rows * num_keys


GOALS = (  # the ten shapes that the goals on a GPU are set for
    Shape("1 prefix 8192, 64 x 256", (1, 64), (8192, 256)),
    Shape("2 levels 1, 1024 / 2048, 32", (1, 1024), (2048, 32)),
    Shape("3 six levels to 1024", (1, 4, 16, 64, 256, 1024), (256, 8, 256, 64, 32, 256)),
    Shape("4 levels 1, 10 / 4000, 400", (1, 10), (4000, 400), on_cpu=True),
    Shape("5 prefix 131072, 16 x 128", (1, 16), (131072, 128)),
    Shape("6 shape 5, int8 prefix", (1, 16), (131072, 128), quantized=True),
    Shape("7 no sharing, 64 x 4096", (64,), (4096,)),
    Shape("8 9/3 d64, 2048, 32 x 64", (1, 32), (2048, 64), (9, 3), 64, on_cpu=True),
    Shape("9 extend 32 x 512 over 8192", (1, 32), (8192, 512), num_queries=512),
    Shape("10 64 x 8 tokens over 4096", (1, 64), (4096, 8), num_queries=8, on_cpu=True),
)
CPU_ONLY = (
    Shape("32 x 64 over 2048", (1, 32), (2048, 64), on_cpu=True),
    Shape("no sharing, 32 x 2048, 9/3 d64", (32,), (2048,), (9, 3), 64, on_cpu=True),
    Shape("no sharing, 8 x 512, 9/3 d64", (8,), (512,), (9, 3), 64, on_cpu=True),
    Shape("one branch, 640, 9/3 d64", (1,), (640,), (9, 3), 64, on_cpu=True),
    Shape("one branch, 2048, 9/3 d64", (1,), (2048,), (9, 3), 64, on_cpu=True),
    Shape("32 x 48 over 1024, 9/3 d64", (1, 32), (1024, 48), (9, 3), 64, on_cpu=True),
    Shape("prompt of 512, 9/3 d64", (1,), (512,), (9, 3), 64, num_queries=512, on_cpu=True),
)


def without_sharing(batch: TreeBatch) -> TreeBatch:
    """The same branches, each with its whole path as a segment of its own."""
    from radixlang.kernels.reference.attention import path_of

    paths = [path_of(batch, int(leaf))[0].numpy() for leaf in batch.branch_segment]
    count = len(paths)
    index = torch.arange(count, dtype=torch.int32).numpy()
    return dataclasses.replace(
        batch,
        segment_slots=[path.astype("int32") for path in paths],
        segment_parent=index * 0 - 1,
        segment_start=index * 0,
        branch_segment=index,
    )


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Milliseconds by column for one shape, None where there is no such number."""

    shape: str
    roof_ms: float | None
    times_ms: dict[str, float | None]

    @property
    def measured(self) -> bool:
        return self.roof_ms is not None

    def times_ours(self, column: str) -> float | None:
        """How many times as long as ours another way takes."""
        mine, other = self.times_ms["ours"], self.times_ms[column]
        return None if mine is None or other is None else other / mine


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What this device was measured to do."""

    bytes_per_s: float
    flops_per_s: float


def measure_ceiling(device: torch.device, dtype: torch.dtype, timer: Timer) -> Ceiling:
    """Bandwidth of a sum over 256 MiB, and the rate of a 2048-cube matrix product."""
    block = torch.ones(64 << 20, dtype=torch.float32, device=device)
    square = torch.ones(2048, 2048, dtype=dtype, device=device)
    read_s, product_s = timer([lambda: block.sum(), lambda: square @ square])
    return Ceiling(block.numel() * 4 / read_s, 2 * 2048**3 / product_s)


def roof_s(shape: Shape, itemsize: int, ceiling: Ceiling) -> float:
    """Sum over nodes of max(bytes / bandwidth, 4 M L d Hk / half the matrix rate), seconds."""
    heads, kv_heads = shape.heads
    topology = build_topology(shape.batch())
    rows = topology.row_offset[topology.node_last] - topology.row_offset[topology.node_first]
    packed = rows * (heads // kv_heads)
    width = shape.head_dim * kv_heads
    total = 0.0
    for length, packed_rows in zip(topology.node_length.tolist(), packed.tolist(), strict=True):
        size = 1 if shape.quantized and packed_rows > heads // kv_heads else itemsize
        moved = 2 * length * width * size / ceiling.bytes_per_s
        total += max(moved, 4 * packed_rows * length * width / (0.5 * ceiling.flops_per_s))
    return total


_OTHERS = 4 << 20  # numbers of 4 bytes: more than cores keep to themselves

Timer = Callable[[Sequence[Callable[[], object]]], list[float]]


def host_timer(runs: Sequence[Callable[[], object]], *, seconds: float = 0.6) -> list[float]:
    """The least time of each run, seconds. Runs take turns, so that a busy machine slows all of
    them, up and down the list, so that each follows either neighbour; the first is not counted.

    Before each run other memory is read, as the other layers of a model do: a layer that is timed
    over and over would be found in a core's own cache, where no model finds it.
    """
    for run in runs:
        run()
    others = torch.ones(_OTHERS)
    best, end = [float("inf")] * len(runs), time.perf_counter() + seconds * len(runs)
    order = list(range(len(runs)))
    while True:
        order.reverse()
        for at in order:
            others.sum()
            begin = time.perf_counter()
            runs[at]()
            best[at] = min(best[at], time.perf_counter() - begin)
        if time.perf_counter() > end:
            return best


def device_timer(runs: Sequence[Callable[[], object]]) -> list[float]:
    """Median times on a GPU with its L2 cache flushed between runs, seconds."""
    from triton.testing import do_bench

    return [float(do_bench(run, return_mode="median")) / 1e3 for run in runs]
