"""Contrasts: one generation from the logits of two branches.

The expected values are those of a plain loop over transformers, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import radixlang
from radixlang import LogitsContext, contrast, gen
from radixlang.errors import (
    CancelledError,
    DeadlineError,
    LogitsError,
    NumericalError,
    ParameterError,
    PoolExhaustedError,
    ProgramError,
    StateClosedError,
)
from radixlang.protocol import Contrast
from radixlang.sampling_params import SamplingParams
from radixlang.testing import FakeBackend

TIMEOUT = 60
VOCAB = 256
MakeRuntime = Callable[..., Any]
Prompts = list[tuple[list[int], list[int]]]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


@pytest.fixture
def runtime(theirs: Any, make_runtime: MakeRuntime) -> Any:
    return make_runtime(theirs.folder, dtype="float32", quantization=None)


@pytest.fixture(scope="module")
def pairs() -> Prompts:
    """A hundred pairs of prompts; half of the pairs begin alike."""
    draw = np.random.default_rng(5)

    def some(low: int, high: int) -> list[int]:
        return draw.integers(1, VOCAB, int(draw.integers(low, high))).tolist()  # type: ignore[no-any-return]

    found = []
    for index in range(100):
        shared = some(3, 30) if index % 2 else []
        found.append((shared + some(1, 20), shared + some(1, 40)))
    return found


def their_contrast(
    model: Any, pair: tuple[list[int], list[int]], num: int, weight: float, least: float = 0.0
) -> tuple[int, ...]:
    """Greedy tokens of a plain loop."""
    a, b = list(pair[0]), list(pair[1])
    for _ in range(num):
        with torch.no_grad():
            log_a, log_b = (model(torch.tensor([ids])).logits[0, -1].log_softmax(0)
                            for ids in (a, b))  # fmt: skip
        mixed = log_b + weight * (log_a - log_b)
        if least:
            mixed[log_a < log_a.max() + math.log(least)] = -math.inf
        best = int(mixed.argmax())
        a.append(best)
        b.append(best)
    return tuple(a[len(pair[0]) :])


def two(runtime: Any, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    branches = runtime.new_branch(), runtime.new_branch()
    for branch, prompt in zip(branches, pair, strict=True):
        branch.extend(prompt)
    return branches


@pytest.mark.parametrize(
    ("weight", "least", "num"),
    [(1.5, 0.0, 100), (3.0, 0.0, 10), (0.5, 0.0, 10), (-1.0, 0.0, 10), (2.0, 0.1, 20)],
)
def test_contrasts_of_100_pairs_are_those_of_transformers(
    make_runtime: MakeRuntime, theirs: Any, pairs: Prompts, weight: float, least: float, num: int
) -> None:
    runtime = make_runtime(theirs.folder, dtype="float32", quantization=None, debug=False)
    pairs = pairs[:num]
    branches = [two(runtime, pair) for pair in pairs]
    how, params = Contrast(weight, least), SamplingParams(**GREEDY)
    generations = [a.contrast(b, params, how) for a, b in branches]
    for pair, (a, b), generation in zip(pairs, branches, generations, strict=True):
        ids = generation.result(TIMEOUT).token_ids
        assert ids == their_contrast(theirs, pair, 6, weight, least)
        assert a.tokens().result(TIMEOUT) == (*pair[0], *ids)
        assert b.tokens().result(TIMEOUT) == (*pair[1], *ids)
    for branch in sum(branches, ()):
        branch.release()


@pytest.mark.parametrize("weight", [0, 1])
@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_weights_of_one_and_zero_are_one_branch_alone(
    runtime: Any, weight: float, heat: float
) -> None:
    params = SamplingParams(temperature=heat, seed=7, max_tokens=12, heal=False)
    a, b = two(runtime, ("The theatre in the north", "Paris is the capital"))
    alone = (b, a)[weight].fork(1)[0]
    expected = alone.generate(params).result(TIMEOUT).token_ids
    assert a.contrast(b, params, Contrast(weight)).result(TIMEOUT).token_ids == expected
    for branch in (a, b, alone):
        branch.release()


def test_both_branches_go_on_from_their_own_cache(runtime: Any) -> None:
    a, b = two(runtime, ("The theatre in the north", "Paris is the capital of France"))
    first = a.contrast(b, SamplingParams(**GREEDY), Contrast(1.5)).result(TIMEOUT)
    assert first.usage.num_prompt_tokens == 24 + 30
    runtime.reset_stats()
    follow = [branch.generate(SamplingParams(**GREEDY, heal=False)) for branch in (a, b)]
    for generation in follow:
        usage = generation.result(TIMEOUT).usage
        assert usage.num_computed_tokens == 1  # the last token, which no logits were needed of
    a.release()
    b.release()


def test_log_probabilities_are_those_of_the_first_branch(runtime: Any) -> None:
    a, b = two(runtime, ("The theatre in the north", "Paris is the capital"))
    scored = a.fork(1)[0]
    params = SamplingParams(**GREEDY, logprobs=True)
    done = a.contrast(b, params, Contrast(2)).result(TIMEOUT)
    (expected,) = scored.score([done.token_ids]).result(TIMEOUT)
    found = [each.logprob for each in done.logprobs]
    assert found == pytest.approx(list(expected.logprobs), abs=1e-5)
    for branch in (a, b, scored):
        branch.release()


# ---- what comes after the formula


@radixlang.function
def asks(s: radixlang.State, weight: float = 1.5, options: Any = None) -> None:
    s += "The theatre"
    a, b = s.fork(2)
    a += " in the north"
    b += " of a large town"
    contrast(a, b, weight, "x", **{"max_tokens": 6, "temperature": 0, **(options or {})})
    s["x"], s["both"] = a["x"], (a.text(), b.text())


def ask(runtime: Any, weight: float = 1.5, **options: Any) -> Any:
    return asks.run(weight=weight, options=options, runtime=runtime)


def test_constraints_hold_and_force_on_both_branches(runtime: Any) -> None:
    state = ask(runtime, regex="[ab]{3}cdef[ab]", max_tokens=12, logprobs=True)
    x = state["x"]
    assert (len(x), x[3:7]) == (8, "cdef")
    assert set(x[:3] + x[7]) <= {"a", "b"}
    assert state["both"] == (f"The theatre in the north{x}", f"The theatre of a large town{x}")
    assert ask(runtime, 9, plausibility=1.0, regex="[xyz]{4}")["x"]


def test_the_plausibility_is_of_what_the_constraint_leaves(runtime: Any) -> None:
    """With all of the likeliest token's share demanded, a alone chooses among what is allowed."""
    alone = ask(runtime, 1, regex="[xyz]{4}")["x"]
    assert ask(runtime, -5, plausibility=1.0, regex="[xyz]{4}")["x"] == alone


