"""GGUF: written by the gguf package, read by us, compared with transformers; then broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from radixlang.errors import ModelFormatError, ParameterError
from radixlang.kernels.plan.tree_batch import chain
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.radix_tree import Namespace
from radixlang.runtime.disk.fingerprint import fingerprint_of
from radixlang.runtime.models import loader
from radixlang.runtime.models.assemble import build_decoder
from radixlang.runtime.models.config import from_transformers
from radixlang.runtime.models.families import FAMILIES, ModelFamily
from radixlang.runtime.models.gguf.config import gguf_config
from radixlang.runtime.models.gguf.file import BLOCK_TYPES, GgufFile
from radixlang.runtime.models.gguf.weights import GgufWeights, dequantize
from radixlang.runtime.models.int8.build import build_int8_decoder
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.model import plan_for

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LONG = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500.0,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama-3-rope-tensor": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16}),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16},
    ),
    "phi3": ("Phi3Config", {"pad_token_id": 0}),
    "phi3-longrope": (
        "Phi3Config",
        {
            "pad_token_id": 0,
            "original_max_position_embeddings": 64,
            "rope_parameters": LONG
            | {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "original_max_position_embeddings": 64,
            },
        },
    ),
}
ARCHITECTURES = {"gemma3_text": "gemma3"}


@pytest.fixture(scope="module")
def random_model(make_random_model: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a model of a kind with these options beside the SHAPE of this file."""
    return lambda kind, options: make_random_model(kind, SHAPE | options, seed=5)


def write_gguf(
    path: Path,
    model: Any,
    *,
    skip: str = "",
    extra: dict[str, Any] | None = None,
    kinds: dict[str, str] | None = None,
) -> None:
    """Write a transformers model as llama.cpp's converter would, with a byte vocabulary.

    `kinds`: block types of matrices by parts of their names, "" of all others; floats without it.
    """
    config = model.config
    arch = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    add_rope(writer, config, head_dim)
    if arch.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    add_vocabulary(writer, config.vocab_size)
    for key, value in (extra or {}).items():
        writer.add_uint32(key, value)
    for name, tensor in converted(model, arch).items():
        if not (skip and name.startswith(skip)):
            add_tensor(writer, name, tensor, kinds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: Any, name: str, tensor: torch.Tensor, kinds: dict[str, str] | None) -> None:
    part = next((part for part in kinds or () if part in name), None)
    if part is None or kinds is None or tensor.dim() != 2 or kinds[part] == "F32":
        writer.add_tensor(name, tensor.numpy().copy())
        return
    kind = gguf.GGMLQuantizationType[kinds[part]]
    writer.add_tensor(name, gguf.quantize(tensor.numpy(), kind), raw_dtype=kind)


def add_rope(writer: Any, config: Any, head_dim: int) -> None:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for name in ("long", "short"):
            factors = np.array(rope[f"{name}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", factors)
    if rope["rope_type"] == "llama3":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        plain = rope["rope_theta"] ** -(torch.arange(0, head_dim, 2) / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy())


def add_vocabulary(writer: Any, vocab_size: int) -> None:
    from radixlang.runtime.text.byte_alphabet import byte_alphabet

    tokens = ["<eos>", "th", *byte_alphabet()[32:]][:vocab_size]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)


def converted(model: Any, arch: str) -> dict[str, torch.Tensor]:
    """Tensors under GGUF names, in llama.cpp's layout."""
    config = model.config
    names = gguf.get_tensor_name_map(
        next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), config.num_hidden_layers
    )
    out = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, kind = name.rsplit(".", 1)
        stored = tensor.clone().float()
        if arch == "llama" and (match := re.search(r"\.([qk])_proj", name)):
            heads = config.num_attention_heads if match[1] == "q" else config.num_key_value_heads
            halves = stored.view(heads, 2, -1, *stored.shape[1:])
            stored = halves.transpose(1, 2).reshape(stored.shape)
        if arch.startswith("gemma") and "norm" in name:
            stored = stored + 1
        out[f"{names.get_name(stem)}.{kind}"] = stored.contiguous()
    return out


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(
    random_model: Callable[..., Any], case: str, tmp_path: Path, forest: Callable[..., Any]
) -> None:
    theirs = random_model(*CASES[case])
    write_gguf(tmp_path / "tiny.gguf", theirs)
    loaded = load_model(tmp_path / "tiny.gguf", quantization=None)
    ids = torch.randint(0, 97, (2, 24))
    ids[:, :14] = ids[0, :14]
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits
    found = forest(loaded.config).shared_prefix_logits(loaded.model, ids, 14)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    assert loaded.eos_token_ids == (0,)


