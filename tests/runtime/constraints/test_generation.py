"""Constraints together with the other parameters of a generation, on a tiny random model."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from radixlang.constraints.specs import Choices, Grammar, JsonSchema, Regex, match
from radixlang.errors import CancelledError, ConstraintError, IncompleteError
from radixlang.runtime.constraints.compiled import CompiledConstraint
from radixlang.runtime.constraints.matcher import Matcher
from radixlang.runtime.requests import generate_request
from radixlang.runtime.requests.generate_request import GenerateJob
from radixlang.sampling_params import SamplingParams

TIMEOUT = 60
MakeRuntime = Callable[..., Any]
WORDS = Regex("([a-z] ){1,400}", finish="close")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


def run(runtime: Any, specs: list[Any], **params: Any) -> list[Any]:
    """Completions, or errors, of several constraints side by side; seeds count up."""
    running = []
    for seed, spec in enumerate(specs):
        branch = runtime.new_branch()
        branch.extend("Answer: ")
        given = SamplingParams(**{"max_tokens": 24, "seed": seed, **params})
        running.append(branch.generate(given, runtime.compile_constraint(spec)))
        branch.release()
    return [each.exception(TIMEOUT) or each.result() for each in running]


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.0}, {"temperature": 5.0}, {"top_k": 3}, {"top_p": 0.1}, {"min_p": 0.5},
        {"repetition_penalty": 1.7, "presence_penalty": 2.0}, {"min_tokens": 12},
        {"ignore_eos": True}, {"top_logprobs": 3, "min_tokens": 5},
    ],
    ids=lambda more: "_".join(more),
)  # fmt: skip
def test_every_way_to_sample_satisfies_the_constraint_or_says_so(
    make_runtime: MakeRuntime, more: dict[str, Any]
) -> None:
    kinds = [Regex("[a-z]{3}( [a-z]+){0,3}!"), JsonSchema.of(SCHEMA), Choices(("yes", "no"))]
    specs = kinds * 3
    for spec, found in zip(specs, run(make_runtime(), specs, **more), strict=True):
        if isinstance(found, IncompleteError):
            assert match(spec, found.partial).status == "incomplete"
        else:
            assert match(spec, found.text)
            assert found.finish_reason in ("constraint", "eos", "length")


def test_a_stop_string_leaves_a_text_that_satisfies_or_raises(make_runtime: MakeRuntime) -> None:
    """The text before a stop string counts, wherever in a token it begins (vllm#14170)."""
    runtime = make_runtime()
    ends = set()
    for spec, stop in (
        (Regex("(ab)+"), "ba"), (Regex("[a-z]+"), "e"), (Regex("[a-z ]+"), "t"),
        (Regex("x=[0-9]+;?"), ";"), (Grammar('start: "a"+ ";"?'), "aa;"),
    ):  # fmt: skip
        for found in run(runtime, [spec] * 6, stop=stop):
            if isinstance(found, IncompleteError):
                ends.add("incomplete")
                assert match(spec, found.partial).status != "rejected"
                continue
            ends.add(found.finish_reason)
            assert match(spec, found.text)
            assert stop not in found.text
            assert (found.finish_reason == "stop") == (found.stop_reason == stop)
    assert {"stop", "incomplete"} <= ends


def test_a_stop_pattern_does_as_well(make_runtime: MakeRuntime) -> None:
    spec = Regex("([a-z]{2} )*[a-z]{2}")
    done = run(make_runtime(), [spec] * 8, stop_regex=r" [t-z]")
    done = [each for each in done if not isinstance(each, IncompleteError)]
    assert all(match(spec, each.text) for each in done)
    assert "stop" in {each.finish_reason for each in done}


def test_min_tokens_holds_back_the_end_but_not_a_text_that_is_over(
    make_runtime: MakeRuntime,
) -> None:
    runtime = make_runtime()
    for found in run(runtime, [Regex("[a-z ]*")] * 4, min_tokens=15):
        assert len(found.token_ids) >= 15
    for short in run(runtime, [Choices(("yes", "no"))] * 4, min_tokens=15):
        assert short.text in ("yes", "no")
        assert short.finish_reason == "constraint"


def test_end_tokens_are_never_text_with_ignore_eos(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    for found in run(runtime, [Regex("[a-z ]*")] * 6, ignore_eos=True, temperature=3.0):
        assert found.finish_reason == "length"
        assert len(found.token_ids) == 24
        assert not set(found.token_ids) & set(runtime.loaded.tokenizer.special_token_ids)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 8, 13])