def test_biases_functions_and_penalties_come_after_the_formula(runtime: Any) -> None:
    seen: list[torch.Tensor] = []

    def look(context: LogitsContext) -> None:
        seen.append(context.logits.clone())
        context.logits[ord("z")] += 1000.0

    assert ask(runtime, logits=look)["x"] == "z" * 6
    assert len(seen) == 6
    assert ask(runtime, logit_bias={"q": 1000.0})["x"] == "q" * 6
    plain = ask(runtime, max_tokens=20)["x"]
    assert ask(runtime, max_tokens=20, frequency_penalty=2.0)["x"] != plain


def test_a_ban_of_every_token_is_told(runtime: Any) -> None:
    with pytest.raises(ProgramError) as raised:
        ask(runtime, logit_bias=dict.fromkeys(range(VOCAB), -math.inf))
    assert isinstance(raised.value.__cause__, LogitsError)


def test_stop_strings_end_both_branches_before_the_match(runtime: Any) -> None:
    text = ask(runtime, max_tokens=30)["x"]
    stop = text[3:5]
    state = ask(runtime, max_tokens=30, stop=stop)
    assert state["x"] == text[: text.index(stop)]
    assert [each.endswith(state["x"]) for each in state["both"]] == [True, True]


# ---- batches, seeds, files


def test_batches_have_the_texts_of_single_runs(runtime: Any) -> None:
    rows: list[dict[str, Any]] = [
        {"weight": weight, "options": {"temperature": heat}}
        for weight in (0.5, 1.5, 3)
        for heat in (0, 0.8, 1)
    ]
    results = asks.run_batch(rows, runtime=runtime, seed=3)
    assert [each.error for each in results] == [None] * len(rows)
    for row, result in zip(rows, results, strict=True):
        alone = asks.run(**row, seed=result.state.seed, runtime=runtime)
        assert alone["x"] == result["x"]