@pytest.mark.parametrize("case", CASES)
def test_own_blocks_give_nearly_the_logits_of_their_float32(
    random_model: Callable[..., Any], case: str, tmp_path: Path, forest: Callable[..., Any]
) -> None:
    """Each family, four block types and floats in one file; the native step beside plain torch."""
    kinds = {"attn_v": "Q8_0", "attn_q.": "Q4_1", "ffn_down": "Q5_0", "attn_output": "F32",
             "token_embd": "Q5_1", "": "Q4_0"}  # fmt: skip
    write_gguf(tmp_path / "tiny.gguf", random_model(*CASES[case]), kinds=kinds)
    exact = load_model(tmp_path / "tiny.gguf", quantization=None)
    loaded = load_model(tmp_path / "tiny.gguf", quantization="file", kv_dtype="float32")
    assert loaded.quantization == "file"
    ids = torch.randint(0, 97, (2, 24), generator=torch.Generator().manual_seed(1))
    ids[:, :14] = ids[0, :14]
    found, expected = (
        forest(each.config).shared_prefix_logits(each.model, ids, 14) for each in (loaded, exact)
    )
    rounding = (found - expected).norm() / expected.norm()
    plan = plan_for(loaded.model, chain((0, 24), 0), backend="reference")
    kv = KVCache(24, loaded.config.num_layers, loaded.config.num_kv_heads, loaded.config.head_dim,
                 dtype=torch.float32, device=torch.device("cpu"))  # fmt: skip
    hidden = loaded.model.forward(ids[0], plan.positions, plan, kv)
    again = loaded.model.logits(hidden)
    assert 1e-3 < rounding < 0.1
    assert (again - found[0]).norm() < 1e-3 * again.norm()


def test_own_blocks_that_are_not_served_are_refused_by_name(
    random_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, random_model("LlamaConfig", {"intermediate_size": 72}))
    with pytest.raises(ParameterError, match=r"tiny\.gguf: quantization='file' serves.*Q4_K"):
        load_model(path, quantization="file")
    write_gguf(path, random_model("LlamaConfig", {}), kinds={"": "Q4_0"})
    with pytest.raises(ParameterError, match=r"on a CPU in float32, not on cpu in bfloat16"):
        load_model(path, quantization="file", dtype="bfloat16")
    monkeypatch.setenv("RADIXLANG_NATIVE", "")
    with pytest.raises(ParameterError, match="needs the native library, and there is none"):
        load_model(path, quantization="file")


def test_a_large_file_is_served_from_its_own_blocks_by_default(
    random_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, random_model("LlamaConfig", {}), kinds={"": "Q4_0"})
    assert load_model(path).quantization == "int8"
    monkeypatch.setattr(loader, "FROM_BLOCKS_BYTES", 1000)
    assert load_model(path).quantization == "file"


def test_own_blocks_that_differ_have_another_fingerprint(
    random_model: Callable[..., Any], tmp_path: Path
) -> None:
    path, prints = tmp_path / "tiny.gguf", []
    write_gguf(path, random_model("LlamaConfig", {}), kinds={"": "Q4_0"})
    for _ in range(2):
        loaded = load_model(path, quantization="file")
        prints.append(fingerprint_of(loaded, Namespace("")).weights)
        content = bytearray(path.read_bytes())
        content[GgufFile(path).tensors["blk.3.ffn_down.weight"].offset + 20] ^= 1
        path.write_bytes(content)
    assert prints[0] != prints[1]


IN_GGUF = [family for family in FAMILIES if family.gguf]
DEPTHS = [(f, depth) for f in IN_GGUF for depth in sorted({6, *f.depths_scaled_by_width})]


@pytest.mark.parametrize(("family", "depth"), DEPTHS, ids=lambda x: getattr(x, "name", x))
def test_a_file_and_a_folder_give_one_configuration(
    random_model: Callable[..., Any], family: ModelFamily, depth: int, tmp_path: Path
) -> None:
    """Token ids and the precision of numbers are the file's own; all else is the model's."""
    kind, options = CASES[family.gguf or ""]
    scaled = {"query_pre_attn_scalar": 32 // 4} if depth in family.depths_scaled_by_width else {}
    theirs = random_model(kind, options | scaled | {"num_hidden_layers": depth})
    write_gguf(tmp_path / "tiny.gguf", theirs)
    folder = from_transformers(theirs.config, name="tiny", dtype="float32")
    found = gguf_config(GgufFile(tmp_path / "tiny.gguf"), dtype="float32")
    eps = float(np.float32(folder.norm_eps))
    assert found == replace(folder, bos_token_id=0, eos_token_ids=(0,), norm_eps=eps)


@pytest.mark.parametrize("type_id", BLOCK_TYPES, ids=[b[0] for b in BLOCK_TYPES.values()])
def test_dequantises_like_the_gguf_package(type_id: int) -> None:
    name, elements, num_bytes = BLOCK_TYPES[type_id]
    rng = np.random.default_rng(type_id)
    count = 8 * 256 // elements
    raw = rng.integers(0, 256, (count, num_bytes), dtype=np.uint8)
    if name == "F32":
        raw = rng.standard_normal((count, 1), np.float32).view(np.uint8)
    elif num_bytes > 4:  # scales are fp16 somewhere in the block: keep all halves finite
        raw.view(np.uint8)[:] &= 0xBB
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw.reshape(8, -1), gguf.GGMLQuantizationType(type_id))
        found = dequantize(raw.reshape(-1).copy(), type_id).numpy()
    np.testing.assert_array_equal(found, expected.reshape(-1).astype(np.float32))


