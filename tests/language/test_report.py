"""What sharing saved: the figures against counts made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixlang import State, function, gen, savings
from radixlang.testing import FakeBackend
from radixlang.units import bytes_text


@function
def forked(s: State) -> None:
    s += "0123456789"
    for child, letter in zip(s.fork(3), "abc", strict=True):
        child += letter + gen("x", max_tokens=4)


def test_figures_equal_a_count_by_hand() -> None:
    with FakeBackend(lambda prompt, params: "done") as fake:
        forked.run(runtime=fake)
        fake.drain()
        found = savings(fake)
    assert (found.num_prompt_tokens, found.num_cached_tokens) == (33, 20)
    assert (found.num_computed_tokens, found.num_generated_tokens) == (13, 12)
    assert (found.num_tree_tokens, found.num_unshared_tokens, found.num_paths) == (25, 45, 3)
    assert found.kv_bytes_unshared / found.kv_bytes == found.memory_factor == 45 / 25
    assert found.hit_rate == 20 / 33


def test_reading_form_names_every_figure_and_draws_the_tree() -> None:
    with FakeBackend(lambda prompt, params: "done") as fake:
        forked.run(runtime=fake)
        fake.drain()
        text = str(savings(fake, tree=True))
    assert "20 cached, 13 computed (61% from the tree)" in text
    assert "3 paths each with a copy of its own would take 46.1 kB, 1.8 times as much" in text
    assert "├─ [1]  a\n   │  └─ [4]  done" in text
    assert "└─ [1]  c\n      └─ [4]  done" in text


def test_an_empty_runtime_has_saved_nothing() -> None:
    with FakeBackend() as fake:
        found = savings(fake)
    assert (found.memory_factor, found.hit_rate, found.num_paths) == (1.0, 0.0, 0)
    assert set(found.to_json()) >= {"kv_bytes", "kv_bytes_unshared", "hit_rate"}


def test_the_engine_counts_its_paths_as_the_fake_does(make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    forked.run(runtime=runtime, temperature=0, ignore_eos=True)
    found = savings(runtime, tree=True)
    assert found.num_paths == 3
    assert found.num_unshared_tokens > found.num_tree_tokens == runtime.stats().num_tree_tokens
    assert found.kv_bytes == runtime.stats().kv_bytes_used
    assert "radix tree:" in found.tree


def test_bytes_are_readable() -> None:
    assert [bytes_text(n) for n in (0, 999, 1500, 2_300_000, 5e12)] == [
        "0 B", "999 B", "1.5 kB", "2.3 MB", "5,000.0 GB"]  # fmt: skip