def test_max_tokens_raises_with_the_partial_text_or_closes_it(
    make_runtime: MakeRuntime, max_tokens: int
) -> None:
    """Truncated JSON is an error with the partial text, never a repaired value (vllm#8350)."""
    runtime = make_runtime()
    specs = [JsonSchema.of(SCHEMA, finish=finish) for finish in ("error", "close")]
    ways = [run(runtime, [spec] * 4, max_tokens=max_tokens) for spec in specs]
    for cut, closed in zip(*ways, strict=True):
        assert isinstance(cut, IncompleteError)
        assert closed.text.startswith(cut.partial)
        jsonschema.validate(json.loads(closed.text), SCHEMA)
        assert closed.finish_reason == "length"


CUT_CHARACTERS: list[Any] = [
    Choices(("😨😨😨", "😀😀😀😀"), finish="close"),
    Regex("(😨|😀){2,3}", finish="close"),
    JsonSchema.of({"enum": ["😨😨", "日本"]}, finish="close"),
    JsonSchema.of({"type": "string", "pattern": "^[😀-😨]{2}é$"}, finish="close"),
    Grammar('start: "😨" start | "😀é"', finish="close"),
]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("spec", CUT_CHARACTERS, ids=lambda spec: type(spec).__name__)
def test_a_text_cut_inside_a_character_is_closed_as_one_that_is_whole(
    make_runtime: MakeRuntime, spec: Any, max_tokens: int
) -> None:
    runtime = make_runtime()
    for seed in range(4):
        branch = runtime.new_branch()
        branch.extend("Answer: ")
        params = SamplingParams(max_tokens=max_tokens, seed=seed)
        generation = branch.generate(params, runtime.compile_constraint(spec))
        streamed = "".join(delta.text for delta in generation)
        done = generation.result(TIMEOUT)
        assert match(spec, done.text)
        assert streamed == done.text
        assert runtime.decode(branch.tokens().result(TIMEOUT)) == f"Answer: {done.text}"
        branch.release()
    assert runtime.audit() == []


