"""Folders that are no adapter, or one of a kind that is not served: refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixlang.errors import AdapterFormatError
from radixlang.runtime.adapters.peft_folder import CONFIG, WEIGHTS, read_peft_folder

MODULE = "base_model.model.model.layers.0.self_attn.q_proj"


def write(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    about = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}
    (folder / CONFIG).write_text(json.dumps(about), encoding="utf-8")
    matrices = {
        f"{MODULE}.lora_A.weight": torch.ones(2, 8),
        f"{MODULE}.lora_B.weight": torch.ones(6, 2),
    }
    save_file(matrices if tensors is None else tensors, folder / WEIGHTS)
    return folder


def test_scaling_is_in_the_second_matrix(tmp_path: Path) -> None:
    (change,) = read_peft_folder(write(tmp_path), "x").changes.values()
    assert change.b.unique().tolist() == [2.0]
    adapter = read_peft_folder(write(tmp_path, use_rslora=True), "x")
    assert adapter.changes[0, "q"].b[0, 0].item() == pytest.approx(4 / 2**0.5)


def test_a_fingerprint_tells_adapters_apart(tmp_path: Path) -> None:
    prints = [
        read_peft_folder(write(tmp_path, **options), "x").fingerprint
        for options in ({}, {}, {"lora_alpha": 5}, {"alora_invocation_tokens": [1]})
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"bias": "all"}, "bias='all' is not served"),
        ({"use_dora": True}, "use_dora=True is not served"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4' changes the base weights"),
        ({"r": 3}, "a rank of 3"),
    ],
)
def test_other_kinds_are_refused_by_name(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(AdapterFormatError, match=message):
        read_peft_folder(write(tmp_path, **config), "x")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"q_proj": "k_norm"}, "the adapter changes 'model.layers.0.self_attn.k_norm'"),
        ({"self_attn.q_proj": "mlp.q_gate"}, "served are projections"),
        ({".lora_A.weight": ".lora_magnitude_vector"}, "lora_magnitude_vector"),
        ({"model.layers.0.self_attn.q_proj": "lm_head"}, "the adapter changes 'lm_head'"),
    ],
)
def test_other_tensors_are_refused_by_name(
    names: dict[str, str], message: str, tmp_path: Path
) -> None:
    tensors = load_file(write(tmp_path) / WEIGHTS)
    for old, new in names.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    with pytest.raises(AdapterFormatError, match=message):
        read_peft_folder(write(tmp_path, tensors), "x")


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(AdapterFormatError, match=r"has no adapter_config\.json"):
        read_peft_folder(tmp_path, "x")
    write(tmp_path)
    half = {f"{MODULE}.lora_A.weight": torch.ones(2, 8)}
    with pytest.raises(AdapterFormatError, match=r"lora_B of .* is missing"):
        read_peft_folder(write(tmp_path, half), "x")
    nan = {**half, f"{MODULE}.lora_B.weight": torch.full((6, 2), torch.nan)}
    with pytest.raises(AdapterFormatError, match="NaN"):
        read_peft_folder(write(tmp_path, nan), "x")
    (tmp_path / WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(AdapterFormatError, match="is damaged"):
        read_peft_folder(tmp_path, "x")
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(AdapterFormatError, match="safetensors only"):
        read_peft_folder(tmp_path, "x")
    (tmp_path / CONFIG).write_text("[", encoding="utf-8")
    with pytest.raises(AdapterFormatError, match="is not JSON"):
        read_peft_folder(tmp_path, "x")
