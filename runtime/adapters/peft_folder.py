"""Reads a LoRA adapter from a folder as PEFT writes it: adapter_config.json and safetensors.

What changes the result and is not served is refused by its name: other kinds of adapters, biases,
DoRA, whole modules saved beside, targets outside of attention and MLP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from radixlang.errors import AdapterFormatError
from radixlang.runtime.adapters.lora import PROJECTIONS, LayerPart, LoraAdapter, LowRank

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Fields under which an adapter computes something else; served is only the value given here.
_ONLY = {
    "bias": "none", "lora_bias": False, "use_dora": False, "fan_in_fan_out": False,
    "modules_to_save": None, "trainable_token_indices": None, "layer_replication": None,
    "target_parameters": None, "use_qalora": False, "use_bdlora": None, "arrow_config": None,
    "kasa_config": None, "velora_config": None, "monteclora_config": None,
}  # fmt: skip
# Initialisations that change the base weights as well.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "eva_rotated")
_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_MODULE = re.compile(r"(?:.+\.)?layers\.(?P<layer>\d+)\.(?:self_attn|mlp)\.(?P<part>\w+)_proj")


def read_peft_folder(folder: str | Path, name: str) -> LoraAdapter:
    """The adapter of a folder.

    Raises:
        AdapterFormatError: a file is missing or damaged, or the adapter is of a kind that is not
            served; the message names the field or tensor.
    """
    folder = Path(folder)
    config = _config(folder)
    _check_kind(config, folder)
    tensors = _tensors(folder / WEIGHTS)
    sides: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        found = _TENSOR.fullmatch(key)
        if found is None:
            raise AdapterFormatError(
                f"{folder}: tensor {key!r} is no LoRA matrix of a linear layer; train the adapter "
                "on attention and MLP projections only"
            )
        sides.setdefault(found["module"], {})[found["side"]] = tensor
    if not sides:
        raise AdapterFormatError(f"{folder / WEIGHTS} holds no LoRA matrix")
    changes = dict(_change(folder, config, module, pair) for module, pair in sides.items())
    invocation = config.get("alora_invocation_tokens") or ()
    return LoraAdapter(name, str(folder), changes, tuple(int(each) for each in invocation))


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AdapterFormatError(
            f"{folder} has no {CONFIG} that can be read ({error.strerror}); give the folder that "
            "PEFT's save_pretrained wrote"
        ) from error
    except ValueError as error:
        raise AdapterFormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise AdapterFormatError(f"{path} is not a JSON object")
    return found


def _check_kind(config: Mapping[str, Any], folder: Path) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise AdapterFormatError(f"{folder}: peft_type is {kind!r}; only 'LORA' is served")
    for field, served in _ONLY.items():
        value = config.get(field) or served
        if value != served:
            raise AdapterFormatError(
                f"{folder}: {field}={value!r} is not served, only {served!r}; train the adapter "
                "without it, or merge it into the base model"
            )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise AdapterFormatError(
            f"{folder}: init_lora_weights={start!r} changes the base weights too; convert the "
            "adapter with PEFT's path_initial_model_for_weight_conversion, or merge it"
        )


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise AdapterFormatError(
            f"{path} is missing; adapters are read from safetensors only, so save it with PEFT's "
            "save_pretrained(…, safe_serialization=True)"
        )
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise AdapterFormatError(f"{path} is damaged: {error}") from error


def _change(
    folder: Path, config: Mapping[str, Any], module: str, pair: Mapping[str, torch.Tensor]
) -> tuple[LayerPart, LowRank]:
    found = _MODULE.fullmatch(module)
    if found is None or found["part"] not in PROJECTIONS:
        raise AdapterFormatError(
            f"{folder}: the adapter changes {module!r}; served are projections of attention and "
            f"MLP: {', '.join(f'{part}_proj' for part in PROJECTIONS)}"
        )
    if len(pair) != 2:
        missing = "AB".replace(next(iter(pair)), "")
        raise AdapterFormatError(f"{folder}: lora_{missing} of {module!r} is missing")
    a, b = pair["A"].float(), pair["B"].float()
    rank = int(_of_pattern(config, "rank_pattern", module, config.get("r", 8)))
    if a.dim() != 2 or b.dim() != 2 or not a.shape[0] == b.shape[1] == rank:
        raise AdapterFormatError(
            f"{folder}: {module!r} has matrices {tuple(a.shape)} and {tuple(b.shape)}, and the "
            f"configuration a rank of {rank}"
        )
    if not (a.isfinite().all() and b.isfinite().all()):
        raise AdapterFormatError(f"{folder}: {module!r} holds NaN or infinite values")
    alpha = float(_of_pattern(config, "alpha_pattern", module, config.get("lora_alpha", 8)))
    scaling = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    place = (int(found["layer"]), found["part"])
    return place, LowRank(a.contiguous(), (b * scaling).contiguous())


def _of_pattern(config: Mapping[str, Any], field: str, module: str, default: Any) -> Any:
    """The value of the first pattern that a module's name ends with, as PEFT looks it up."""
    for pattern, value in (config.get(field) or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default
