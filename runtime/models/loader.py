"""`load_model`: from a name, folder or GGUF file to a model and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from radixlang.errors import ModelFormatError, ParameterError
from radixlang.kernels.native.library import Library
from radixlang.progress import doing
from radixlang.runtime.models.assemble import build_decoder
from radixlang.runtime.models.config import (
    ModelConfig,
    as_ids,
    from_transformers,
)
from radixlang.runtime.models.families import BY_NAME, CLOSE_IN_8_BITS
from radixlang.runtime.models.gguf.config import eos_ids, gguf_config
from radixlang.runtime.models.gguf.file import GgufFile
from radixlang.runtime.models.gguf.grouped import build_grouped_decoder, can_group
from radixlang.runtime.models.gguf.laid_out import LaidOutStore
from radixlang.runtime.models.gguf.tokenizer import gguf_tokenizer
from radixlang.runtime.models.gguf.weights import GgufWeights
from radixlang.runtime.models.int8.build import build_int8_decoder
from radixlang.runtime.models.int8.weight_cache import RowStore
from radixlang.runtime.models.locate import locate
from radixlang.runtime.models.model import CausalModel, LoadedModel
from radixlang.runtime.models.weights import SafetensorsFiles, StateDictWeights, WeightSource
from radixlang.runtime.process.device import device_of
from radixlang.runtime.process.malloc import large_blocks_apart, release_code
from radixlang.runtime.process.native_library import native_library
from radixlang.runtime.process.onednn import bound_primitives
from radixlang.runtime.process.openmp import leaves_no_team
from radixlang.runtime.process.served_devices import device_named
from radixlang.runtime.text.tokenizer import Tokenizer, TokenizerConfig
from radixlang.sampling_params import SamplingKeywords

if TYPE_CHECKING:
    from transformers import PretrainedConfig


LoadedParts = tuple[CausalModel, str | None]
QUANTIZATIONS = ("auto", "file", "int8", None)
FROM_BLOCKS_BYTES = 1 << 29  # files from which "auto" serves their own blocks
_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_DEPTH_KEYS = {"num_hidden_layers", "num_layers", "n_layer", "n_layers"}
_MAX_LAYERS = 10_000
_SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@leaves_no_team
def load_model(
    name_or_path: str | Path | None = None,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    quantization: str | None = "auto",
    kv_dtype: str = "auto",
    context_length: int | None = None,
) -> LoadedModel:
    """Load a causal model.

    Args:
        name_or_path: a folder of safetensors, a GGUF file, a hub name (its cache is tried before
            the network), or None for the default model, SmolLM2-135M-Instruct.
        device: "cpu", "cuda", "cuda:1" or "auto".
        dtype: "float32", "float16", "bfloat16" or "auto": float32 on a CPU, bfloat16 on a GPU.
        quantization: "file" multiplies on a CPU with a GGUF file's own 4- to 8-bit blocks, in as
            much memory as the file takes; "int8" holds the linear layers in 8 bits, which for small
            models are faster where many tokens are computed at once; None keeps the checkpoint's
            own values in `dtype`. "auto" is "file" for a quantised GGUF file of 512 MiB or more
            and "int8" for a smaller one, if its family is one where both were measured to change
            next to nothing, else None.
        kv_dtype: of keys and values in the cache. "auto" is `dtype`, but "bfloat16" with quantized
            weights; "bfloat16" and "float16" can be had with float32 on a CPU, and take half the
            memory.
        context_length: most tokens of a prompt and its generation together.

    Raises:
        ModelNotFoundError: there is no such model.
        ModelFormatError: its files are unreadable, incomplete or not supported.
        ParameterError: a device, dtype or quantization is unknown or not available here.
    """
    target = device_named(device)
    chosen = _dtype(dtype, target)
    if quantization not in QUANTIZATIONS:
        raise ParameterError(
            f"quantization must be 'auto', 'file', 'int8' or None, got {quantization!r}"
        )
    path = locate(name_or_path)
    _check_kv_dtype(kv_dtype, chosen, target)
    wanted = _Wanted(target, chosen, quantization, kv_dtype, context_length)
    read = _from_folder if path.is_dir() else _from_gguf
    bound_primitives()
    with large_blocks_apart(), device_of(target).current():
        loaded = read(path, wanted)
    release_code()
    return loaded


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The wanted device, precision and limits of a model."""

    device: torch.device
    dtype: str
    quantization: str | None
    kv_dtype: str
    context_length: int | None

    def build(
        self, config: ModelConfig, source: WeightSource, path: Path, *, coarse: bool
    ) -> LoadedParts:
        """The decoder, and the quantization it got; `coarse`: its weights have few bits already."""
        library = self.library()
        chosen = self._chosen(config, source, path, library, coarse=coarse)
        config = self.with_kv_dtype(config, halves=chosen is not None)
        if chosen == "file" and library is not None and isinstance(source, GgufWeights):
            store = LaidOutStore.of(path, library)
            return build_grouped_decoder(config, source, library, store), chosen
        if chosen == "int8":
            return build_int8_decoder(config, source, RowStore.of(path), library=library), chosen
        dtype = _DTYPES[self.dtype]
        decoder = build_decoder(config, source, dtype=dtype, device=self.device, library=library)
        return decoder, None

    def _chosen(
        self, config: ModelConfig, source: WeightSource, path: Path, library: Library | None,
        *, coarse: bool,
    ) -> str | None:  # fmt: skip
        """The quantization that a model gets; ParameterError where it cannot be served so."""
        is_possible = self.device.type == "cpu" and self.dtype == "float32"
        has_blocks = isinstance(source, GgufWeights) and can_group(config, source)
        if self.quantization == "auto":
            if not (is_possible and coarse and config.family in CLOSE_IN_8_BITS):
                return None
            is_large = path.is_file() and path.stat().st_size >= FROM_BLOCKS_BYTES
            return "file" if is_large and has_blocks and library is not None else "int8"
        if self.quantization is not None and not is_possible:
            raise ParameterError(
                f"quantization={self.quantization!r} runs on a CPU in float32, not on "
                f"{self.device.type} in {self.dtype}; pass quantization=None"
            )
        if self.quantization == "file" and not has_blocks:
            raise ParameterError(
                f"{path}: quantization='file' serves a GGUF file whose matrices are of Q4_0, Q4_1, "
                "Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K or floats; pass 'int8' or None"
            )
        if self.quantization == "file" and library is None:
            raise ParameterError(
                "quantization='file' needs the native library, and there is none: no C++ compiler "
                "was found, or RADIXLANG_NATIVE is empty. Install g++ or clang++, or pass 'int8'"
            )
        return self.quantization

    def library(self) -> Library | None:
        """The native library, for a model on a CPU where there is one."""
        return native_library() if self.device.type == "cpu" else None

    def with_kv_dtype(self, config: ModelConfig, *, halves: bool) -> ModelConfig:
        """The configuration with the cache's dtype decided; `halves`: bfloat16 by default."""
        chosen = self.kv_dtype
        if chosen == "auto":
            chosen = "bfloat16" if halves else self.dtype
        return replace(config, kv_dtype=chosen)


