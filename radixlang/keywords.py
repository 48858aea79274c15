"""The keyword arguments of public functions as types, for editors and type checkers.

`SamplingParams`, `gen`, `Program.run` and `Program.run_batch` document their meaning and defaults.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, TypedDict

from radixlang.sampling_params import SamplingKeywords

if TYPE_CHECKING:
    import re

    from radixlang.constraints.specs import Grammar, Regex, Tools
    from radixlang.protocol import AdapterUse, Backend


class ConstraintKeywords(TypedDict, total=False):
    """One constraint on a generated text, `tools` excepted, and its options."""

    regex: str | re.Pattern[str] | Regex
    json_schema: object  # a dict, JSON text, a bool, or any Python type
    grammar: str | Grammar
    choices: object  # strings, a Choices, an Enum, or a Literal, which no type describes
    constraint: object  # a Constraint, a regex, a dict or a type: a JSON schema
    finish: Literal["error", "close"]
    strict: bool
    whitespace: int


class AdapterKeywords(TypedDict, total=False):
    """An adapter of the runtime, and how it is used."""

    adapter: str | AdapterUse | None
    scale: float | None
    layers: Iterable[int] | None


class ThinkKeywords(TypedDict, total=False):
    """A thought before a generation."""

    think: int | None
    keep_thinking: bool
    think_tags: tuple[str, str] | None


class TextKeywords(
    ConstraintKeywords, AdapterKeywords, ThinkKeywords, SamplingKeywords, total=False
):
    """Options of a gen whose value is text."""

    n: int


class GenKeywords(TextKeywords, total=False):
    """Options of any gen."""

    tools: Iterable[object] | Tools  # functions, or dicts as chat templates have them


class RunKeywords(SamplingKeywords, total=False):
    """Options of one run; the sampling parameters are defaults of its generations."""

    runtime: Backend | None
    timeout: float | None
    max_total_tokens: int | None
    namespace: str
    adapter: str | AdapterUse | None
    check: bool


class BatchKeywords(RunKeywords, total=False):
    """Options of a batch, and of each of its runs."""

    max_workers: int
    max_in_flight: int
    save_to: str | os.PathLike[str] | None


BATCH_NAMES = ("max_workers", "max_in_flight", "save_to", "progress")
RUN_NAMES = ("runtime", "timeout", "seed", "max_total_tokens", "namespace", "adapter", "check")
ADAPTER_NAMES = ("adapter", "scale", "layers")
THINK_NAMES = ("think", "keep_thinking", "think_tags")
CONSTRAINT_NAMES = ("regex", "json_schema", "grammar", "choices", "tools", "constraint")
CONSTRAINT_OPTIONS = ("finish", "strict", "whitespace")
