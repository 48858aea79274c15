"""Which devices are served. Every other one is refused here, with the reason.

A GPU is served where the attention kernels are known to compile without spills and with copies that
overlap: NVIDIA from Ampere on (compute capability 8.0), AMD's CDNA3. Older ones have neither
asynchronous copies nor bfloat16; RDNA and CDNA2 have other matrix units, for which no tile is
checked.
"""

from __future__ import annotations

import importlib.util
import logging

import torch

from radixlang.errors import ParameterError

LEAST_CAPABILITY = (8, 0)
AMD_SERVED = ("gfx940", "gfx941", "gfx942")

log = logging.getLogger("radixlang.runtime")


def device_named(name: str) -> torch.device:
    """The device that `Runtime(device=name)` asks for.

    "auto" takes the current GPU if it is served, else the CPU; a GPU that is passed over is logged.

    Raises:
        ParameterError: there is no such device, or it is not served.
    """
    if name == "auto":
        gpu = torch.device("cuda")
        why = refusal(gpu) if torch.cuda.is_available() else ""
        if why:
            log.warning("the GPU is not used, but the CPU: %s", why)
        return gpu if why is None else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ParameterError(
            f"device {name!r} is unknown; use cpu, cuda, cuda:N or auto"
        ) from error
    why = refusal(device)
    if why is not None:
        raise ParameterError(f"device {name!r}: {why}; use device='cpu'")
    return device


def refusal(device: torch.device) -> str | None:
    """Why a device is not served; None for one that is."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"radixlang runs on a CPU or on a GPU by CUDA or ROCm, not on {device.type}"
    if not torch.cuda.is_available():
        return "torch sees no GPU here"
    if device.index is not None and device.index >= torch.cuda.device_count():
        return f"there are {torch.cuda.device_count()} GPUs here, counted from 0"
    if importlib.util.find_spec("triton") is None:
        return "the GPU's kernels need Triton, which is there on Linux only (on Windows: in WSL 2)"
    found = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        kind = str(found.gcnArchName).partition(":")[0]
        served = ", ".join(AMD_SERVED)
        return None if kind in AMD_SERVED else f"{found.name} is a {kind}; of AMD's, {served} run"
    if (found.major, found.minor) < LEAST_CAPABILITY:
        return (
            f"{found.name} has compute capability {found.major}.{found.minor}; the kernels need "
            "8.0 (Ampere) or later"
        )
    return None
