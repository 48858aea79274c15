"""A GGUF as a folder of safetensors in fp32, for peers that read no GGUF. Made once a machine.

python as_folder.py model.gguf folder
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers


def main() -> None:
    """Dequantise with transformers' own reader, and save."""
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    source = {"gguf_file": file.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, dtype=torch.float32, **source
    )
    model.hf_quantizer = None  # its weights are plain fp32 by now
    del model.config.quantization_config
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(file.parent, **source).save_pretrained(folder)


if __name__ == "__main__":
    main()