def _dtype(name: str, device: torch.device) -> str:
    if name == "auto":
        return "float32" if device.type == "cpu" else "bfloat16"
    if name not in _DTYPES:
        raise ParameterError(f"dtype must be auto, {', '.join(_DTYPES)}, got {name!r}")
    return name


def _check_kv_dtype(kv_dtype: str, dtype: str, device: torch.device) -> None:
    if kv_dtype not in ("auto", *_DTYPES):
        raise ParameterError(f"kv_dtype must be auto, {', '.join(_DTYPES)}, got {kv_dtype!r}")
    if kv_dtype not in ("auto", dtype) and (device.type != "cpu" or dtype != "float32"):
        raise ParameterError(
            f"kv_dtype={kv_dtype!r} does not go with dtype={dtype!r} on {device.type}: "
            "only a float32 model on a CPU takes a cache of another type; leave kv_dtype out"
        )


def _from_gguf(path: Path, wanted: _Wanted) -> LoadedModel:
    with doing(f"reading {path.name} and its tokenizer"):
        file = GgufFile(path)
        config = gguf_config(file, dtype=wanted.dtype, context_length=wanted.context_length)
        tokenizer = load_gguf_tokenizer(file)
    coarse = any(info.type_name not in ("F32", "F16", "BF16") for info in file.tensors.values())
    model, quantization = wanted.build(config, GgufWeights(file), path, coarse=coarse)
    file.release_pages()
    return LoadedModel(model, tokenizer, model.config, quantization=quantization)


