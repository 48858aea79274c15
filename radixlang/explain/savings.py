"""What sharing saved: tokens and memory of the requests of a runtime since its last reset.

    print(radixlang.savings(runtime))                  # figures
    print(radixlang.savings(runtime, tree=True))       # and the radix tree above them

Every figure comes from the runtime's own counters and its tree. Nothing here loads a model, and
nothing is estimated: the unshared memory is the sum of the lengths of all paths of the tree, which
is what the same paths take if each has its own copy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Protocol

from radixlang.notebook_cells import cell, figures_html
from radixlang.units import bytes_text


@dataclass(frozen=True, slots=True)
class Savings:
    """Figures since the runtime's last `reset_stats()`; `str()` lays them out for reading.

    Args:
        num_prompt_tokens: tokens of all prompts, each prompt counted whole.
        num_cached_tokens: those found in the tree.
        num_computed_tokens: those computed; cached + computed = prompt.
        num_generated_tokens: tokens generated, forced ones included.
        num_forced_tokens: tokens that a constraint left no choice about.
        num_tree_tokens: tokens that the tree holds, each stored once.
        num_unshared_tokens: the same paths, if each had its own copy.
        num_paths: paths from the root to a leaf of the tree.
        kv_bytes: bytes of the tree's keys and values.
        kv_bytes_unshared: bytes of the same paths without sharing.
        tree: a drawing of the tree, "" if none was asked for.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_generated_tokens: int
    num_forced_tokens: int
    num_tree_tokens: int
    num_unshared_tokens: int
    num_paths: int
    kv_bytes: int
    kv_bytes_unshared: int
    tree: str = ""

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens found in the tree, 0 to 1."""
        return self.num_cached_tokens / max(1, self.num_prompt_tokens)

    @property
    def memory_factor(self) -> float:
        """The memory of the same paths without sharing, divided by that of the tree."""
        return self.kv_bytes_unshared / self.kv_bytes if self.kv_bytes else 1.0

    def to_json(self) -> dict[str, object]:
        """All figures by name, as JSON data."""
        figures = {**asdict(self), "hit_rate": self.hit_rate, "memory_factor": self.memory_factor}
        return {name: value for name, value in figures.items() if name != "tree"}

    def __repr__(self) -> str:
        return (
            f"<savings: {self.num_cached_tokens:,} of {self.num_prompt_tokens:,} prompt tokens "
            f"cached ({self.hit_rate:.0%}), {self.num_generated_tokens:,} generated, "
            f"{bytes_text(self.kv_bytes)} of keys and values, {self.memory_factor:.1f} times as "
            "much unshared>"
        )

    def _repr_html_(self) -> str:
        return _cell(self)

    def __str__(self) -> str:
        forced = self.num_forced_tokens
        lines = [
            f"prompt tokens    {self.num_prompt_tokens:>9,}   {self.num_cached_tokens:,} cached, "
            f"{self.num_computed_tokens:,} computed ({self.hit_rate:.0%} from the tree)",
            f"generated tokens {self.num_generated_tokens:>9,}"
            + (f"   {forced:,} of them forced by a constraint" if forced else ""),
            f"KV memory        {bytes_text(self.kv_bytes):>9}   "
            f"{_paths(self.num_paths)} of its own would take "
            f"{bytes_text(self.kv_bytes_unshared)}, {self.memory_factor:.1f} times as much",
        ]
        return "\n".join([*([self.tree, ""] if self.tree else []), *lines])


class CountedTokens(Protocol):
    """What `stats()` has, at least."""

    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def num_generated_tokens(self) -> int: ...
    @property
    def kv_bytes_used(self) -> int: ...


class Counting(Protocol):
    """A runtime that counts and draws its tree."""

    def stats(self) -> CountedTokens: ...
    def path_tokens(self) -> tuple[int, int, int]: ...
    def tree_text(self, *, max_text: int = ...) -> str: ...


def savings(
    runtime: Counting, *, tree: bool = False, max_lines: int = 40, max_text: int = 40
) -> Savings:
    """What sharing saved on this runtime since its last `reset_stats()`.

    Args:
        runtime: a Runtime, or the scripted fake of `radixlang.testing`.
        tree: draw the radix tree as well.
        max_lines: most lines of that drawing; further lines are counted.
        max_text: characters of text shown for a node.

    Call `runtime.flush_cache()` and `runtime.reset_stats()` first to see one program alone.
    """
    stats = runtime.stats()
    num_held, num_unshared, num_paths = runtime.path_tokens()
    per_token = stats.kv_bytes_used / num_held if num_held else 0.0
    return Savings(
        num_prompt_tokens=stats.num_prompt_tokens,
        num_cached_tokens=stats.num_cached_tokens,
        num_computed_tokens=stats.num_computed_tokens,
        num_generated_tokens=stats.num_generated_tokens,
        num_forced_tokens=getattr(stats, "num_forced_tokens", 0),
        num_tree_tokens=num_held,
        num_unshared_tokens=num_unshared,
        num_paths=num_paths,
        kv_bytes=stats.kv_bytes_used,
        kv_bytes_unshared=round(num_unshared * per_token),
        tree=_cut(runtime.tree_text(max_text=max_text), max_lines) if tree else "",
    )


def _cut(drawing: str, max_lines: int) -> str:
    lines = drawing.splitlines()
    more = [f"… {len(lines) - max_lines:,} more lines"] if len(lines) > max_lines else []
    return "\n".join(lines[:max_lines] + more)


def _paths(number: int) -> str:
    return "one path" if number == 1 else f"{number:,} paths each with a copy"


def _cell(found: Savings) -> str:
    """The figures as a notebook cell, with the tree if it was asked for."""
    figures: list[tuple[float | str, str]] = [
        (found.num_prompt_tokens, "prompt tokens"),
        (found.num_cached_tokens, f"cached ({found.hit_rate:.0%})"),
        (found.num_computed_tokens, "computed"),
        (found.num_generated_tokens, "generated"),
        (found.num_forced_tokens, "of them forced"),
        (bytes_text(found.kv_bytes), "of keys and values"),
        (bytes_text(found.kv_bytes_unshared), f"unshared, {found.memory_factor:.1f} times as much"),
    ]
    tree = f'<div class="words">{escape(found.tree)}</div>' if found.tree else ""
    return cell(f"{figures_html(figures)}{tree}")