@pytest.fixture(scope="module")
def tiny(random_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, random_model("LlamaConfig", {}))
    return path


def marks(path: Path) -> dict[str, int]:
    """Sizes that end a file inside its header, metadata, tensor table and data."""
    file = GgufFile(path)
    first = min(info.offset for info in file.tensors.values())
    return {
        "magic": 3, "header": 17, "first-key": 40, "vocabulary": first // 3,
        "table": first - 200, "before-data": first, "data": path.stat().st_size - 100,
    }  # fmt: skip


@pytest.mark.parametrize(
    "place", ["magic", "header", "first-key", "vocabulary", "table", "before-data", "data"]
)
def test_truncated_file_says_where(place: str, tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny.read_bytes()[: marks(tiny)[place]])
    with pytest.raises(ModelFormatError, match=r"broken\.gguf, byte .*Download it again"):
        load_model(broken)


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_corrupt_header_is_a_format_error_or_another_valid_file(
    data: st.DataObject, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(tiny.read_bytes())
    first = min(info.offset for info in GgufFile(tiny).tensors.values())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, first - 1))] = data.draw(st.integers(0, 255))
    broken = tmp_path_factory.mktemp("corrupt") / "broken.gguf"
    broken.write_bytes(content)
    try:
        loaded = load_model(broken)
    except ModelFormatError as error:
        assert "broken" in str(error) or "vocabulary" in str(error)  # noqa: PT017
    else:
        assert loaded.config.num_layers >= 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"PK\x03\x04" + b"\0" * 64, "this is not a GGUF file"),
        (b"GGUF\x01\0\0\0" + b"\0" * 64, "version 0x1 is not 2 or 3"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 64, "more than it can hold"),
    ],
    ids=["empty", "zip", "version-1", "absurd-counts"],
)
def test_not_a_gguf_file(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=problem):
        GgufFile(path)


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="cannot be read"):
        GgufFile(tmp_path)


def edited(path: Path, old: bytes, new: bytes, target: Path) -> Path:
    assert len(old) == len(new)
    content = path.read_bytes()
    assert content.count(old) >= 1
    target.write_bytes(content.replace(old, new))
    return target


def test_unsupported_architecture(tiny: Path, tmp_path: Path) -> None:
    path = edited(tiny, b"llama", b"falcn", tmp_path / "falcon.gguf")
    with pytest.raises(ModelFormatError, match=r"architecture 'falcn'.*supported: llama.*folder"):
        load_model(path)