def test_replays_have_both_prompts(runtime: Any, tmp_path: Path) -> None:
    @radixlang.function
    def plain(s: radixlang.State, other: str = "of a large town") -> None:
        a, b = s.fork(2)
        a += "The theatre in the north"
        b += other
        contrast(a, b, 1.5, "x", max_tokens=5)

    path = tmp_path / "run.json"
    radixlang.save_replay(plain.run(runtime=runtime), path)
    assert radixlang.verify_replay(plain, path, runtime=runtime).difference is None
    changed = radixlang.verify_replay(plain, path, runtime=runtime, other="of no town")
    assert changed.difference is not None
    assert changed.difference.what == "prompt"


def test_a_compiled_program_gives_the_same(runtime: Any) -> None:
    @radixlang.function
    def plain(s: radixlang.State) -> None:
        a, b = s.fork(2)
        a += "The theatre in the north"
        b += "The theatre of a large town"
        contrast(a, b, 1.5, "x", max_tokens=5)
        s.join(radixlang.ForkGroup(s, [a, b]), "x")

    live = plain.run(runtime=runtime, seed=4)["x"]
    assert live[0] == live[1]
    assert plain.compile().run(runtime=runtime, seed=4)["x"] == live


def test_an_explanation_counts_both_prompts(runtime: Any) -> None:
    graph = asks.trace()
    assert "gen x (against block 2, weight=1.5" in graph.show()
    assert "takes part in x of block 1" in graph.show()
    explained = graph.explain(runtime)
    assert explained.num_prompt_tokens == len("The theatre in the north") + len(
        "The theatre of a large town"
    )
    assert explained.num_generated_tokens == 6


def test_a_trace_shows_the_text_on_both_branches(runtime: Any) -> None:
    state = ask(runtime, regex="[ab]{3}")
    shown = state.show(color=False)
    assert shown.count(state["x"]) == 2
    assert "contrasted as x (branch 0)" in shown


def test_rollouts_have_the_prompt_of_the_first_branch(runtime: Any) -> None:
    (rollout,) = ask(runtime, logprobs=True).tree().rollouts
    assert runtime.decode(rollout.prompt_ids) == "The theatre in the north"
    (again,) = runtime.score([rollout])
    assert list(again) == pytest.approx(list(rollout.logprobs), abs=1e-5)


# ---- memory, order and company


LONG = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def all_contrasts(runtime: Any, num: int = 5, length: int = 30) -> list[tuple[int, ...]]:
    """The tokens of several contrasts at once, whose branches are then released."""
    draw = np.random.default_rng(2)
    made = [two(runtime, tuple(draw.integers(1, VOCAB, (2, length)).tolist())) for _ in range(num)]
    generations = [a.contrast(b, LONG, Contrast(1.5)) for a, b in made]
    found = [generation.result(TIMEOUT).token_ids for generation in generations]
    for branch in sum(made, ()):
        branch.release()
    runtime.flush_cache()
    stats = runtime.stats()
    assert stats.num_pages_free == stats.num_pages_total
    assert stats.num_branches == 0
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"num_pages": 240},  # two of five pairs at most
        {"num_pages": 112},  # one
        {"max_running": 2},
        {"max_running": 1},
        {"max_batch_tokens": 7},
        {"page_size": 16, "num_pages": 15},
    ],
    ids=str,
)
def test_narrow_memory_and_steps_change_no_token(
    theirs: Any, make_runtime: MakeRuntime, options: dict[str, int]
) -> None:
    kind: dict[str, Any] = {"dtype": "float32", "quantization": None}
    wide = all_contrasts(make_runtime(theirs.folder, **kind))
    narrow = make_runtime(theirs.folder, **kind, **options)
    assert all_contrasts(narrow) == wide


