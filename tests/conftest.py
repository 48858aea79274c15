"""Fixtures that tests of several areas share: a tiny random model, a terminal to look at."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shutil
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from radixlang.cache_dir import home

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "The theatre in the north of the town plays every night; the town sleeps in the morning.",
    "A long shared prefix that every branch reads, and a short question at the end of it.",
    "Numbers: 0 1 2 3 4 5 6 7 8 9 10 20 30 40 50. def main(): return [x for x in range(10)]",
    "Paris is the capital of France, Rome of Italy, and the moon of nothing at all.",
]
VOCAB_SIZE = 448
PADDED_VOCAB_SIZE = 480
# times, sizes of the pool, folders, versions; hits, which hang on who came first; bytes of keys
# and values, of which a CPU with AMX needs half
_VARIES = re.compile(
    r"\d+\.\d+ s\b|[\d,.]+ tokens a second|[\d,]+ of [\d,]+ pages free"
    r"| · \d+ hits?|/\S+/|\d+\.\d+\.\d+\S*|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    r"|KV memory +[\d.]+ \w?B|would take [\d.]+ \w?B"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _tiny_tokenizer() -> Any:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    from radixlang.runtime.text.tokenizer import Tokenizer, TokenizerConfig

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 4, trainer)
    config = TokenizerConfig(eos_token_ids=(0,), chat_template=CHATML)
    return Tokenizer(backend, config)


def _tiny_config(context_length: int) -> Any:
    from radixlang.runtime.models.config import ModelConfig, RopeConfig

    return ModelConfig(
        name="tiny",
        family="llama",
        num_layers=2,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=PADDED_VOCAB_SIZE,
        context_length=context_length,
        norm_eps=1e-5,
        windows=(None, None),
        ropes=(RopeConfig(theta=10000.0, rotary_dim=16),),
        layer_rope=(0, 0),
        attention_scale=0.25,
        tie_embeddings=False,
        eos_token_ids=(0,),
    )


class _RandomWeights:
    """A WeightSource of seeded noise, spread so that the likeliest token stands out."""

    pairs_side_by_side = True
    norm_offset_folded = True

    def __init__(self, config: Any, seed: int) -> None:
        import torch

        hidden, inner = config.hidden_size, config.intermediate_size
        query, key = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
        shapes = {"embed": (config.vocab_size, hidden), "head": (config.vocab_size, hidden)}
        for i in range(config.num_layers):
            shapes |= {
                f"layers.{i}.q": (query, hidden),
                f"layers.{i}.k": (key, hidden),
                f"layers.{i}.v": (key, hidden),
                f"layers.{i}.o": (hidden, query),
                f"layers.{i}.gate": (inner, hidden),
                f"layers.{i}.up": (inner, hidden),
                f"layers.{i}.down": (hidden, inner),
            }
        noise = torch.Generator().manual_seed(seed)
        self._tensors = {
            f"{name}.weight": torch.randn(shape, generator=noise) * (shape[1] ** -0.5)
            for name, shape in shapes.items()
        }
        self._tensors["head.weight"] *= 6.0
        self._tensors["embed.weight"] *= 8.0
        for i in range(config.num_layers):
            for norm in ("attn_norm", "mlp_norm"):
                self._tensors[f"layers.{i}.{norm}.weight"] = torch.ones(hidden)
        self._tensors["norm.weight"] = torch.ones(hidden)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str) -> Any:
        return self._tensors[name]


def make_tiny_model(context_length: int = 2048, seed: int = 0, *, native: bool = True) -> Any:
    """A LoadedModel of random weights: 2 layers, 448 byte-level tokens (padded to 480), ChatML.

    By the native library where there is one, as users have it, or in plain torch.
    """
    import torch

    from radixlang.runtime.models.assemble import build_decoder
    from radixlang.runtime.models.model import LoadedModel
    from radixlang.runtime.process.native_library import native_library

    config = _tiny_config(context_length)
    model = build_decoder(
        config,
        _RandomWeights(config, seed),
        dtype=torch.float32,
        device=torch.device("cpu"),
        library=native_library() if native else None,
    )
    return LoadedModel(model, _tiny_tokenizer(), config)


@pytest.fixture(scope="session", autouse=True)
def kept_for_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps 8-bit weights for this session alone, unless a variable says where."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        if "RADIXLANG_WEIGHTS" not in os.environ:
            patch.setenv("RADIXLANG_WEIGHTS", str(folder))
        if "RADIXLANG_NATIVE" not in os.environ:  # tests with a home of their own build it once
            patch.setenv("RADIXLANG_NATIVE", str(home() / "native"))
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def tiny_model() -> Any:
    """The tiny random model. It is shared: do not change it."""
    return make_tiny_model()


@pytest.fixture
def make_runtime(tiny_model: Any) -> Iterator[Callable[..., Any]]:
    """Makes runtimes on the tiny model (or on `model=`), audited after every step; closed and
    checked for violations at the end of the test."""
    from radixlang.runtime.runtime import Runtime

    made: list[Any] = []

    def make(model: Any = tiny_model, **options: Any) -> Any:
        runtime = Runtime(model, **{"num_pages": 4096, "seed": 0, "debug": True, **options})
        made.append(runtime)
        return runtime

    yield make
    violations = [found for runtime in made for found in runtime.audit()]
    for runtime in made:
        runtime.close()
    assert violations == []


@pytest.fixture(scope="module")
def local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Ray of this module alone on the loopback address; at its end none of it is left.

    Not of the session: its threads would be there when other tests count theirs, or fork.
    """
    import ray

    light = tmp_path_factory.mktemp("light")
    # every process of Ray imports jsonschema, whose formats build a grammar for seconds
    (light / "rfc3987_syntax.py").write_text("raise ImportError('not needed by Ray')")
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets need a short path
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # there Ray takes 127.0.0.1
        patch.setenv("PYTHONPATH", str(light), prepend=os.pathsep)
        _start_ray(folder)
        yield
        ray.shutdown()
    assert _left_of(folder) == []
    shutil.rmtree(folder, ignore_errors=True)


