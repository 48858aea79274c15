"""The engine on torch's meta device: no numbers, but every crossing between host and device counts.

Kernels are replaced by functions that check where their arguments are; what is downloaded reads as
fives, which are a token, and true where truth is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from radixlang.kernels.gpu import launch, sample_tokens
from radixlang.runtime.process import device as devices

TOKEN = 5


def device_types(values: Any) -> set[str]:
    """Where the tensors of a nested value are; scalars on the host may be anywhere."""
    return {
        each.device.type
        for each in tree_flatten(values)[0]
        if isinstance(each, Tensor) and not (each.dim() == 0 and each.device.type == "cpu")
    }


class Crossings(TorchDispatchMode):
    """Counts uploads, downloads and waits by kind; an operation on two devices is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.num_launches: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, here = str(func), device_types((args, kwargs))
        if name.startswith(("aten.to.", "aten._to_copy")):  # the former in inference mode
            given = [*args, *kwargs.values()]
            target = next((x.type for x in given if isinstance(x, torch.device)), None)
            if here == {"meta"} and target == "cpu":
                self.counts["download"] += 1
                return torch.full(args[0].shape, TOKEN, dtype=args[0].dtype)
            if here == {"cpu"} and target == "meta":
                self.counts["upload"] += 1
        elif name.startswith("aten.copy_") and len(here) == 2:
            self.counts["upload" if args[0].device.type == "meta" else "download"] += 1
            return args[0]
        elif "meta" in here and name.startswith(("aten._local_scalar_dense", "aten.nonzero")):
            self.counts["wait"] += 1
            return TOKEN if "scalar" in name else torch.zeros((0, args[0].dim()), device="meta")
        else:
            assert len(here) <= 1, f"{name} mixes {here}"
        return func(*args, **kwargs)


class MetaDevice(devices.HostDevice):
    """A device without memory; a captured run gives its output again."""

    is_host = False
    attention = "triton"

    def capture(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Run once to warm up and once as a capture."""
        run()
        out = run()
        return lambda: out


@contextmanager
def meta_engine() -> Iterator[Crossings]:
    """Everything that a runtime on the meta device needs; the counts are those of its thread once
    the mode is entered there."""
    seen = Crossings()

    def kernel(name: str, result: Callable[..., Any]) -> Callable[..., Any]:
        def launched(*args: Any, **kwargs: Any) -> Any:
            assert device_types((args, kwargs)) <= {"meta"}, name
            seen.num_launches[name] += 1
            return result(*args)

        return launched

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(devices.KINDS, "meta", lambda device: MetaDevice())
        for name, result in (
            ("append", lambda *_: None),
            ("rotary_append", lambda pool, slots, q, *_: q.new_empty(q.shape)),
            ("attend_triton", lambda q, *_: (q.new_empty(q.shape), None)),
            ("advance", lambda *_: None),
        ):
            patch.setattr(launch, name, kernel(name, result))
        patch.setattr(sample_tokens, "sample", kernel("sample", _sampled))
        yield seen


def _sampled(logits: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    return ids, ids.bool()
