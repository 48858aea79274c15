"""The fingerprint of saved keys and values: short hashes of everything that they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch

from radixlang.kernels.native.decoder import AnyWeight
from radixlang.runtime.cache.radix_tree import Namespace
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.model import CausalModel, LoadedModel
from radixlang.runtime.process.openmp import leaves_no_team
from radixlang.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that saved keys and values depend on; what has another one is not read."""

    weights: str  # hash of the weights
    tokenizer: str  # hash of the tokenizer
    rotary: str  # rotary settings, in any stable spelling
    arithmetic: str  # hash of all other settings that enter the numbers: norms, windows, scales
    kv_dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    namespace: Namespace


_SAMPLES = 4096  # values hashed of each tensor, in addition to its sum


@leaves_no_team
def fingerprint_of(loaded: LoadedModel, namespace: Namespace) -> Fingerprint:
    """The fingerprint of a model as it is loaded here, its arithmetic included.

    Weights are hashed by the sum and 4,096 evenly spread values of every tensor, those that torch
    packs in 8 bits by the scales of all their rows: two checkpoints that agree in all of these are
    taken as one. Those of the native library are hashed bit by bit.
    """
    config = loaded.config
    return Fingerprint(
        weights=_weights_hash(loaded.model),
        tokenizer=_tokenizer_hash(loaded.tokenizer),
        rotary=_short_hash(repr([asdict(rope) for rope in config.ropes]).encode()),
        arithmetic=_short_hash(repr(sorted(_arithmetic(config).items())).encode()),
        kv_dtype=config.kv_dtype,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        namespace=namespace,
    )


# Settings that no key or value depends on, or that have another field.
_APART = {"name", "context_length", "bos_token_id", "eos_token_ids", "ropes", "kv_dtype",
          "logit_soft_cap", "tie_embeddings"}  # fmt: skip


def _arithmetic(config: ModelConfig) -> dict[str, object]:
    """The settings that keys and values depend on; a new setting counts unless listed above."""
    return {name: value for name, value in asdict(config).items() if name not in _APART}


def _weights_hash(model: CausalModel) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for label, tensor in _tensors(model, "", set()):
        digest.update(f"{label} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLES)
        digest.update(flat[::step].to("cpu", torch.float64).numpy().tobytes())
        digest.update(str(_sum_of_bits(flat)).encode())
    return digest.hexdigest()


def _sum_of_bits(flat: torch.Tensor) -> int:
    """The sum of a tensor's bits as integers of 8 bytes, which takes a hundredth of the time of one
    of its values."""
    bits = flat.contiguous().view(torch.uint8)
    whole = len(bits) // 8 * 8
    if bits.data_ptr() % 8:
        bits = bits.clone()
    return int(bits[:whole].view(torch.int64).sum()) + int(bits[whole:].sum())


def _tensors(found: object, label: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every plain tensor below an object, with the attributes and types that lead to it."""
    if id(found) in seen:
        return
    seen.add(id(found))
    if isinstance(found, torch.Tensor):
        if found.layout == torch.strided:  # else packed for a CPU's kernels; its scales are hashed
            yield label, found
    elif isinstance(found, np.ndarray) and found.dtype.kind in "biuf":
        yield label, torch.from_numpy(np.array(found))
    elif isinstance(found, AnyWeight):
        halves = divmod(found.checksum, 1 << 32)
        yield f"{label}.checksum", torch.tensor(halves)
    elif isinstance(found, torch.nn.Module):
        yield from ((f"{label}.{name}", value) for name, value in found.named_parameters())
    elif isinstance(found, (list, tuple)):
        for index, item in enumerate(found):
            yield from _tensors(item, f"{label}[{index}]", seen)
    elif type(found).__module__.startswith("radixlang."):
        for name in _attributes(found):
            inner = getattr(found, name, None)
            yield from _tensors(inner, f"{label}.{name}:{type(inner).__name__}", seen)


def _attributes(found: object) -> list[str]:
    slots = [name for kind in type(found).__mro__ for name in getattr(kind, "__slots__", ())]
    return sorted({*slots, *getattr(found, "__dict__", {})})


def _tokenizer_hash(tokenizer: Tokenizer) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for token_id in range(tokenizer.vocab_size):
        digest.update(tokenizer.token_bytes(token_id) + b"\0")
    return digest.hexdigest()


def _short_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()
