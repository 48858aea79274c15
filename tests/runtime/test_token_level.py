"""Token-level programs: next-token distributions, biases and functions of logits.

The expected values are those of a plain loop over transformers, in float32.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import radixlang
from radixlang import LogitsContext, gen
from radixlang.errors import LogitsError, NeedsValueError, ParameterError, ProgramError
from radixlang.runtime.sampling import logits_functions
from radixlang.sampling_params import SamplingParams
from radixlang.testing import FakeBackend

TIMEOUT = 60
VOCAB = 256
MakeRuntime = Callable[..., Any]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "heal": False}


@pytest.fixture
def runtime(theirs: Any, make_runtime: MakeRuntime) -> Any:
    return make_runtime(theirs.folder, dtype="float32", quantization=None)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """A hundred prompts, half of which begin alike."""
    generator = np.random.default_rng(5)
    shared = generator.integers(1, VOCAB, 24).tolist()
    found = []
    for index in range(100):
        own = generator.integers(1, VOCAB, int(generator.integers(3, 20))).tolist()
        found.append(shared + own if index % 2 else own)
    return found


def their_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0, -1]
    return logits


def their_loop(
    model: Any, prompt: list[int], num: int, change: Callable[[list[int], torch.Tensor], Any]
) -> tuple[int, ...]:
    """Greedy tokens of a plain loop."""
    ids = list(prompt)
    for _ in range(num):
        ids.append(int(change(ids, their_logits(model, ids)).argmax()))
    return tuple(ids[len(prompt) :])


# ---- the next token


def test_next_tokens_of_100_prompts_are_those_of_transformers(
    runtime: Any, theirs: Any, prompts: list[list[int]]
) -> None:
    branches = []
    for prompt in prompts:
        branch = runtime.new_branch()
        branch.extend(prompt)
        branches.append((branch, branch.next_token(top=VOCAB), branch.next_token([7, 5, 9])))
    for prompt, (branch, whole, some) in zip(prompts, branches, strict=True):
        expected = their_logits(theirs, prompt).log_softmax(0)
        found = whole.result(TIMEOUT)
        assert sorted(found.token_ids) == list(range(VOCAB))
        assert list(found.logprobs) == sorted(found.logprobs, reverse=True)
        by_id = torch.tensor(found.logprobs)[torch.tensor(found.token_ids).argsort()]
        torch.testing.assert_close(by_id, expected, atol=1e-4, rtol=0)
        entropy = -(expected.exp() * expected).sum()
        assert found.entropy == pytest.approx(float(entropy), abs=1e-4)
        among = some.result(TIMEOUT)
        assert set(among.token_ids) == {7, 5, 9}
        assert sum(among.shares.values()) == pytest.approx(1)
        for token_id, logprob in zip(among.token_ids, among.logprobs, strict=True):
            assert logprob == pytest.approx(float(expected[token_id]), abs=1e-4)
        branch.release()


def test_a_reading_changes_nothing_and_computes_a_prefix_once(runtime: Any) -> None:
    @radixlang.function
    def with_readings(s: radixlang.State, reads: bool) -> Any:
        s += "The theatre in the north"
        if reads:
            s.next_token()
        group = s.fork(8)
        group += lambda index: f" of town {index}"
        found = group.next_token(among=["a", "b"]) if reads else None
        group += gen("x", **GREEDY)
        return found, [branch.tokens() for branch in group]

    plain = with_readings.run(reads=False, runtime=runtime).result
    runtime.flush_cache()
    runtime.reset_stats()
    state = with_readings.run(reads=True, runtime=runtime)
    assert state.result[1] == plain[1]
    assert len(state.result[0]) == 8
    stats = runtime.stats()
    tails = 8 * len(" of town 0")
    generated = 8 * (GREEDY["max_tokens"] - 1)
    # the prompt's last token, and that of each branch, is computed again for its logits
    assert stats.num_computed_tokens <= 24 + tails + generated + 9


def test_top_is_of_what_was_asked_and_texts_are_tokens(runtime: Any) -> None:
    branch = runtime.new_branch()
    branch.extend("Once")
    assert len(branch.next_token().result(TIMEOUT)) == 20
    assert len(branch.next_token(top=3).result(TIMEOUT)) == 3
    best = branch.next_token(among=["a", "b", 3], top=1).result(TIMEOUT)
    assert len(best) == 1
    (text,) = branch.next_token(among=["a"]).result(TIMEOUT).texts
    assert text == "a"
    branch.release()


@pytest.mark.parametrize("among", ["ab", [], ["two letters"], [VOCAB], [-1], [1.5], [True]])
def test_what_is_no_token_fails_the_reading_alone(runtime: Any, among: Any) -> None:
    branch = runtime.new_branch()
    branch.extend("Once")
    with pytest.raises(ParameterError, match=r"token"):
        branch.next_token(among).result(TIMEOUT)
    assert len(branch.next_token(top=2).result(TIMEOUT)) == 2
    branch.release()


def test_readings_of_an_event_loop(runtime: Any) -> None:
    @radixlang.function
    async def both(s: radixlang.State) -> Any:
        s += "Once"
        with pytest.raises(NeedsValueError, match="anext_token"):
            s.next_token()
        return await s.anext_token(top=4)

    found = asyncio.run(both.arun(runtime=runtime)).result
    branch = runtime.new_branch()
    branch.extend("Once")
    assert found.token_ids == branch.next_token(top=4).result(TIMEOUT).token_ids
    branch.release()


def test_rows_of_a_batch_are_read(runtime: Any) -> None:
    @radixlang.function
    def yes_or_no(s: radixlang.State, question: str) -> Any:
        s += question
        s["shares"] = s.next_token(among=["y", "n"]).shares

    rows = [{"question": f"Is {i} odd?"} for i in range(20)]
    results = yes_or_no.run_batch(rows, runtime=runtime)
    assert [result.error for result in results] == [None] * 20
    again = yes_or_no.run(**rows[7], runtime=runtime)["shares"]
    assert results[7]["shares"] == pytest.approx(again)


# ---- biases


def test_biases_are_added_to_the_logits_of_transformers(
    runtime: Any, theirs: Any, prompts: list[list[int]]
) -> None:
    bias: dict[str | int, float] = {5: 2.5, "a": -1.0, 17: -math.inf, "z": 3.0}
    added = torch.zeros(VOCAB)
    for token, value in bias.items():
        added[token if isinstance(token, int) else ord(token)] += value
    pieces = [(branch := runtime.new_branch(), branch.extend(prompt))[0] for prompt in prompts]
    params = SamplingParams(**GREEDY, logit_bias=bias)
    generations = [branch.generate(params) for branch in pieces]
    for prompt, generation in zip(prompts, generations, strict=True):
        expected = their_loop(theirs, prompt, 6, lambda _, logits: logits + added)
        assert generation.result(TIMEOUT).token_ids == expected
    for branch in pieces:
        branch.release()


def test_log_probabilities_are_those_of_the_model_without_bias(runtime: Any) -> None:
    branch = runtime.new_branch()
    branch.extend("Once")
    whole = branch.next_token(top=VOCAB).result(TIMEOUT)
    least = whole.token_ids[-1]
    params = SamplingParams(**{**GREEDY, "max_tokens": 1}, logprobs=True, logit_bias={least: 100})
    (record,) = branch.generate(params).result(TIMEOUT).logprobs
    assert record.token_id == least
    assert record.logprob == pytest.approx(whole.logprobs[-1], abs=1e-5)
    branch.release()


def test_drafts_do_not_change_what_is_biased(theirs: Any, make_runtime: MakeRuntime) -> None:
    text = "one two three one two three one two three one two" * 3
    found = []
    for draft_tokens in (0, 8):
        runtime = make_runtime(
            theirs.folder, dtype="float32", quantization=None, draft_tokens=draft_tokens
        )
        branch = runtime.new_branch()
        branch.extend(text)
        params = SamplingParams(
            max_tokens=40, temperature=0.7, seed=4, ignore_eos=True, heal=False,
            logit_bias={" ": 9.0, "o": 8.5},
        )  # fmt: skip
        found.append(branch.generate(params).result(TIMEOUT).token_ids)
        branch.release()
    assert found[0] == found[1]


def test_a_ban_of_every_token_is_told(runtime: Any) -> None:
    branch = runtime.new_branch()
    branch.extend("Once")
    params = SamplingParams(logit_bias=dict.fromkeys(range(VOCAB), -math.inf))
    with pytest.raises(LogitsError, match="banned every token"):
        branch.generate(params).result(TIMEOUT)
    branch.release()


@pytest.mark.parametrize(
    "bias", [{"a": math.inf}, {"a": math.nan}, {"a": "much"}, {-1: 1.0}, {1.5: 1.0}, 7, "ab"]
)
def test_wrong_biases_are_refused(bias: Any) -> None:
    with pytest.raises(ParameterError, match="logit_bias"):
        gen("x", logit_bias=bias)


def test_a_text_of_two_tokens_has_no_bias(runtime: Any) -> None:
    with pytest.raises(ProgramError, match="'ab' is not one token"):
        biased.run(bias={"ab": 1.0}, runtime=runtime)


@radixlang.function
def biased(
    s: radixlang.State, bias: Any = None, f: Any = None, regex: str | None = None, heat: float = 0
) -> None:
    options = {**GREEDY, "temperature": heat, **({} if regex is None else {"regex": regex})}
    s += "The theatre" + gen("x", logit_bias=bias, logits=f, **options)


# ---- functions of logits


def no_repeats(context: LogitsContext) -> torch.Tensor:
    """Halve the logits of tokens that are there already."""
    seen = torch.from_numpy(context.token_ids.astype(np.int64))
    changed = context.logits.clone()
    changed[seen] -= 4.0
    return changed


def in_place(context: LogitsContext) -> None:
    changed = no_repeats(context)
    context.logits.copy_(changed)


@pytest.mark.parametrize("function", [no_repeats, in_place])
def test_functions_change_the_logits_of_transformers(
    runtime: Any, theirs: Any, prompts: list[list[int]], function: Any
) -> None:
    def change(ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        context = LogitsContext(logits, np.array(ids, np.int32), np.empty(0, np.int32))
        return no_repeats(context)

    pieces = [(branch := runtime.new_branch(), branch.extend(prompt))[0] for prompt in prompts]
    params = SamplingParams(**GREEDY, logits=function)
    generations = [branch.generate(params) for branch in pieces]
    for prompt, generation in zip(prompts, generations, strict=True):
        assert generation.result(TIMEOUT).token_ids == their_loop(theirs, prompt, 6, change)
    for branch in pieces:
        branch.release()


def test_the_context_has_the_tokens_so_far(runtime: Any) -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def look(context: LogitsContext) -> None:
        seen.append((context.prompt_ids.tolist(), context.generated_ids.tolist()))

    branch = runtime.new_branch()
    branch.extend([1, 2, 3])
    ids = branch.generate(SamplingParams(**GREEDY, logits=look)).result(TIMEOUT).token_ids
    branch.release()
    assert seen == [([1, 2, 3], list(ids[:i])) for i in range(6)]


def test_under_a_constraint_the_mask_comes_after_the_function(runtime: Any) -> None:
    def only_b(context: LogitsContext) -> None:
        context.logits[ord("b")] += 100.0
        context.logits[ord("z")] += 1000.0

    assert biased.run(f=only_b, regex="[ab]{6}", runtime=runtime)["x"] == "bbbbbb"
    assert biased.run(bias={"a": 100.0}, regex="[ab]{6}", runtime=runtime)["x"] == "aaaaaa"


def test_seeds_give_the_same_tokens_in_any_company(runtime: Any) -> None:
    row = {"heat": 1.0, "f": no_repeats, "bias": {"e": 1.0}}
    results = biased.run_batch([row] * 6, runtime=runtime, seed=3)
    repeated = biased.run_batch([row] * 6, runtime=runtime, seed=3)
    assert [each["x"] for each in results] == [each["x"] for each in repeated]
    assert len({each["x"] for each in results}) > 1
    seeds = [each.state.seed for each in results]
    alone = [biased.run(**row, seed=seed, runtime=runtime)["x"] for seed in seeds]
    assert alone == [each["x"] for each in results]


def fails(context: LogitsContext) -> None:
    raise ValueError("nothing to say")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (fails, "fails given as logits= raised ValueError: nothing to say, for token 0"),
        (lambda context: 3, "returned int"),
        (lambda context: context.logits[:3], r"returned shape \(3,\)"),
        (lambda context: context.logits * math.nan, "NaN or infinite"),
        (lambda context: context.logits.fill_(math.inf), "NaN or infinite"),
        (lambda context: context.logits.fill_(-math.inf), "banned every token"),
    ],
)
def test_an_error_fails_its_own_generation(runtime: Any, function: Any, said: str) -> None:
    rows = [{"f": function}, {"f": None}, {"f": in_place}]
    results = biased.run_batch(rows, runtime=runtime)
    cause = results[0].error.__cause__
    assert isinstance(cause, LogitsError)
    assert results[1].error is results[2].error is None
    with pytest.raises(LogitsError, match=said):
        raise cause


def test_a_function_that_does_not_return_costs_a_bounded_wait(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logits_functions, "MAX_CALL_S", 0.2)
    freed = threading.Event()

    def hangs(context: LogitsContext) -> None:
        freed.wait(TIMEOUT)

    rows = [{"f": in_place}, {"f": hangs}, {"f": None}, {"f": in_place}]
    results = biased.run_batch(rows, runtime=runtime)
    freed.set()
    assert [type(each.error and each.error.__cause__) for each in results] == [
        type(None), LogitsError, type(None), type(None)
    ]  # fmt: skip
    assert "ran longer than 0.2 s" in str(results[1].error)
    assert results[0]["x"] == results[3]["x"]


# ---- files, backends, keywords


def wants_z(context: LogitsContext) -> None:
    context.logits[ord("z")] += 1000.0


def test_replays_hold_biases_and_ask_for_functions(runtime: Any, tmp_path: Path) -> None:
    @radixlang.function
    def plain(s: radixlang.State) -> None:
        s += "The theatre" + gen("x", max_tokens=5, heal=False)

    state = plain.run(runtime=runtime, logit_bias={5: 1.0, "a": -2.0}, logits=wants_z)
    path = tmp_path / "run.json"
    radixlang.save_replay(state, path)
    with pytest.raises(ParameterError, match=r"logits=wants_z, a function"):
        radixlang.verify_replay(plain, path, runtime=runtime)
    replayed = radixlang.verify_replay(plain, path, runtime=runtime, logits=wants_z)
    assert replayed.difference is None
    assert replayed.state["x"] == state["x"]
    other = radixlang.verify_replay(plain, path, runtime=runtime, logits=None)
    assert other.difference is not None


def test_a_backend_without_logits_refuses_by_name() -> None:
    fake = FakeBackend(model_name="scripted")
    with pytest.raises(ProgramError, match=r"gen\(logits=…\) needs .* 'scripted' is a scripted"):
        biased.run(f=in_place, runtime=fake)
    with pytest.raises(ProgramError, match=r"gen\(logit_bias=…\) needs a model's logits"):
        biased.run(bias={"a": 1.0}, runtime=fake)

    @radixlang.function
    def peeks(s: radixlang.State) -> None:
        s += "Once"
        with pytest.raises(ParameterError, match="next_token needs a model's logits"):
            s.next_token()
        s += gen("x")

    assert peeks.run(runtime=fake)["x"]
    assert fake.audit() == []


def test_templates_take_both_as_arguments(runtime: Any) -> None:
    program = radixlang.template(
        "The theatre{{ gen x, logit_bias=bias, logits=f, max_tokens=3, temperature=0, heal=false }}"
    )
    ban = {"e": 100.0}
    assert program.run(bias=ban, f=None, runtime=runtime)["x"] == "eee"