def test_preempted_branches_resume(theirs: Any, make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(theirs.folder, dtype="float32", quantization=None, num_pages=240)
    all_contrasts(runtime, num=6)
    assert runtime.stats().num_retracted > 0


def test_a_pair_larger_than_the_pool_fails_alone(theirs: Any, make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(theirs.folder, dtype="float32", quantization=None, num_pages=100)
    a, b = two(runtime, ("x" * 45, "y" * 45))
    generation = a.contrast(b, LONG, Contrast(1.5))
    assert isinstance(generation.exception(TIMEOUT), PoolExhaustedError)
    assert isinstance(b.tokens().exception(TIMEOUT), PoolExhaustedError)
    a.release()
    b.release()
    assert len(all_contrasts(runtime, num=3, length=8)) == 3


def test_two_contrasts_of_one_pair_keep_their_order(runtime: Any) -> None:
    a, b = two(runtime, ("The theatre in the north", "Paris is the capital"))
    params = SamplingParams(**GREEDY)
    first = a.contrast(b, params, Contrast(2))
    second = b.contrast(a, params, Contrast(2))
    mine = a.generate(params).result(TIMEOUT)
    ids = (*first.result(TIMEOUT).token_ids, *second.result(TIMEOUT).token_ids, *mine.token_ids)
    assert a.tokens().result(TIMEOUT)[24:] == ids
    assert b.tokens().result(TIMEOUT)[20:] == ids[:12]
    a.release()
    b.release()


def test_branches_that_are_not_born_and_busy_ones_are_waited_for(runtime: Any) -> None:
    root = runtime.new_branch()
    root.extend("The theatre")
    busy = root.generate(SamplingParams(**GREEDY))
    a, b = root.fork(2)
    b.extend(" of a large town")
    earlier = b.generate(SamplingParams(**GREEDY))
    done = a.contrast(b, SamplingParams(**GREEDY), Contrast(1.5)).result(TIMEOUT)
    assert len(done.token_ids) == 6
    text = (*busy.result(TIMEOUT).token_ids, *done.token_ids)
    assert a.tokens().result(TIMEOUT)[11:] == text
    assert b.tokens().result(TIMEOUT)[-12:] == (
        *earlier.result(TIMEOUT).token_ids,
        *done.token_ids,
    )
    for branch in (root, a, b):
        branch.release()


def test_the_longer_prompt_bounds_the_generation(theirs: Any, make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(theirs.folder, dtype="float32", quantization=None, context_length=64)
    a, b = two(runtime, ("The theatre", "y" * 60))
    done = a.contrast(b, LONG, Contrast(1.5)).result(TIMEOUT)
    assert (len(done.token_ids), done.finish_reason) == (4, "length")
    a.release()
    b.release()


# ---- ends and errors


def settled(runtime: Any) -> None:
    """Check that nothing is held."""
    runtime.flush_cache()
    stats = runtime.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_branches) == (0, 0, 0)
    assert stats.num_pages_free == stats.num_pages_total


ENDLESS = SamplingParams(temperature=0, max_tokens=450, ignore_eos=True)


@pytest.mark.parametrize("whose", ["first", "second", "generation"])
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_cancelled_branch_fails_both(runtime: Any, whose: str, when: str) -> None:
    a, b = two(runtime, ("The theatre", "Paris is the capital"))
    generation = a.contrast(b, ENDLESS, Contrast(1.5))
    after = a.generate(SamplingParams(**GREEDY)), b.generate(SamplingParams(**GREEDY))
    if when == "during":
        next(iter(generation))
    {"first": a, "second": b, "generation": generation}[whose].cancel()
    for future in (generation, *after):
        assert isinstance(future.exception(TIMEOUT), CancelledError)
    a.release()
    b.release()
    settled(runtime)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_earlier_error_of_one_branch_fails_the_other_in_its_turn(
    runtime: Any, failing: int
) -> None:
    branches = two(runtime, ("The theatre", "Paris"))
    bad = SamplingParams(logit_bias=dict.fromkeys(range(VOCAB), -math.inf))
    branches[failing].generate(bad)
    earlier = branches[1 - failing].generate(SamplingParams(**GREEDY))
    generation = branches[0].contrast(branches[1], SamplingParams(**GREEDY), Contrast(1.5))
    later = branches[1 - failing].generate(SamplingParams(**GREEDY))
    assert len(earlier.result(TIMEOUT).token_ids) == 6
    assert isinstance(generation.exception(TIMEOUT), LogitsError)
    assert isinstance(later.exception(TIMEOUT), LogitsError)
    for branch in branches:
        branch.release()
    settled(runtime)


def test_a_released_branch_and_an_empty_prompt_are_told(runtime: Any) -> None:
    a, b = two(runtime, ("The theatre", "Paris"))
    b.release()
    error = a.contrast(b, SamplingParams(), Contrast(1)).exception(TIMEOUT)
    assert isinstance(error, StateClosedError)
    a, b = two(runtime, ("The theatre", "Paris"))
    empty = runtime.new_branch()
    error = a.contrast(empty, SamplingParams(), Contrast(1)).exception(TIMEOUT)
    assert isinstance(error, ParameterError)
    assert "the prompt is empty" in str(error)
    for branch in (a, b, empty):
        branch.release()
    settled(runtime)


def test_deadlines_and_stops_end_both(runtime: Any) -> None:
    a, b = two(runtime, ("The theatre", "Paris"))
    late = a.contrast(b, ENDLESS, Contrast(1.5), timeout_s=0.05)
    assert isinstance(late.exception(TIMEOUT), DeadlineError)
    assert isinstance(b.tokens().exception(TIMEOUT), DeadlineError)
    a, b = two(runtime, ("The theatre", "Paris"))
    generation = a.contrast(b, ENDLESS, Contrast(1.5))
    next(iter(generation))
    generation.stop()
    done = generation.result(TIMEOUT)
    assert done.finish_reason == "stopped"
    assert b.tokens().result(TIMEOUT)[5:] == a.tokens().result(TIMEOUT)[11:] == done.token_ids
    a.release()
    b.release()
    settled(runtime)


@pytest.mark.parametrize("place", [0, 1])
def test_numbers_that_are_not_finite_fail_the_pair_alone(
    make_runtime: MakeRuntime, tiny_model: Any, place: int
) -> None:
    from tests.runtime.test_engine import poisoned

    runtime = make_runtime(poisoned(tiny_model, nan_id=7))
    prompts = [[20, 30, 31], [21, 32, 33]]
    prompts[place][1] = 7
    a, b = two(runtime, (prompts[0], prompts[1]))
    c, d = two(runtime, ([20, 30], [21, 33]))
    failing = a.contrast(b, SamplingParams(**GREEDY), Contrast(1.5))
    other = c.contrast(d, SamplingParams(**GREEDY), Contrast(1.5))
    assert isinstance(failing.exception(TIMEOUT), NumericalError)
    assert len(other.result(TIMEOUT).token_ids) == 6
    for branch in (a, b, c, d):
        branch.release()
    settled(runtime)


def test_new_weights_go_on_with_the_tokens_so_far(make_runtime: MakeRuntime) -> None:
    from tests.conftest import make_tiny_model

    runtime = make_runtime(make_tiny_model(seed=1))
    a, b = two(runtime, ("The theatre in the north", "Paris is the capital"))
    params = SamplingParams(temperature=0, max_tokens=1900, ignore_eos=True)
    generation = a.contrast(b, params, Contrast(1.5))
    deltas = iter(generation)
    next(deltas)
    runtime.update_weights(make_tiny_model(seed=2))
    for _ in range(len(generation.deltas) + 6):
        next(deltas)
    generation.stop()
    done = generation.result(TIMEOUT)
    before = len(a.tokens().result(TIMEOUT)) - len(done.token_ids)
    # the last tokens are those of the new weights after all that came before
    c, d = two(runtime, tuple(list(each.tokens().result(TIMEOUT)[:-5]) for each in (a, b)))
    again = c.contrast(d, SamplingParams(**{**GREEDY, "max_tokens": 5}), Contrast(1.5))
    assert again.result(TIMEOUT).token_ids == done.token_ids[-5:]
    assert before == len(runtime.encode("The theatre in the north"))
    for branch in (a, b, c, d):
        branch.release()


def test_what_is_no_pair_is_refused(runtime: Any, make_runtime: MakeRuntime) -> None:
    a, b = two(runtime, ("The theatre", "Paris"))
    stranger = make_runtime().new_branch()
    with pytest.raises(ParameterError, match="fork this one"):
        a.contrast(a, SamplingParams(), Contrast(1))
    with pytest.raises(ParameterError, match="two branches of one runtime"):
        a.contrast(stranger, SamplingParams(), Contrast(1))
    for branch in (a, b, stranger):
        branch.release()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((math.inf,), "weight must be a finite number"),
        (("2",), "weight must be a finite number"),
        ((1, math.nan), "plausibility must be a finite number"),
        ((1, 1.5), "a share from 0 to 1"),
    ],
)
def test_wrong_numbers_are_refused(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Contrast(*arguments)


# ---- the language


def wrong_contrast(s: Any, how: str) -> None:
    a, b = s.fork(2)
    calls: dict[str, Callable[[], None]] = {
        "itself": lambda: contrast(a, a, 1.5),
        "group": lambda: contrast(s.fork(2), b, 1.5),  # type: ignore[arg-type]
        "n": lambda: contrast(a, b, 1.5, n=2),
        "think": lambda: contrast(a, b, 1.5, think=8),
        "option": lambda: contrast(a, b, 1.5, temprature=1),  # type: ignore[call-arg]
        "weight": lambda: contrast(a, b, "x"),  # type: ignore[arg-type]
    }
    calls[how]()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("itself", "got one twice"),
        ("group", "two branches, as in contrast"),
        ("n", "makes one sample"),
        ("think", "writes no thought"),
        ("option", "temperature"),
        ("weight", "weight must be a finite number, got 'x'"),
    ],
)
def test_mistakes_are_told_where_they_are_made(how: str, said: str) -> None:
    program = radixlang.Program(wrong_contrast)
    with pytest.raises(ParameterError, match=said):
        program.trace(how=how)