def _start_ray(folder: str) -> None:
    """Start Ray; its own time limits are short for a machine that is busy, so several tries."""
    import ray

    for tries_left in (3, 2, 1, 0):
        try:
            ray.init(
                "local", num_cpus=4, include_dashboard=False, object_store_memory=80 << 20,
                log_to_driver=False, logging_level="error", _temp_dir=folder,
            )  # fmt: skip
        except Exception:
            ray.shutdown()
            if not tries_left:
                raise
        else:
            return


def _left_of(folder: str) -> list[str]:
    """Command lines of processes that name a folder, once those that are ending have ended."""
    end = time.monotonic() + 60
    while (found := list(_naming(folder))) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def _naming(folder: str) -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if folder in line:
                yield line


def tiny_model_elsewhere(context_length: int = 2048) -> Callable[[], Any]:
    """A function that makes the tiny model in another process, which knows nothing of tests."""
    here = str(Path(__file__).resolve())

    def make() -> Any:
        import runpy

        return runpy.run_path(here)["make_tiny_model"](context_length)

    return make


@pytest.fixture(scope="module")
def two_workers(local_ray: None) -> Iterator[Callable[[], Any]]:
    """Two workers of the tiny model, audited after every step; started again once closed."""
    from radixlang.workers import Workers

    made: list[Any] = []

    def get() -> Any:
        if not made or made[-1].is_closed or made[-1].num_alive < 2:
            for each in made:
                each.close()
            options = {"num_pages": 4096, "seed": 0, "debug": True}
            made.append(Workers(tiny_model_elsewhere(), 2, num_cpus=0.5, **options))
        return made[-1]

    yield get
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def interrupted_at() -> Callable[[int, Callable[[], Any]], bool]:
    """Calls a function and interrupts it (Ctrl-C) where the place-th function of the code that
    locks, waits and wakes begins; tells whether it was. Python delivers interrupts there."""
    import radixlang

    here, python = Path(radixlang.__file__).parent, Path(threading.__file__).parent
    ours = (
        "reply",
        "user_code",
        "execution/threads/mailbox",
        "execution/threads/timers",
        "testing/fake_worker",
    )
    theirs = ("threading", "queue", "concurrent/futures/_base", "concurrent/futures/thread")
    waiting = {str(folder / f"{name}.py") for folder, names in ((here, ours), (python, theirs))
               for name in names}  # fmt: skip
    return partial(_interrupted_at, waiting)


def _interrupted_at(files: set[str], place: int, call: Callable[[], Any]) -> bool:
    left = place

    def trace(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        if event == "call" and frame.f_code.co_filename in files:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    sys.settrace(trace)
    try:
        call()
    except BaseException:
        if left > 0:
            raise
    finally:
        sys.settrace(None)
    return left <= 0


@pytest.fixture(scope="session")
def steady() -> Callable[[str], str]:
    """Takes out of a printed text what differs from machine to machine and from run to run."""
    return _steady


def _steady(text: str) -> str:
    """Siblings of a drawn tree stand in the order they came: its lines are compared sorted."""
    lines = [line.rstrip() for line in _VARIES.sub("…", text).splitlines()]
    if "radix tree:" in text:
        lines = sorted(line.lstrip(" │├└─") for line in lines)
    return "\n".join(lines)


@pytest.fixture
def shown_on_terminal() -> Callable[[Callable[[], Any]], str]:
    """Calls a function with stderr on a terminal; returns what was shown there."""
    return _shown_on_terminal


def _shown_on_terminal(act: Callable[[], Any]) -> str:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    with pytest.MonkeyPatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as screen:
        patch.setattr(sys, "stderr", screen)
        act()
        screen.flush()
        try:
            return os.read(ours, 1 << 20).decode("utf-8")
        except BlockingIOError:
            return ""
        finally:
            os.close(ours)
