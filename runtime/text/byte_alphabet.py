"""The characters that represent bytes in byte-level vocabularies."""

from __future__ import annotations


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in kept}
    others = (byte for byte in range(256) if byte not in alphabet)
    alphabet |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [alphabet[byte] for byte in range(256)]