def test_drafts_under_an_ambiguous_grammar_are_given_up_where_they_cost_too_much(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every draft would be read again by a parser that takes longer for each token."""
    spec = Grammar('start: e\ne: e e e | e e | "a"', parser="earley")
    num_drafts = Counter[float]()
    propose = GenerateJob.draft

    def draft(job: GenerateJob) -> Any:
        found = propose(job)
        num_drafts[generate_request.MAX_DRAFT_S] += len(found[0]) > 0
        return found

    monkeypatch.setattr(GenerateJob, "draft", draft)
    for most_s in (60.0, 0.0):
        monkeypatch.setattr(generate_request, "MAX_DRAFT_S", most_s)
        (found,) = run(make_runtime(), [spec], max_tokens=40, ignore_eos=True, temperature=0.0)
        assert found.text == "a" * 40
    assert num_drafts[60.0] > num_drafts[0.0] == 0


def test_closed_text_stays_on_the_branch(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    branch = runtime.new_branch()
    branch.extend("Answer: ")
    spec = Regex("[a-z ]{9,40}!", finish="close")
    params = SamplingParams(max_tokens=3, seed=1)
    generation = branch.generate(params, runtime.compile_constraint(spec))
    streamed = "".join(delta.text for delta in generation)
    text = generation.result(TIMEOUT).text
    assert streamed == text
    assert match(spec, text)
    branch.extend(" Next:")
    assert runtime.decode(branch.tokens().result(TIMEOUT)) == f"Answer: {text} Next:"
    branch.release()


def test_forks_under_one_constraint_are_independent(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    trunk = runtime.new_branch()
    trunk.extend("Answer: ")
    constraint = runtime.compile_constraint(JsonSchema.of(SCHEMA, finish="close"))
    branches = trunk.fork(12)
    running = [
        branch.generate(SamplingParams(max_tokens=30, seed=seed % 6, temperature=2.0), constraint)
        for seed, branch in enumerate(branches)
    ]
    texts = [generation.result(TIMEOUT).text for generation in running]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert texts[:6] == texts[6:], "a seed decides, not the company"
    assert len(set(texts)) > 1
    follow = [branch.generate(SamplingParams(max_tokens=4, seed=1),
                              runtime.compile_constraint(Choices(("yes", "no"))))
              for branch in branches]  # fmt: skip
    assert {generation.result(TIMEOUT).text for generation in follow} <= {"yes", "no"}
    for branch in [trunk, *branches]:
        branch.release()


def test_one_branch_that_fails_harms_no_other(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()
    dead = Grammar('start: "a" T | "b"\nT: /(?=[0-9])[a-z]+/')
    *found, words = run(runtime, [dead] * 8 + [WORDS], temperature=50.0)
    assert any(isinstance(each, Exception) for each in found)
    for each in found:
        assert isinstance(each, Exception) or each.text == "b"
    assert match(WORDS, words.text)


class Gate:
    """Holds the checks of finished texts back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.reached, self.opened, self._error = threading.Event(), threading.Event(), error
        monkeypatch.setattr(CompiledConstraint, "check", lambda *_: self._pass())

    def _pass(self) -> None:
        self.reached.set()
        assert self.opened.wait(TIMEOUT)
        if self._error is not None:
            raise self._error


def judged(runtime: Any) -> tuple[Any, Any]:
    """A branch and its generation, whose text is to be checked."""
    branch = runtime.new_branch()
    branch.extend("Answer: ")
    spec = Grammar('start: "yes" | "no"')
    return branch, branch.generate(SamplingParams(max_tokens=9), runtime.compile_constraint(spec))


def test_a_slow_check_of_one_text_holds_up_no_other(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, gate = make_runtime(), Gate(monkeypatch)
    branch, generation = judged(runtime)
    branch.extend(" Next:")
    then = branch.tokens()
    assert gate.reached.wait(TIMEOUT)
    assert run(runtime, [WORDS])[0].text
    assert not generation.done()
    assert not then.done()
    gate.opened.set()
    text = generation.result(TIMEOUT).text
    assert runtime.decode(then.result(TIMEOUT)) == f"Answer: {text} Next:"
    branch.release()
    assert runtime.audit() == []


def test_a_check_that_fails_takes_its_branch_with_it(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, gate = make_runtime(), Gate(monkeypatch, ConstraintError("not so"))
    branch, generation = judged(runtime)
    gate.opened.set()
    assert str(generation.exception(TIMEOUT)) == "not so"
    assert str(branch.tokens().exception(TIMEOUT)) == "not so"
    assert runtime.stats().num_failed_requests == 1
    branch.release()


def test_what_is_being_checked_can_be_cancelled_and_closed(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, gate = make_runtime(), Gate(monkeypatch)
    _, cancelled = judged(runtime)
    _, left = judged(runtime)
    assert gate.reached.wait(TIMEOUT)
    cancelled.cancel()
    assert isinstance(cancelled.exception(TIMEOUT), CancelledError)
    closing = threading.Thread(target=runtime.close)
    closing.start()
    gate.opened.set()
    closing.join(TIMEOUT)
    assert not closing.is_alive()
    assert left.done()


@pytest.mark.parametrize("prompt", ["Answer:", "Answer: ", "Answer:\n\n", "The theatre "])
def test_sglang_2045_1312_greedy_text_is_the_same_with_forced_text_on_and_off(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch, prompt: str
) -> None:
    spec = Regex(r" ?the (north|town) [a-z]{2,4} plays every night; [a-z]{2}")
    texts = []
    for forces in (True, False):
        if not forces:
            monkeypatch.setattr(Matcher, "forced_tokens", lambda self: [])
        runtime = make_runtime()
        branch = runtime.new_branch()
        branch.extend(prompt)
        params = SamplingParams(max_tokens=60, temperature=0.0)
        done = branch.generate(params, runtime.compile_constraint(spec)).result(TIMEOUT)
        assert bool(done.usage.num_forced_tokens) == forces
        texts.append((done.text, done.token_ids))
        branch.release()
    assert texts[0] == texts[1]
    assert match(spec, texts[0][0])
