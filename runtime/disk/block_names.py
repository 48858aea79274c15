"""Names of blocks, and what of a key goes to disk.

A block's name is a hash of its tokens, of the variants that computed them, and of the name before
it, from the fingerprint of the model and the namespace on. Numbers of variants belong to one
process, so files have digests in their place; keys that are compared with files have the first
number of each digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from radixlang.runtime.adapters.variants import PLAIN, VariantTable
from radixlang.runtime.cache.node import VARIANT_SHIFT, Keys, token_ids, variants_of
from radixlang.runtime.cache.radix_tree import Namespace
from radixlang.runtime.disk.block_store import TokenBlock
from radixlang.runtime.disk.fingerprint import Fingerprint

BLOCK = 64  # tokens
_UNKNOWN = (1 << 31) - 1  # stands for a variant that this process has not


class BlockNames:
    """Names of the blocks of one model. `of` and `keys_of` are for any thread."""

    def __init__(self, fingerprint: Fingerprint, variants: VariantTable) -> None:
        about = asdict(fingerprint)
        del about["namespace"]
        self._digest = hashlib.blake2b(repr(sorted(about.items())).encode()).digest()
        self._variants = variants

    def root(self, namespace: Namespace) -> str:
        """The name before the first block."""
        salt = namespace.salt.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(self._digest + salt, digest_size=20).hexdigest()

    def of(self, namespace: Namespace, keys: Keys) -> Iterator[tuple[int, str]]:
        """(first position, name) of every whole block of keys in their stored form."""
        name = self.root(namespace)
        for start in range(0, len(keys) - BLOCK + 1, BLOCK):
            part = keys[start : start + BLOCK]
            content = name.encode() + token_ids(part).tobytes() + self.spans(part)
            name = hashlib.blake2b(content, digest_size=20).hexdigest()
            yield start, name

    def stored(self, keys: Keys) -> Keys:
        """Keys with the first number of each variant's digest."""
        numbers = variants_of(keys)
        if not numbers.any():
            return keys
        found = keys.copy()
        for number in np.unique(numbers[numbers != PLAIN]).tolist():
            first = self._variants.first_of(self._variants.digest(number))
            assert first is not None
            found[numbers == number] += (first - number) << VARIANT_SHIFT
        return found

    def spans(self, keys: Keys) -> bytes:
        """Where variants begin in a block's keys, as text: `12:DIGEST 40:`; empty if all tokens
        are the plain model's."""
        numbers = variants_of(keys)
        if not numbers.any():
            return b""
        starts = np.flatnonzero(np.diff(numbers, prepend=PLAIN))
        digests = ("" if numbers[at] == PLAIN else self._variants.digest(int(numbers[at]))
                   for at in starts)  # fmt: skip
        pairs = zip(starts.tolist(), digests, strict=True)
        return " ".join(f"{at}:{digest}" for at, digest in pairs).encode()

    def keys_of(self, block: TokenBlock) -> Keys:
        """The keys of a block in their stored form; variants unknown here match nothing."""
        keys = block.tokens.astype(np.int64)
        for each in block.spans.decode().split():
            at, _, digest = each.partition(":")
            number = self._variants.first_of(digest) if digest else PLAIN
            keys[int(at) :] = block.tokens[int(at) :]
            keys[int(at) :] |= (_UNKNOWN if number is None else number) << VARIANT_SHIFT
        return keys


def next_name(above: str) -> str:
    """The name of the file that tells which block followed a name last."""
    return f"{above}.next"


def tail_name(above: str) -> str:
    """The name of the end of a path that fills no block."""
    return f"{above}.tail"
