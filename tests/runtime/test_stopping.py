"""Stop strings across token boundaries, what streams see, and what stays on the branch."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from radixlang.runtime.text.stop_strings import TextTracker
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60


def track(
    tiny_model: Any,
    ids: list[int],
    stops: list[str],
    min_tokens: int = 0,
    patterns: Sequence[str] = (),
) -> Any:
    """Push ids until a stop; returns the tracker, what it kept and all deltas."""
    tracker = TextTracker(tiny_model.tokenizer.stream(), stops, min_tokens, patterns)
    deltas = []
    for token_id in ids:
        is_over = tracker.push(token_id)
        if is_over:
            break
        deltas.append(tracker.take_delta())
    kept, last = tracker.finish()
    return tracker, kept, [delta for delta in (*deltas, last) if delta is not None]


def test_text_without_a_stop_is_kept_whole(tiny_model: Any) -> None:
    ids = tiny_model.tokenizer.encode("the town sleeps")
    _, kept, deltas = track(tiny_model, ids, ["zzz"])
    assert kept.text == "the town sleeps" == "".join(delta.text for delta in deltas)
    assert kept.num_tokens == len(ids) == sum(len(delta.token_ids) for delta in deltas)


def test_stop_across_tokens_is_found_and_held_back(tiny_model: Any) -> None:
    tokenizer = tiny_model.tokenizer
    ids = [token for piece in ("ab", "#", "#", "#", "c") for token in tokenizer.encode(piece)]
    tracker, kept, deltas = track(tiny_model, ids, ["###"])
    assert tracker.stop == ("###", 2)
    assert kept.text == "ab"
    assert tokenizer.decode(ids[: kept.num_tokens]) == "ab"
    assert "#" not in "".join(delta.text for delta in deltas)


def test_held_back_text_comes_out_when_it_was_no_stop(tiny_model: Any) -> None:
    ids = [t for piece in ("a", "#", "#", "b") for t in tiny_model.tokenizer.encode(piece)]
    _, kept, deltas = track(tiny_model, ids, ["###"])
    assert [delta.text for delta in deltas] == ["a", "##b"]
    assert kept.text == "a##b"


def test_stop_inside_a_token_leaves_the_rest_as_text(tiny_model: Any) -> None:
    tokenizer = tiny_model.tokenizer
    ids = tokenizer.encode("the theatre")
    _, kept, deltas = track(tiny_model, ids, ["eatre"])
    assert kept.text == "the th"
    assert tokenizer.decode(ids[: kept.num_tokens]) + kept.rest == "the th"
    assert "".join(delta.text for delta in deltas) == "the th"


def test_first_and_longest_stop_wins(tiny_model: Any) -> None:
    ids = tiny_model.tokenizer.encode("one two")
    tracker, _, _ = track(tiny_model, ids, [" t", " two", "two"])
    assert tracker.stop in ((" t", 3), (" two", 3))


def test_stop_counts_from_min_tokens_on(tiny_model: Any) -> None:
    ids = [t for piece in ("a", "#", "b", "#", "c") for t in tiny_model.tokenizer.encode(piece)]
    _, kept, _ = track(tiny_model, ids, ["#"], min_tokens=3)
    assert kept.text == "a#b"


def test_min_tokens_are_kept_whatever_stops_begin_in_them(tiny_model: Any) -> None:
    ids = [t for piece in ("a", "#", "b", "#", "c") for t in tiny_model.tokenizer.encode(piece)]
    for stops, patterns in ((["#"], []), ([], ["#"])):
        kept = [track(tiny_model, ids, stops, least, patterns)[1] for least in range(5)]
        assert [each.text for each in kept] == ["a", "a", "a#b", "a#b", "a#b#c"]
        assert all(each.num_tokens >= least for least, each in enumerate(kept))


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ("##", ["x", "y", "#z", "1", "#"]),
        ("#+z[a-z]", ["x", "y", "#z1", "#"]),
        ("[0-9]+#", ["x", "y", "#", "z"]),  # ends before "1#"
        ("(?i)Q", ["x", "y", "#", "z", "1", "#"]),
        ("y[^q]*q", ["x", "y#z1#"]),
        (r"(?:x|q)(?=y#)[yq]#q", ["xy#z", "1", "#"]),
    ],
)
def test_text_in_which_no_pattern_can_begin_is_streamed(
    tiny_model: Any, pattern: str, shown: list[str]
) -> None:
    ids = [t for piece in "xy#z1#" for t in tiny_model.tokenizer.encode(piece)]
    _, kept, deltas = track(tiny_model, ids, [], patterns=[pattern])
    assert [delta.text for delta in deltas if delta.text] == shown
    assert "".join(shown) == kept.text


@pytest.mark.parametrize("every", [1, 2, 5, 99])
def test_text_that_is_asked_for_late_is_the_same(tiny_model: Any, every: int) -> None:
    ids = tiny_model.tokenizer.encode("né 日本 🙂")
    tracker = TextTracker(tiny_model.tokenizer.stream())
    deltas = []
    for number, token_id in enumerate(ids, 1):
        tracker.push(token_id)
        if number % every == 0:
            deltas.append(tracker.take_delta())
    kept, last = tracker.finish()
    told = [delta for delta in (*deltas, last) if delta is not None]
    assert kept.text == tracker.text == "".join(delta.text for delta in told) == "né 日本 🙂"
    assert [token for delta in told for token in delta.token_ids] == ids


@pytest.mark.parametrize("seed", range(20))
def test_streams_never_show_what_a_pattern_cuts(tiny_model: Any, seed: int) -> None:
    choose = random.Random(seed)
    parts = ["a", "b", "#", "\n", "é"]
    pieces = [choose.choice(parts) for _ in range(30)]
    pattern = choose.choice(
        [r"#\n+a", r"(?m:^)b#", r"\bé+#", r"(?:ab|#b)+\n", r"a(?=#b)", r"b(?!a)#"]
    )
    ids = [token for piece in pieces for token in tiny_model.tokenizer.encode(piece)]
    _, kept, deltas = track(tiny_model, ids, ["é#"], patterns=[pattern])
    text, found = "".join(pieces), []
    for end in range(1, len(text) + 1):  # what a reader of the whole text would say, token by token
        found = [m.start() for p in (pattern, "é#") if (m := re.search(p, text[:end]))]
        if found:
            break
    assert kept.text == (text[: min(found)] if found else text)
    assert "".join(delta.text for delta in deltas) == kept.text


def test_half_characters_are_never_streamed(tiny_model: Any) -> None:
    ids = tiny_model.tokenizer.encode("né 日本 🙂")
    _, kept, deltas = track(tiny_model, ids, [])
    assert kept.text == "né 日本 🙂"
    assert all("\ufffd" not in delta.text for delta in deltas)
    _, cut, _ = track(tiny_model, ids[:-1], [])
    assert cut.text.startswith("né 日本")


@pytest.mark.parametrize("seed", range(20))
def test_streams_and_kept_tokens_agree_with_the_text(tiny_model: Any, seed: int) -> None:
    choose = random.Random(seed)
    tokenizer = tiny_model.tokenizer
    text = "".join(choose.choice(["ab", "#", "é", "日", " the", "\n", "x"]) for _ in range(40))
    stops = [choose.choice(["##", "\n#", "日é", "ab#", " thex"]) for _ in range(2)]
    tracker, kept, deltas = track(tiny_model, tokenizer.encode(text), stops)
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    if places:
        assert kept.text == text[: tracker.stop[1]]
        assert all(stop not in kept.text + "" for stop in stops)
    else:
        assert kept.text == text
    assert "".join(delta.text for delta in deltas) == kept.text
    ids = [token for delta in deltas for token in delta.token_ids]
    assert ids == tracker.token_ids[: kept.num_tokens]
    assert tokenizer.decode(ids) + kept.rest == kept.text


def test_branch_goes_on_from_the_text_before_the_stop(make_runtime: Callable[..., Any]) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("Once upon")
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, heal=False)
    whole = branch.generate(params).result(TIMEOUT).text
    for cut in range(1, len(whole) - 2):
        stop = whole[cut : cut + 2]
        if "\ufffd" in stop:
            continue
        again = runtime.new_branch()
        again.extend("Once upon")
        completion = again.generate(params.override(stop=stop)).result(TIMEOUT)
        assert completion.text == whole[: whole.find(stop)]
        text = runtime.decode(again.tokens().result(TIMEOUT))
        assert text == "Once upon" + completion.text
        again.release()
    branch.release()


def test_end_token_is_neither_in_the_text_nor_on_the_branch(
    make_runtime: Callable[..., Any],
) -> None:
    runtime = make_runtime()
    branch, again = runtime.new_branch(), runtime.new_branch()
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, heal=False)
    for each in (branch, again):
        each.extend("Twice upon")
    ids = branch.generate(params).result(TIMEOUT).token_ids
    end = next(token for token in ids if ids.index(token) > 2)
    completion = again.generate(params.override(stop_token_ids=(end,))).result(TIMEOUT)
    assert (completion.finish_reason, completion.stop_reason) == ("stop", end)
    assert completion.token_ids == ids[: ids.index(end)]
    assert again.tokens().result(TIMEOUT)[-1] != end
    branch.release()
    again.release()