def load_gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer of an open GGUF file, with its special ids and chat template."""
    get = file.metadata.get
    prefix = "tokenizer.ggml."
    bos = get(prefix + "bos_token_id")
    # Files without the flag are old SentencePiece ones, to which llama.cpp adds a BOS.
    adds_bos = bool(get(prefix + "add_bos_token", get(prefix + "model") == "llama"))
    tokens = get(prefix + "tokens") or []
    named = {"bos_token": bos, "eos_token": get(prefix + "eos_token_id"),
             "pad_token": get(prefix + "padding_token_id"),
             "unk_token": get(prefix + "unknown_token_id")}  # fmt: skip
    variables = {key: tokens[i] for key, i in named.items() if i is not None and i < len(tokens)}
    template = get("tokenizer.chat_template")
    config = TokenizerConfig(bos, adds_bos, eos_ids(file.metadata), template, variables)
    return Tokenizer(gguf_tokenizer(file), config)


Settings: TypeAlias = dict[str, Any]  # JSON of a model's folder; its fields are checked in use


def _check_depth(settings: Settings) -> None:
    """Refuse a number of layers so large that a list of them would fill the memory."""
    for key, value in settings.items():
        if isinstance(value, dict):
            _check_depth(value)
        elif key in _DEPTH_KEYS and isinstance(value, int) and value > _MAX_LAYERS:
            raise ValueError(f"{key} is {value:,}; no model has more than {_MAX_LAYERS:,} layers")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns any error of reading a configuration into one that names the file."""
    try:
        yield
    except ModelFormatError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        raise ModelFormatError(
            f"{path}: cannot be read ({type(error).__name__}: {said}). Download it again"
        ) from error


def _from_folder(folder: Path, wanted: _Wanted) -> LoadedModel:
    with doing("importing transformers"):
        from transformers import AutoConfig

    with _reading(folder / "config.json"):
        _check_depth(read_json(folder / "config.json"))
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    defaults = read_json(folder / "generation_config.json")
    with doing("reading the tokenizer"):
        tokenizer = load_folder_tokenizer(folder, as_ids(defaults.get("eos_token_id")))
    # SamplingParams checks them
    given: Any = {key: defaults[key] for key in _SAMPLING_KEYS if defaults.get(key) is not None}
    sampling: SamplingKeywords = given
    if config.get_text_config().model_type not in BY_NAME:
        return _through_transformers(folder, config, wanted, tokenizer, sampling)
    with _reading(folder / "config.json"):
        ours = from_transformers(
            config, name=folder.name, dtype=wanted.dtype, context_length=wanted.context_length
        )
    with ExitStack() as stack:
        tensors = SafetensorsFiles(folder, stack)
        weights = StateDictWeights(tensors, str(folder), post_norms=ours.post_norms)
        model, quantization = wanted.build(ours, weights, folder, coarse=False)
    return LoadedModel(model, tokenizer, model.config, sampling, quantization)


def _through_transformers(
    folder: Path,
    config: PretrainedConfig,
    wanted: _Wanted,
    tokenizer: Tokenizer,
    sampling: SamplingKeywords,
) -> LoadedModel:
    from radixlang.runtime.models.transformers_model import load_transformers_model

    if wanted.quantization == "int8":
        raise ParameterError(
            f"{folder}: architecture {config.get_text_config().model_type!r} runs through "
            "transformers' own layers, which have no int8; pass quantization=None"
        )
    dtype = _DTYPES[wanted.dtype]
    model = load_transformers_model(
        folder, config, dtype, wanted.device, wanted.context_length, wanted.library()
    )
    model.config = wanted.with_kv_dtype(model.config, halves=False)
    return LoadedModel(model, tokenizer, model.config, sampling)


def load_folder_tokenizer(folder: Path, eos_token_ids: tuple[int, ...] = ()) -> Tokenizer:
    """The tokenizer saved in a folder: tokenizer.json, or older files read by transformers.

    Raises:
        ModelFormatError: the folder has no tokenizer that can be read.
    """
    from tokenizers import Tokenizer as Backend

    path = folder / "tokenizer.json"
    try:
        backend = Backend.from_file(str(path)) if path.is_file() else _converted(folder)
    except Exception as error:
        raise ModelFormatError(
            f"{folder}: its tokenizer cannot be read ({error}). Download the folder again, or save "
            "the tokenizer into it with save_pretrained"
        ) from error
    settings = read_json(folder / "tokenizer_config.json")
    settings |= read_json(folder / "special_tokens_map.json")
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    variables = {key: text for key in names if (text := _content(settings.get(key)))}
    bos, eos = (backend.token_to_id(variables.get(key, "")) for key in ("bos_token", "eos_token"))
    probe = backend.encode("a", add_special_tokens=True).ids
    adds_bos = settings.get("add_bos_token")
    adds_bos = probe[:1] == [bos] if adds_bos is None else bool(adds_bos)
    eos_ids = tuple(dict.fromkeys((*eos_token_ids, *(() if eos is None else (eos,)))))
    template = _template(folder, settings)
    config = TokenizerConfig(bos, adds_bos and bos is not None, eos_ids, template, variables)
    return Tokenizer(backend, config)


def _converted(folder: Path) -> Any:  # a tokenizers.Tokenizer
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer


def _content(token: object) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _template(folder: Path, settings: Settings) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template


def read_json(path: Path) -> Settings:
    """A JSON object from a file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelFormatError(f"{path}: not valid JSON ({error}). Download it again") from error
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ModelFormatError(f"{path}: holds a {kind} where an object belongs. Download it again")
    return value