def test_values_have_types_and_both_branches_have_the_variable(runtime: Any) -> None:
    @radixlang.function
    def counts(s: radixlang.State) -> Any:
        a, b = s.fork(2)
        a += "One and"
        b += "Two and"
        contrast(a, b, 1.5, "n", int, max_tokens=8)
        b += gen("rest", max_tokens=2)
        return a["n"], b["n"], b["rest"]

    first, second, _ = counts.run(runtime=runtime).result
    assert isinstance(first, int)
    assert first == second


def test_a_failed_branch_fails_the_one_it_is_contrasted_with(runtime: Any) -> None:
    @radixlang.function
    def one_fails(s: radixlang.State) -> Any:
        group = s.fork(3, on_error="collect")
        for index, branch in enumerate(group):
            branch += f"Town {index}"
        bad = dict.fromkeys(range(VOCAB), -math.inf)
        group[1] += gen("bad", logit_bias=bad, max_tokens=3)
        contrast(group[0], group[1], 1.5, "x", max_tokens=3)
        group[2] += gen("y", max_tokens=3)
        s.join(group, "y")
        return sorted(group.errors)

    assert one_fails.run(runtime=runtime).result == [0, 1]
    settled(runtime)


@pytest.mark.parametrize("place", [0, 1])
def test_a_cancelled_program_branch_ends_the_contrast(runtime: Any, place: int) -> None:
    @radixlang.function
    def cancels(s: radixlang.State) -> Any:
        group = s.fork(2, on_error="collect")
        group[0] += "The theatre"
        group[1] += "Paris"
        contrast(group[0], group[1], 1.5, "x", max_tokens=400, ignore_eos=True)
        group[place].cancel()
        s += "done" + gen("z", max_tokens=2)
        s.join(group, "x")
        return sorted(group.errors)

    assert cancels.run(runtime=runtime).result == [0, 1]
    settled(runtime)


def test_programs_stream_a_contrast(runtime: Any) -> None:
    state = asks.run(options={"max_tokens": 12}, runtime=runtime)
    streamed = "".join(
        event.text for event in asks.stream(options={"max_tokens": 12}, runtime=runtime)
        if event.name == "x"
    )  # fmt: skip
    assert streamed == state["x"]


def test_backends_without_logits_refuse_by_name() -> None:
    fake = FakeBackend(model_name="scripted")
    with pytest.raises(ProgramError, match=r"contrast needs .* 'scripted' is a scripted fake"):
        asks.run(runtime=fake)
    assert fake.audit() == []
