"""`radixlang doctor --gpu`: every check of a GPU; one that fails hides no other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from radixlang.errors import ParameterError
from radixlang.progress import doing
from radixlang.runtime.diagnostics.doctor import Finding
from radixlang.runtime.gpu_checks import kernel_checks, model_checks
from radixlang.runtime.gpu_checks.kernel_checks import PRECISIONS, REPORT, Lab
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.model import LoadedModel
from radixlang.runtime.process.device import device_of
from radixlang.runtime.process.served_devices import device_named

Check = Callable[[], Finding]


def gpu_findings(name: str, model: str | None) -> Iterator[Finding]:
    """The findings of a GPU by its torch name, in the order of the checks, each as it is made.

    The first says which GPU it is; where there is none, or none that is served, it is the only one.
    """
    try:
        device = device_named(name)
    except ParameterError as error:
        yield Finding("gpu", "missing", str(error).removesuffix("; use device='cpu'"), _advice())
        return
    engine = device_of(device)
    with engine.current():
        yield described(device)
        yield from findings(
            kernel_checks.gpu_lab(device, engine), partial(load_model, model, device=name)
        )


def _advice() -> str:
    """What to do where no GPU can be used."""
    if torch.version.cuda is None and torch.version.hip is None:
        return (f"this torch ({torch.__version__}) is built for CPUs; if there is a GPU, install a "
                "build for it, see pytorch.org")  # fmt: skip
    return "check the driver with nvidia-smi or rocm-smi; the CPU is checked without --gpu"


def described(device: torch.device) -> Finding:
    """Which GPU it is, with the versions of all that compiles for it."""
    import triton

    of = torch.cuda.get_device_properties(device)
    values: dict[str, float | str] = {
        "name": of.name,
        "arch": str(of.gcnArchName) if torch.version.hip else f"{of.major}.{of.minor}",
        "multiprocessors": of.multi_processor_count,
        "total_bytes": of.total_memory,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "platform": str(torch.version.hip or torch.version.cuda),
    }
    found = (f"{of.name}, {values['arch']}, {of.multi_processor_count} multiprocessors, "
             f"{of.total_memory / 1e9:.0f} GB; torch {torch.__version__}, "
             f"triton {triton.__version__}")  # fmt: skip
    return Finding("gpu", "ok", found, values=values)


def findings(lab: Lab, load: Callable[[], LoadedModel]) -> Iterator[Finding]:
    """All checks after the first. `load` gives the model that decodes."""
    for precision in PRECISIONS:
        yield _guarded(f"attention {precision.name}",
                       partial(kernel_checks.attention, lab, precision))  # fmt: skip
    yield _guarded("sampling", partial(kernel_checks.sampling, lab))
    yield _guarded("bandwidth", partial(kernel_checks.speed, lab))
    for precision in (PRECISIONS[0], PRECISIONS[-1]):
        yield _guarded(f"attention {precision.name} speed",
                       partial(kernel_checks.attention_speed, lab, precision))  # fmt: skip
    yield from _of_model(lab, load)


def _of_model(lab: Lab, load: Callable[[], LoadedModel]) -> Iterator[Finding]:
    loaded: list[LoadedModel] = []

    def loading() -> Finding:
        loaded.append(load())
        size = loaded[0].model.num_weight_bytes
        return Finding("model", "ok", f"{loaded[0].config.name}, {size / 1e6:,.0f} MB of weights",
                       values={"weight_bytes": size})  # fmt: skip

    yield _guarded("model", loading)
    if loaded:
        yield _guarded("graph", partial(model_checks.replayed_graph, lab, loaded[0].model))
        yield _guarded("decode", partial(model_checks.decode, lab, loaded[0]))


def _guarded(name: str, check: Check) -> Finding:
    """A check's finding, with figures that JSON has; an exception is a finding too."""
    with doing(f"checking {name}"):
        try:
            found = check()
        except Exception as error:  # whatever a driver or a compiler raises belongs in the report
            return Finding(name, "failed", f"{type(error).__name__}: {error}", REPORT)
    values = {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in found.values.items()
    }
    return replace(found, values=values)
