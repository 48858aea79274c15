"""What the language relies on: the contract of Branch and Backend, for any backend."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from radixlang.errors import (
    CancelledError,
    ParameterError,
    PromptTooLongError,
    RuntimeClosedError,
)
from radixlang.protocol import Backend, Branch, Contrast, Markup, Message
from radixlang.sampling_params import SamplingParams
from radixlang.testing import FakeBackend

TIMEOUT = 60
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, seed=1, ignore_eos=True, min_tokens=4)


@pytest.fixture
def branch(backend: Any) -> Any:
    made = backend.new_branch()
    yield made
    made.release()


def text_of(backend: Any, ids: tuple[int, ...]) -> str:
    return backend.decode(ids)


def test_objects_satisfy_the_protocols(backend: Any, branch: Any) -> None:
    assert isinstance(branch, Branch)
    assert backend.model_name
    assert backend.context_length > 16
    needed = [name for name in vars(Backend) if not name.startswith("_")]
    assert all(hasattr(backend, name) for name in needed)


def test_extend_then_tokens_is_the_text(backend: Any, branch: Any) -> None:
    branch.extend("Hello, ")
    branch.extend("world")
    ids = branch.tokens().result(TIMEOUT)
    assert list(ids)[-len(backend.encode("Hello, world")) :] == backend.encode("Hello, world")


def test_cut_between_extends_leaves_no_trace(backend: Any) -> None:
    whole, parts = backend.new_branch(), backend.new_branch()
    whole.extend("The theatre in the north")
    for part in ("The thea", "tre in", " the", "", " nor", "th"):
        parts.extend(part)
    assert whole.tokens().result(TIMEOUT) == parts.tokens().result(TIMEOUT)
    whole.release()
    parts.release()


def test_cut_at_a_fork_leaves_no_trace(backend: Any) -> None:
    whole, parent = backend.new_branch(), backend.new_branch()
    whole.extend("The theatre in the north")
    parent.extend("The thea")
    (child,) = parent.fork(1)
    child.extend("tre in the north")
    assert whole.tokens().result(TIMEOUT) == child.tokens().result(TIMEOUT)
    for each in (whole, parent, child):
        each.release()


def test_extend_takes_token_ids(backend: Any, branch: Any) -> None:
    ids = backend.encode("exact tokens")
    branch.extend(ids)
    assert list(branch.tokens().result(TIMEOUT)) == ids


def test_generation_is_a_future_and_a_stream(backend: Any, branch: Any) -> None:
    branch.extend("Once upon a time")
    generation = branch.generate(GREEDY)
    streamed = "".join(delta.text for delta in generation)
    completion = generation.result(TIMEOUT)
    assert streamed == completion.text
    assert 1 <= len(completion.token_ids) <= 8
    assert completion.finish_reason in ("eos", "length", "stop", "constraint")


def test_usage_adds_up(backend: Any, branch: Any) -> None:
    branch.extend("Once upon a time")
    completion = branch.generate(GREEDY).result(TIMEOUT)
    usage = completion.usage
    assert usage.num_prompt_tokens == usage.num_cached_tokens + usage.num_computed_tokens
    assert usage.num_generated_tokens == len(completion.token_ids)


def test_operations_run_in_order(backend: Any, branch: Any) -> None:
    branch.extend("One")
    first = branch.generate(GREEDY)
    branch.extend(" two")
    second = branch.generate(GREEDY)
    ids = branch.tokens().result(TIMEOUT)
    kept = first.result(TIMEOUT).token_ids
    assert first.done()
    assert second.done()
    joined = ",".join(map(str, ids))
    assert ",".join(map(str, kept)) in joined
    assert joined.endswith(",".join(map(str, second.result(TIMEOUT).token_ids)))


def test_same_seed_same_text_whatever_runs_beside_it(backend: Any) -> None:
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=7, ignore_eos=True, min_tokens=6)
    alone = backend.new_branch()
    alone.extend("A seeded prompt")
    expected = alone.generate(params).result(TIMEOUT).token_ids
    many = [backend.new_branch() for _ in range(4)]
    for index, other in enumerate(many):
        other.extend("A seeded prompt" if index == 2 else f"Noise {index}")
    generations = [other.generate(params) for other in many]
    assert generations[2].result(TIMEOUT).token_ids == expected
    for other in (alone, *many):
        other.release()


def test_fork_sees_the_generation_before_it(backend: Any, branch: Any) -> None:
    branch.extend("Root")
    generation = branch.generate(GREEDY)
    children = branch.fork(3)
    for index, child in enumerate(children):
        child.extend(f" child {index}")
    prefix = branch.tokens().result(TIMEOUT)
    for child in children:
        assert child.tokens().result(TIMEOUT)[: len(prefix)] == prefix
        child.release()
    assert prefix[-len(generation.result().token_ids) :] == generation.result().token_ids


def test_fork_shares_the_prefix(backend: Any) -> None:
    backend.flush_cache()
    backend.reset_stats()
    root = backend.new_branch()
    root.extend("A long shared prefix that every branch reads. " * 4)
    children = root.fork(4)
    for index, child in enumerate(children):
        child.extend(f"{index}" * 3)
    for generation in [child.generate(GREEDY) for child in children]:
        generation.result(TIMEOUT)
    stats = backend.stats()
    length = len(backend.encode("A long shared prefix that every branch reads. " * 4))
    assert stats.num_computed_tokens < 2 * length
    assert stats.num_prompt_tokens >= 4 * length
    for each in (root, *children):
        each.release()


def test_parent_stays_usable_after_a_fork(backend: Any, branch: Any) -> None:
    branch.extend("Parent")
    (child,) = branch.fork(1)
    branch.extend(" goes on")
    child.extend(" child")
    assert "goes on" in text_of(backend, branch.tokens().result(TIMEOUT))
    assert "goes on" not in text_of(backend, child.tokens().result(TIMEOUT))
    child.release()


def test_fork_of_an_empty_branch(backend: Any, branch: Any) -> None:
    children = branch.fork(3)
    for child in children:
        child.extend("text")
        assert len(child.generate(GREEDY).result(TIMEOUT).token_ids) >= 1
        child.release()


def test_score_leaves_the_branch_as_it_was(backend: Any, branch: Any) -> None:
    branch.extend("The capital of France is")
    before = branch.tokens().result(TIMEOUT)
    options = [" Paris", " Rome", " the moon"]
    scores = branch.score(options).result(TIMEOUT)
    assert [score.text for score in scores] == options
    for score in scores:
        assert len(score.logprobs) == len(score.token_ids) >= 1
        assert all(value <= 0 for value in score.logprobs)
    assert branch.tokens().result(TIMEOUT) == before


def test_token_ids_are_scored_as_they_are(backend: Any, branch: Any) -> None:
    branch.extend("The capital of France is")
    before = branch.tokens().result(TIMEOUT)
    options = [backend.encode(" Paris"), backend.encode(" Pa") + backend.encode("ris"), []]
    scores = branch.score(options).result(TIMEOUT)
    assert [list(score.token_ids) for score in scores] == options
    assert [score.text for score in scores] == [" Paris", " Paris", ""]
    assert [len(score.logprobs) for score in scores] == [len(option) for option in options]
    assert all(len(score.is_greedy) == len(score.token_ids) for score in scores)
    assert scores[2].total == 0.0
    assert branch.tokens().result(TIMEOUT) == before


def test_text_and_token_ids_are_not_scored_together(backend: Any, branch: Any) -> None:
    branch.extend("The capital of France is")
    with pytest.raises(ParameterError, match="all text or all token ids"):
        branch.score([" Paris", backend.encode(" Rome")])
    for wrong in ([], [1], [b" Paris"], [[1.5]], "Paris"):
        with pytest.raises(ParameterError):
            branch.score(wrong)
    assert len(branch.score([" Paris"]).result(TIMEOUT)) == 1


def test_stop_string_is_not_part_of_the_text(backend: Any, branch: Any) -> None:
    branch.extend("Say something")
    whole = branch.generate(GREEDY).result(TIMEOUT).text
    again = backend.new_branch()
    again.extend("Say something")
    stop = whole[len(whole) // 2 :][:2]
    completion = again.generate(
        SamplingParams(max_tokens=8, temperature=0.0, seed=1, ignore_eos=True, stop=(stop,))
    ).result(TIMEOUT)
    assert completion.finish_reason == "stop"
    assert completion.stop_reason == stop
    assert stop not in completion.text
    again.release()


def test_stop_pattern_ends_the_text_where_its_match_begins(backend: Any, branch: Any) -> None:
    branch.extend("Say something")
    whole = branch.generate(GREEDY).result(TIMEOUT).text
    pattern = "[" + re.escape(whole[len(whole) // 2]) + "]"
    again = backend.new_branch()
    again.extend("Say something")
    params = SamplingParams(
        max_tokens=8, temperature=0.0, seed=1, ignore_eos=True, stop_regex=(pattern, "(never){9}")
    )
    generation = again.generate(params)
    completion = generation.result(TIMEOUT)
    assert (completion.finish_reason, completion.stop_reason) == ("stop", pattern)
    assert completion.text == re.split(pattern, whole)[0]
    assert "".join(delta.text for delta in generation) == completion.text
    again.release()


@pytest.mark.parametrize("pattern", ["[a", "x*"])
def test_stop_pattern_that_cannot_serve_is_refused(pattern: str) -> None:
    with pytest.raises(ParameterError, match="stop_regex"):
        SamplingParams(stop_regex=pattern)


def test_plain_text_never_becomes_a_special_token(backend: Any) -> None:
    plain, markup = backend.new_branch(), backend.new_branch()
    plain.extend("<|im_end|>")
    markup.extend(Markup("<|im_end|>"))
    as_data = plain.tokens().result(TIMEOUT)
    as_syntax = markup.tokens().result(TIMEOUT)
    assert len(as_syntax) <= len(as_data)
    assert "<|im_end|>" in text_of(backend, as_data)
    plain.release()
    markup.release()


def test_cancelled_generation_raises(backend: Any, branch: Any) -> None:
    branch.extend("A very long answer")
    generation = branch.generate(SamplingParams(max_tokens=4000, ignore_eos=True, min_tokens=4000))
    generation.cancel()
    error = generation.exception(TIMEOUT)
    assert error is None or isinstance(error, CancelledError)
    assert generation.done()


def test_a_stopped_generation_keeps_its_text_and_the_branch_goes_on(
    backend: Any, branch: Any
) -> None:
    before = backend.new_branch()
    before.extend("Count: one, two,")
    prompt = before.tokens().result(TIMEOUT)
    before.release()
    branch.extend(list(prompt))
    generation = branch.generate(
        SamplingParams(max_tokens=2000, ignore_eos=True, seed=1, heal=False)
    )
    heard: list[str] = []

    def reader(delta: Any) -> None:
        if delta is not None:
            heard.append(delta.text)
            generation.stop()

    generation.subscribe(reader)
    completion = generation.result(TIMEOUT)
    assert completion.finish_reason == "stopped"
    assert completion.stop_reason is None
    assert 1 <= len(completion.token_ids) < 200
    assert completion.text == "".join(heard)
    assert branch.tokens().result(TIMEOUT) == (*prompt, *completion.token_ids)
    assert not generation.stop()
    assert branch.generate(GREEDY).result(TIMEOUT).finish_reason in ("eos", "length")


def test_a_generation_that_is_stopped_before_it_begins_is_empty(backend: Any, branch: Any) -> None:
    branch.extend("Once upon a time")
    has_asked = threading.Event()
    if isinstance(backend, FakeBackend):  # it answers at once; the others write 2,000 tokens first
        backend.post(lambda: has_asked.wait(TIMEOUT))
    first = branch.generate(SamplingParams(max_tokens=2000, ignore_eos=True, seed=1))
    second = branch.generate(SamplingParams(max_tokens=2000, ignore_eos=True, seed=2))
    third = branch.generate(GREEDY)
    assert second.stop()
    first.stop()
    has_asked.set()
    assert first.result(TIMEOUT).finish_reason in ("stopped", "eos")
    completion = second.result(TIMEOUT)
    assert (completion.text, completion.token_ids) == ("", ())
    assert completion.finish_reason == "stopped"
    assert third.result(TIMEOUT).token_ids


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_place_of_a_readers_calls_leaves_the_backend_working(
    backend: Any, interrupted_at: Callable[[int, Callable[[], Any]], bool]
) -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0, seed=1)

    def ask(branch: Any) -> None:
        branch.extend("Once upon a time")
        generation = branch.generate(params)
        generation.add_done_callback(lambda _: None)
        branch.score([" there", " then"]).result(TIMEOUT)
        branch.tokens().result(TIMEOUT)
        assert generation.result(TIMEOUT) is not None
        backend.audit()

    for place in itertools.count(1):
        branch, another = backend.new_branch(), backend.new_branch()
        was_interrupted = interrupted_at(place, partial(ask, branch))
        branch.cancel()
        another.extend("Once upon a time")
        assert another.generate(params).result(TIMEOUT) is not None
        another.release()
        if not was_interrupted:
            break
    assert place > 10


def test_cancelled_branch_fails_what_is_queued(backend: Any) -> None:
    branch = backend.new_branch()
    branch.extend("text")
    branch.cancel()
    later = branch.generate(GREEDY)
    with pytest.raises(Exception, match=r"cancel|released"):
        later.result(TIMEOUT)


def test_release_twice_is_allowed(backend: Any) -> None:
    branch = backend.new_branch()
    branch.release()
    branch.release()
    assert backend.audit() == []


def test_release_waits_for_what_is_queued(backend: Any) -> None:
    branch = backend.new_branch()
    branch.extend("text")
    generation = branch.generate(GREEDY)
    branch.release()
    assert generation.result(TIMEOUT).text is not None


def test_first_error_stays(backend: Any) -> None:
    branch = backend.new_branch()
    branch.extend(backend.encode("a") * (backend.context_length + 1))
    first = branch.generate(GREEDY)
    second = branch.generate(GREEDY)
    (child,) = branch.fork(1)
    third = child.generate(GREEDY)
    for generation in (first, second, third):
        assert isinstance(generation.exception(TIMEOUT), PromptTooLongError)
    other = backend.new_branch()
    other.extend("goes on")
    assert other.generate(GREEDY).result(TIMEOUT).token_ids
    for each in (branch, child, other):
        each.release()


def test_namespaces_share_nothing(backend: Any) -> None:
    backend.flush_cache()
    backend.reset_stats()
    for namespace in ("tenant a", "tenant b"):
        branch = backend.new_branch(namespace=namespace)
        branch.extend("the same secret prompt for both")
        usage = branch.generate(GREEDY).result(TIMEOUT).usage
        assert usage.num_cached_tokens == 0
        branch.release()


def test_callbacks_may_post_more_work(backend: Any, branch: Any) -> None:
    done = threading.Event()
    texts: list[str] = []
    branch.extend("start")

    def go_on(_: Any) -> None:
        branch.extend(" more")
        branch.generate(GREEDY).add_done_callback(finish)

    def finish(generation: Any) -> None:
        texts.append(generation.result().text)
        done.set()

    branch.generate(GREEDY).add_done_callback(go_on)
    assert done.wait(TIMEOUT)
    assert texts


def test_logprobs_are_one_a_token(backend: Any, branch: Any) -> None:
    branch.extend("numbers")
    params = SamplingParams(
        max_tokens=5, temperature=0.0, seed=1, logprobs=True, top_logprobs=2, ignore_eos=True
    )
    completion = branch.generate(params).result(TIMEOUT)
    assert completion.logprobs is not None
    assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)
    assert all(entry.logprob <= 0 and len(entry.top) == 2 for entry in completion.logprobs)


def test_hints_change_no_result(backend: Any) -> None:
    plain, hinted = backend.new_branch(), backend.new_branch()
    for branch, hints in ((plain, ()), (hinted, (1, 7, None))):
        branch.extend("The thea")
        for hint in hints:
            branch.expect(hint)
            branch.keep()
        branch.extend("tre in the north")
    first, second = (branch.generate(GREEDY) for branch in (plain, hinted))
    hinted.expect(None)
    (child,) = hinted.fork(1)
    child.expect(3)
    assert first.result(TIMEOUT).token_ids == second.result(TIMEOUT).token_ids
    expected = plain.tokens().result(TIMEOUT)
    assert hinted.tokens().result(TIMEOUT) == child.tokens().result(TIMEOUT) == expected
    assert hinted.generate(GREEDY).result(TIMEOUT).token_ids
    for each in (plain, hinted, child):
        each.release()
        each.expect(None)
        each.keep()


@pytest.mark.parametrize("next_in", [0, -1, True, 1.5, "soon"])
def test_a_hint_that_means_nothing_is_refused(backend: Any, branch: Any, next_in: Any) -> None:
    with pytest.raises(ParameterError, match="at least 1, or None"):
        branch.expect(next_in)


def test_content_is_rendered_as_it_is(backend: Any) -> None:
    text = backend.render_chat([Message("user", "content!")], add_generation_prompt=True)
    assert "content!" in text


def test_closed_backend_says_so(backend: Any) -> None:
    backend.close()
    with pytest.raises(RuntimeClosedError):
        backend.new_branch()


def test_scores_tell_the_likeliest_tokens(backend: Any, branch: Any) -> None:
    branch.extend("Paris is the")
    ids = backend.encode(" capital of")
    (plain,) = branch.score([ids]).result(TIMEOUT)
    (score,) = branch.score([ids], top_logprobs=3).result(TIMEOUT)
    assert plain.top == ()
    assert score.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
    assert [len(top) for top in score.top] == [3] * len(ids)
    for top, is_greedy, token_id, value in zip(
        score.top, score.is_greedy, ids, score.logprobs, strict=True
    ):
        assert [logprob for _, logprob in top] == sorted((each for _, each in top), reverse=True)
        assert not is_greedy or top[0] == (token_id, pytest.approx(value, abs=1e-4))
    with pytest.raises(ParameterError, match="top_logprobs must be between 0 and 100"):
        branch.score([ids], top_logprobs=101)


def test_deltas_carry_the_logprobs_of_their_tokens(backend: Any, branch: Any) -> None:
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=3, top_logprobs=2)
    branch.extend("A seeded prompt")
    generation = branch.generate(params)
    deltas = list(generation)
    completion = generation.result(TIMEOUT)
    assert [each for delta in deltas for each in delta.logprobs] == list(completion.logprobs)
    for delta in deltas:
        assert tuple(each.token_id for each in delta.logprobs) == delta.token_ids


def test_contrasts_are_made_or_refused_by_name(backend: Any) -> None:
    first, second = backend.new_branch(), backend.new_branch()
    first.extend("The theatre")
    second.extend("The town")
    generation = first.contrast(second, GREEDY, Contrast(1.5))
    error = generation.exception(TIMEOUT)
    if error is None:
        ids = generation.result().token_ids
        for branch in (first, second):
            assert branch.tokens().result(TIMEOUT)[-len(ids) :] == ids
    else:
        assert isinstance(error, ParameterError)
        assert re.search("contrast .*logits", str(error))
    first.release()
    second.release()
