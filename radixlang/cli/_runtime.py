"""The one file of the command line that opens the runtime, at the last moment."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from radixlang.errors import ParameterError
from radixlang.progress import doing
from radixlang.sampling_params import SamplingKeywords
from radixlang.testing import FakeBackend

if TYPE_CHECKING:
    from radixlang.runtime.diagnostics.doctor import Finding as Finding  # also for doctor.py
    from radixlang.runtime.runtime import Runtime
    from radixlang.runtime.saved_prefixes.store import (
        SavedPrefix as SavedPrefix,  # also for prefix.py
    )
    from radixlang.runtime.text.tokenizer import Tokenizer

Opened: TypeAlias = "Runtime | FakeBackend"


@contextmanager
def opened_runtime(args: argparse.Namespace, **options: Any) -> Iterator[Opened]:
    """The runtime that --model, --device and --context ask for; closed at the end."""
    runtime = _fake() if args.model == "fake" else _runtime(args, options)
    try:
        yield runtime
    finally:
        runtime.close()


def _fake() -> FakeBackend:
    return FakeBackend()


def _runtime(args: argparse.Namespace, options: dict[str, Any]) -> Runtime:
    with doing("importing torch"):
        from radixlang.runtime.runtime import Runtime

    if args.context is not None:
        options["context_length"] = args.context
    if args.chat_template is not None:
        options["chat_template"] = args.chat_template
    options["cuda_graphs"] = not args.no_cuda_graphs
    options["warm_up"] = not args.no_warm_up
    return Runtime(args.model, device=args.device or "auto", **options)


def sampling_of_model(runtime: Opened) -> SamplingKeywords:
    """The sampling parameters in the model's own files; empty if there are none."""
    loaded = getattr(runtime, "loaded", None)
    found: SamplingKeywords = {} if loaded is None else loaded.generation_defaults.copy()
    return found


def load_tokenizer(name: str | None) -> Tokenizer:
    """A model's tokenizer, without loading its weights."""
    from radixlang.runtime.models.gguf.file import GgufFile
    from radixlang.runtime.models.loader import load_folder_tokenizer, load_gguf_tokenizer
    from radixlang.runtime.models.locate import locate

    path = locate(name)
    return load_folder_tokenizer(path) if path.is_dir() else load_gguf_tokenizer(GgufFile(path))


def find_model(name: str | None) -> str:
    """The path of a model, found without loading torch."""
    from radixlang.runtime.models.locate import locate

    return str(locate(name))


def diagnose(name: str | None) -> Iterator[Finding]:
    """The engine's checks of device, kernels and model, each as it is made."""
    from radixlang.runtime.diagnostics import doctor as diagnosis

    yield from diagnosis.devices()
    yield diagnosis.native()
    yield diagnosis.weights()
    yield diagnosis.kernels()
    yield from diagnosis.model(name)


def diagnose_gpu(device: str, model: str | None) -> Iterator[Finding]:
    """The checks of a GPU: attention, sampling, bandwidth, a graph, one decode of the model."""
    with doing("importing torch"):
        from radixlang.runtime.gpu_checks.report import gpu_findings

    yield from gpu_findings(device, model)


def save_token_prefix(runtime: Opened, token_ids: Sequence[int], path: Path) -> SavedPrefix:
    """Compute a prefix and save it to a file."""
    from radixlang.runtime.saved_prefixes.store import save_prefix

    return save_prefix(_engine(runtime), token_ids, path)


def load_saved_prefix(runtime: Opened, path: Path) -> None:
    """Load a prefix and pin it for as long as the runtime lives."""
    from radixlang.runtime.saved_prefixes.store import load_prefix

    load_prefix(_engine(runtime), path)


def _engine(runtime: Opened) -> Runtime:
    if isinstance(runtime, FakeBackend):
        raise ParameterError("a saved prefix belongs to a model; the fake one has none")
    return runtime


def describe_prefix(path: Path) -> SavedPrefix:
    """Tokens and size of a saved prefix."""
    from radixlang.runtime.saved_prefixes.store import describe

    return describe(path)
