"""A `tokenizers.Tokenizer` straight from the metadata of a GGUF file.

It gives the same tokens as transformers for the same file, checked in the tests, without importing
it. One difference is on purpose: merges that would make a control token of plain text are left
out, so that data never becomes syntax.
"""

from __future__ import annotations

import logging
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from radixlang.errors import ModelFormatError
from radixlang.runtime.models.families import BY_GGUF
from radixlang.runtime.models.gguf.config import eos_ids
from radixlang.runtime.models.gguf.file import GgufFile
from radixlang.runtime.text.byte_alphabet import byte_alphabet

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SPACE = "\u2581"
_MARKER = re.compile(r"<\|[^|<>\s]+\|>|<(?:start|end)_of_turn>")  # as chat templates write them
_NAMED = re.compile(r"<\S+>")

log = logging.getLogger("radixlang.runtime")

# How llama.cpp's `tokenizer.ggml.pre` splits text before merging, as regular expressions.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    "llama3": _LLAMA3, "llama-v3": _LLAMA3, "llama-bpe": _LLAMA3, "falcon3": _LLAMA3,
    "smaug-bpe": _LLAMA3, "dbrx": _LLAMA3, "pixtral": _LLAMA3, "tekken": _TEKKEN,
    "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2,
}  # fmt: skip
# These split off every digit before the GPT-2 pattern; "default" and "gpt-2" are only the pattern.
_DIGITS_FIRST = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})
_GPT2_NAMES = frozenset({"default", "gpt-2", "gpt2", "olmo", "mpt", "phi-2", "jina-en"})


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer that the file describes, without BOS: see `Tokenizer.encode_run`.

    Raises:
        ModelFormatError: the vocabulary is missing or of a kind that is not supported.
    """
    model = file.metadata.get("tokenizer.ggml.model")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelFormatError(
            f"{file.path}: metadata has no vocabulary ('tokenizer.ggml.tokens'); it was converted "
            "without one. Convert it again with its tokenizer"
        )
    kinds = _promoted(file, tokens, _token_kinds(file, len(tokens)))
    try:
        match model:
            case "gpt2":
                tokenizer = _byte_level(file, tokens)
            case "llama":
                tokenizer = _sentence_piece(file, tokens, kinds)
            case _:
                raise ModelFormatError(
                    f"{file.path}: tokenizer {model!r} is not supported from GGUF; supported: "
                    "gpt2 (byte-level BPE) and llama (SentencePiece BPE). Load the model from a "
                    "folder of safetensors instead"
                )
    except (ValueError, KeyError, IndexError) as error:
        raise ModelFormatError(f"{file.path}: the vocabulary is corrupt: {error!r}") from error
    _add_special_tokens(tokenizer, tokens, kinds, byte_level=model == "gpt2")
    return tokenizer


def _token_kinds(file: GgufFile, num_tokens: int) -> list[int]:
    kinds = file.metadata.get("tokenizer.ggml.token_type")
    if kinds is None:
        return [_NORMAL] * num_tokens
    if len(kinds) != num_tokens:
        raise ModelFormatError(
            f"{file.path}: {len(kinds):,} token types for {num_tokens:,} tokens; the file is "
            "corrupt. Download it again"
        )
    return [int(kind) for kind in kinds.tolist()]


def _promoted(file: GgufFile, tokens: list[str], kinds: list[int]) -> list[int]:
    """The kinds, with turn markers that a converter left as ordinary text made control tokens.

    As text they would be split into tokens that the model has never seen there. A marker is a token
    with the form of one that the file names as an end, or that its chat template writes.
    """
    template = str(file.metadata.get("tokenizer.chat_template") or "")
    written = set(_MARKER.findall(template))
    ends = eos_ids(file.metadata)
    found = [
        place
        for place, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _NORMAL and (token in written or (place in ends and _NAMED.fullmatch(token)))
    ]
    if found:
        names = ", ".join(repr(tokens[place]) for place in found[:4])
        log.warning(
            "%s marks %s%s as ordinary text; taken as the control token%s that the chat template "
            "means", file.path, names, ", …" if len(found) > 4 else "", "s" * (len(found) > 1),
        )  # fmt: skip
    return [_CONTROL if place in found else kind for place, kind in enumerate(kinds)]


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    merges = file.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise ModelFormatError(
            f"{file.path}: metadata has no merges ('tokenizer.ggml.merges'); convert it again"
        )
    alphabet = byte_alphabet()
    known = set(alphabet)
    vocab = {
        token if known.issuperset(token) else "".join(alphabet[b] for b in token.encode()): index
        for index, token in enumerate(tokens)
    }
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=pairs, fuse_unk=False))
    tokenizer.pre_tokenizer = _pre_tokenizer(file)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(file: GgufFile) -> pre_tokenizers.PreTokenizer:
    name = file.metadata.get("tokenizer.ggml.pre", "default")
    if name in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[name]), behavior="isolated")
        alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, alphabet])
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in _DIGITS_FIRST:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if name in _GPT2_NAMES:
        return gpt2
    raise ModelFormatError(
        f"{file.path}: pre-tokenizer {name!r} is unknown, so text would be cut in the wrong "
        f"places; known: {', '.join(sorted({*_SPLITS, *_DIGITS_FIRST, *_GPT2_NAMES}))}. Load the "
        "model from a folder of safetensors instead"
    )


def _sentence_piece(file: GgufFile, tokens: list[str], kinds: list[int]) -> Tokenizer:
    family = BY_GGUF.get(str(file.metadata.get("general.architecture")))
    spaces = "prefix" if family is None else family.gguf_spaces
    if spaces == "literal":  # runs of spaces are stored as such, and looked up as their stand-in
        tokens = [_SPACE * len(t) if t and not t.strip(" ") else t for t in tokens]
    vocab = {token: index for index, token in enumerate(tokens)}
    barred = {t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL}
    scores = None if spaces == "literal" else file.metadata.get("tokenizer.ggml.scores")
    merges = derive_merges(vocab, barred, None if scores is None else scores.tolist())
    unknown = "<unk>" if spaces == "literal" and "<unk>" in vocab else None
    tokenizer = Tokenizer(
        BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    )
    wants_prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    _set_spaces(tokenizer, spaces if wants_prefix else "literal")
    return tokenizer


def _set_spaces(tokenizer: Tokenizer, spaces: str) -> None:
    """Set how spaces are written, and whether one is put before the text; see `gguf_spaces`."""
    replace = normalizers.Replace(" ", _SPACE)
    if spaces == "prefix_pieces":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
    elif spaces == "prefix":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=_SPACE, prepend_scheme="first", split=False
        )
    else:
        tokenizer.normalizer = replace
    parts: list[decoders.Decoder] = [
        decoders.Replace(_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    strip = [decoders.Strip(content=" ", left=1, right=0)] if spaces != "literal" else []
    tokenizer.decoder = decoders.Sequence(parts + strip)


def derive_merges(
    vocab: dict[str, int], barred: set[str], scores: list[float] | None
) -> list[tuple[str, str]]:
    """The merges that a SentencePiece vocabulary implies, best first.

    Every way to cut a token into two others is a merge. A token's merges rank by its score, or
    by its place in the vocabulary if `scores` is None; among them the longest first half wins.
    """
    merges: list[tuple[str, str]] = []
    ranks: list[float] = []
    for token, index in vocab.items():
        if token in barred:
            continue
        for cut in range(len(token) - 1, 0, -1):
            left = token[:cut]
            if left in vocab and (right := token[cut:]) in vocab:
                if left in barred or right in barred:
                    continue
                merges.append((left, right))
                if scores is not None:
                    ranks.append(-scores[index])
    if scores is None:
        return merges
    order = sorted(range(len(merges)), key=lambda i: (ranks[i], -len(merges[i][0])))
    return [merges[i] for i in order]


def _add_special_tokens(
    tokenizer: Tokenizer, tokens: list[str], kinds: list[int], *, byte_level: bool
) -> None:
    """Control tokens as special ones; user-defined ones as text that is always kept whole.

    In a byte-level vocabulary a control token with characters outside the alphabet is a known
    mislabelling of converters, and adding it would lengthen the vocabulary.
    """
    alphabet = set(byte_alphabet())
    marked = list(zip(tokens, kinds, strict=True))
    control = [
        AddedToken(token, normalized=False, special=True)
        for token, kind in marked
        if kind == _CONTROL and (not byte_level or alphabet.issuperset(token))
    ]
    known = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(control)
    user_defined = [token for token, kind in marked if kind == _USER_DEFINED]
    present = [t for t in user_defined if tokenizer.token_to_id(t) is not None]
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in present])
    if tokenizer.get_vocab_size() != known:
        raise ModelFormatError(
            f"the vocabulary marks {tokenizer.get_vocab_size() - known} control tokens that it "
            "does not hold; the file is corrupt. Download it again"
        )