def test_unsupported_block_type(tiny: Path, tmp_path: Path) -> None:
    content = bytearray(tiny.read_bytes())
    name = b"blk.0.attn_q.weight"
    at = content.index(name) + len(name) + 4 + 16  # dimension count, two dimensions
    content[at : at + 4] = (99).to_bytes(4, "little")
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"'blk.0.attn_q.weight' has block type 99.*Q4_K"):
        load_model(path)


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "blk.3.ffn_down.weight", "output_norm.weight"]
)
def test_missing_tensor_is_named(
    random_model: Callable[..., Any], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "incomplete.gguf"
    write_gguf(path, random_model("LlamaConfig", {}), skip=name)
    with pytest.raises(ModelFormatError, match=rf"incomplete\.gguf: tensor '{name}' is missing"):
        load_model(path)


def test_a_file_that_claims_more_layers_than_it_can_hold_is_refused_before_any_is_built(
    tiny: Path, tmp_path: Path
) -> None:
    content, key = tiny.read_bytes(), b"llama.block_count"
    at = content.index(key) + len(key) + 4  # behind the type of the value
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(content[:at] + (2**30).to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(ModelFormatError, match=r"broken\.gguf: it claims 1,073,741,824 layers"):
        gguf_config(GgufFile(broken), dtype="float32")


def test_layers_that_are_not_there_are_not_built(tiny: Path) -> None:
    file = GgufFile(tiny)
    config = replace(
        gguf_config(file, dtype="float32"), num_layers=2**24, layer_rope=(), windows=()
    )
    weights, exact = GgufWeights(file), {"dtype": torch.float32, "device": torch.device("cpu")}
    with pytest.raises(ModelFormatError, match=r"blk\.16777215\.attn_output\.weight"):
        build_decoder(config, weights, **exact)
    with pytest.raises(ModelFormatError, match=r"blk\.16777215\.attn_output\.weight"):
        build_int8_decoder(config, weights)


def test_tensor_of_another_shape_is_named(random_model: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    model = random_model("LlamaConfig", {})
    model.config.intermediate_size = 60
    write_gguf(path, model)
    with pytest.raises(ModelFormatError, match=r"'layers.\d.\w+.weight' has shape \(\d+, \d+\)"):
        load_model(path)


def test_missing_metadata_key_is_named(tiny: Path, tmp_path: Path) -> None:
    path = edited(tiny, b"llama.block_count", b"llama.block_cuont", tmp_path / "k.gguf")
    with pytest.raises(ModelFormatError, match=r"k\.gguf: metadata key 'llama.block_count'"):
        load_model(path)


def test_experts_are_refused(tmp_path: Path, tiny: Path) -> None:
    path = edited(tiny, b"blk.0.ffn_gate.weight", b"blk.0.ffn_gatX.weight", tmp_path / "m.gguf")
    content = path.read_bytes().replace(b"blk.5.ffn_down.weight", b"blk.0.ffn_gate_inp.wt")
    path.write_bytes(content)
    file = GgufFile(path)
    file.tensors["blk.0.ffn_gate_inp.weight"] = file.tensors["blk.0.ffn_gate_inp.wt"]
    with pytest.raises(ModelFormatError, match="mixture of experts"):
        gguf_config(file, dtype="float32")


def test_released_pages_are_read_again(tiny: Path) -> None:
    file = GgufFile(tiny)
    before = {name: file.data(name).tobytes() for name in file.tensors}
    file.release_pages()
    assert {name: file.data(name).tobytes() for name in file.tensors} == before


def test_source_knows_what_it_holds(tiny: Path) -> None:
    source = GgufWeights(GgufFile(tiny))
    assert "layers.0.gate.weight" in source
    assert "layers.0.gate_up.weight" not in source
    assert "layers.9.gate.weight" not in source
    assert source.take("norm.weight").dtype == torch.float32


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q6_K"])
def test_rows_are_looked_up_as_they_are_stored(name: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[name]
    elements, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(1).integers(0, 256, (50, 512 // elements * num_bytes), np.uint8)
    blocks &= 0xBB  # keep the fp16 scales finite
    writer = gguf.GGUFWriter(tmp_path / "table.gguf", "llama")
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=kind)
    writer.add_tensor("output.weight", np.ones((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = GgufWeights(GgufFile(tmp_path / "table.gguf"))
    embed, ids = source.lookup("embed.weight"), torch.tensor([3, 49, 3])
    assert embed is not None
    torch.testing.assert_close(embed(ids), source.take("embed.weight")[ids], equal_nan=True)
    assert embed.num_bytes == blocks.nbytes
    assert source.lookup("head.weight") is None
    assert source.lookup("norm.weight") is None


# ---- markers of turns that a converter left as ordinary text

MARKERS = ["<|im_start|>", "<|im_end|>"]


def with_markers(path: Path, kind: int) -> Any:
    """The tokenizer of a file whose chat markers have a type of token."""
    from radixlang.runtime.models.loader import load_gguf_tokenizer
    from radixlang.runtime.text.byte_alphabet import byte_alphabet

    tokens = ["<eos>", "<b>", *byte_alphabet(), *MARKERS, "th"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 1, *[1] * 256, kind, kind, 1])
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(0)
    writer.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}<b>{{ m.content }}<|im_end|>{% endfor %}"
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return load_gguf_tokenizer(GgufFile(path))


def test_chat_markers_of_type_normal_are_promoted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from radixlang.protocol import Markup

    right = with_markers(tmp_path / "right.gguf", 3)
    assert "ordinary text" not in caplog.text
    wrong = with_markers(tmp_path / "wrong.gguf", 1)
    assert "'<|im_start|>', '<|im_end|>' as ordinary text" in caplog.text
    text = "<|im_start|>user<b>hi<|im_end|>"
    ids = [each.encode_run([Markup(text)], at_start=True) for each in (right, wrong)]
    assert ids[0] == ids[1]
    assert ids[1][0] == 258
    assert len(ids[1]) == len("user<b>hi") + 2
    data = wrong.encode_run([text], at_start=True)
    assert 258 not in data
    assert wrong.decode(data) == text
