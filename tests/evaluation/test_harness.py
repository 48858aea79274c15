"""lm-evaluation-harness's model: the same numbers as its own `hf`, each shared token once."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from radixlang.errors import ParameterError
from radixlang.evaluation import harness
from radixlang.evaluation.scoring import ScoreRequest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
ROOT = Path(__file__).resolve().parents[2]
Asked = Callable[..., list[Any]]
SHOTS = "The town sleeps. The moon plays.\n"
PAIRS = [
    ("Paris is the capital", " of France"),
    ("Paris is the capital", " of Italy, and the moon"),
    ("Paris is the capital of ", "France"),  # the blank belongs to the continuation
    ("Paris is the capital\n", "\nRome"),
    ("The thea", "tre plays, 10 times 🌔"),  # a token would span the boundary
    ("The moon is ", "🌔 and ☃"),  # bytes
    ("🌔", "🌔"),
    ("", "The town"),
    ("", "<s>The town"),
    ("<s>The town", " sleeps"),
    ("<|im_start|>user\nThe town<|im_end|>\n", " sleeps"),
    (SHOTS * 2 + "The north", " plays"),
    (SHOTS * 2 + "The north", " sleeps every night"),
    (SHOTS * 16 + "The north", " sleeps every night"),  # longer than the model reads
]


def close(ours: list[tuple[float, bool]], theirs: list[tuple[float, bool]]) -> None:
    assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], abs=1e-4)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


def test_log_probabilities_are_those_of_hf(ours: Any, theirs: Any, asked: Asked) -> None:
    found = ours.loglikelihood(asked(*PAIRS), disable_tqdm=True)
    # `hf` in one call mixes up requests whose tokens are the same and cut at other places
    expected = [theirs.loglikelihood(asked(pair), disable_tqdm=True)[0] for pair in PAIRS]
    close(found, expected)


def test_what_is_cached_changes_no_number(ours: Any, asked: Asked) -> None:
    """A cached prompt has no logits of its own tokens; they are computed where they are asked."""
    cold = ours.loglikelihood(asked(*PAIRS), disable_tqdm=True)
    ours.generate_until(
        asked(*((a + b, {"max_gen_toks": 2}) for a, b in PAIRS[:5])), disable_tqdm=True
    )
    close(ours.loglikelihood(asked(*PAIRS), disable_tqdm=True), cold)
    for pair, expected in zip(PAIRS, cold, strict=True):
        close(ours.loglikelihood(asked(pair), disable_tqdm=True), [expected])


def test_each_shared_token_is_computed_once(ours: Any, asked: Asked) -> None:
    questions = [SHOTS + text for text in ("The north", "The morning", "The north of Italy")]
    choices = (" sleeps", " plays every night", " plays every morning", " is the moon")
    pairs = [(question, choice) for question in questions for choice in choices]
    ours.runtime.flush_cache()
    ours.runtime.reset_stats()
    ours.loglikelihood(asked(*pairs), disable_tqdm=True)
    rows = []
    for context, choice in pairs:
        rows.append(ours.tok_encode(context + choice)[:-1])
    unique = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}
    assert ours.runtime.stats().num_computed_tokens == len(unique)
    assert len(unique) < sum(map(len, rows)) / 4


def test_logits_are_computed_where_a_continuation_is_predicted_alone(
    ours: Any, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others ask them from a prompt's first token on."""
    rows: list[int] = []
    model = ours.runtime.core.runner.model
    logits = model.logits

    def counted(hidden: Any) -> Any:
        rows.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(model, "logits", counted)
    pairs = [(SHOTS * 2 + "The north", choice) for choice in (" sleeps", " plays every night")]
    ours.loglikelihood(asked(*pairs), disable_tqdm=True)
    contexts = [ours._encoded(ours.tok_encode, *pair) for pair in pairs]
    predicted = {each.context + each.continuation[:at] for each in contexts
                 for at in range(len(each.continuation))}  # fmt: skip
    assert sum(rows) == len(predicted)


def test_a_continuation_of_no_tokens_is_certain(ours: Any, asked: Asked) -> None:
    found = ours.loglikelihood(asked(("The town", ""), ("", ""), ("The town ", "")), True)
    assert found[0] == found[1] == (0.0, True)
    assert found[2][0] < 0  # the blank is scored


def test_a_continuation_that_merges_into_the_context_is_scored(ours: Any, asked: Asked) -> None:
    """Its end has no tokens beyond as many as the context has, at which `hf` fails."""
    cuts = [(word[:at], word[at:]) for word in ("Paris", " theatre", "The town", " sleeps", "Italy")
            for at in range(2, len(word))]  # fmt: skip
    context, continuation = next(
        (a, b) for a, b in cuts if len(ours.tok_encode(a)) >= len(ours.tok_encode(a + b))
    )
    whole = ours.tok_encode(context + continuation)
    (found,) = ours.loglikelihood(asked((context, continuation)), True)
    request = ours._encoded(ours.tok_encode, context, continuation)
    together = list(request.context + request.continuation)
    assert together[-len(whole) :] == whole
    assert together[: -len(whole)] in ([], [ours.prefix_token_id])
    close([found], ours._scores([request], True))
    assert found[0] < 0


def test_a_context_of_blanks_counts_as_none(ours: Any, asked: Asked) -> None:
    """It has no tokens of its own, at which `hf` fails."""
    blank, none = ours.loglikelihood(asked(("  ", "The town"), ("", "  The town")), True)
    assert blank == none
    assert blank[0] < 0


def test_a_request_without_context_is_refused_by_name(ours: Any) -> None:
    with pytest.raises(ParameterError, match="context of no tokens"):
        ours._loglikelihood_tokens([(("", "a"), [], [5])], disable_tqdm=True)


def test_a_long_continuation_is_refused(ours: Any, asked: Asked) -> None:
    with pytest.raises(ParameterError, match="loglikelihood_rolling"):
        ours.loglikelihood(asked(("The", " town" * 130)), disable_tqdm=True)


def test_cutting_is_said_aloud(ours: Any, asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "radixlang.evaluation"):
        ours.loglikelihood(asked(*PAIRS[:4]), disable_tqdm=True)
        assert not caplog.records
        ours.loglikelihood(asked(*PAIRS), disable_tqdm=True)
        ours.generate_until(asked((SHOTS * 20, {"max_gen_toks": 4})), disable_tqdm=True)
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "1 of 14 contexts were too long for the model's 128 tokens and were cut on the left",
        "1 of 1 contexts were too long for the model's 128 tokens and were cut on the left",
    ]


def test_whole_texts_are_scored_in_the_windows_of_hf(ours: Any, theirs: Any, asked: Asked) -> None:
    texts = [SHOTS * 20, SHOTS, "", "🌔", "The moon of nothing at all."]
    found = ours.loglikelihood_rolling(asked(*texts), disable_tqdm=True)
    expected = theirs.loglikelihood_rolling(asked(*texts), disable_tqdm=True)
    assert found == pytest.approx(expected, abs=1e-4 * 100)
    assert found[2] == expected[2]


def test_generated_texts_are_those_of_hf(ours: Any, theirs: Any, asked: Asked) -> None:
    options: dict[str, Any] = {"until": ["e", "\n\n"], "max_gen_toks": 12, "do_sample": False}
    contexts = [SHOTS, SHOTS + "The north", "Paris", SHOTS * 20, "<s>Paris"]
    requests = [(context, dict(options)) for context in contexts]
    requests += [(context, {"max_gen_toks": 6}) for context in contexts[:2]]
    found = ours.generate_until(asked(*requests), disable_tqdm=True)
    for text, request in zip(found, requests, strict=True):
        (expected,) = theirs.generate_until(asked(request), disable_tqdm=True)
        length = min(text.find("\ufffd") % 99, expected.find("\ufffd") % 99)
        assert text[:length] == expected[:length]  # up to bytes that are no character
    assert all("e" not in text for text in found[:5])
    assert any(found)


def test_samples_differ_by_request_and_repeat_by_seed(ours: Any, asked: Asked) -> None:
    options = {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "max_gen_toks": 8}
    requests = asked(*[(SHOTS, options)] * 3)
    first = ours.generate_until(requests, disable_tqdm=True)
    assert len(set(first)) == 3
    assert ours.generate_until(requests, disable_tqdm=True) == first


def test_options_that_are_not_ours_are_named(
    ours: Any, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    harness._warn_of_unused.cache_clear()
    with caplog.at_level(logging.WARNING, "radixlang.evaluation"):
        ours.generate_until(asked((SHOTS, {"num_beams": 4, "max_gen_toks": 2})), disable_tqdm=True)
    assert "num_beams" in caplog.text
    with pytest.raises(ParameterError, match="leaves no room"):
        ours.generate_until(asked((SHOTS, {"max_gen_toks": 128})), disable_tqdm=True)


def test_chats_are_rendered_as_by_hf(ours: Any, theirs: Any) -> None:
    chat = [{"role": "user", "content": "Where is Rome?"}]
    assert ours.apply_chat_template(chat) == theirs.apply_chat_template(chat)
    assert "Be kind." in ours.apply_chat_template(chat)
    opened = [*chat, {"role": "assistant", "content": "It is in"}]
    assert ours.apply_chat_template(opened, add_generation_prompt=False) == (
        theirs.apply_chat_template(opened, add_generation_prompt=False)
    )
    assert ours.chat_template(True) == theirs.chat_template(True)
    assert ours.chat_template(False) is None


def test_tokens_are_those_of_hf(ours: Any, theirs: Any) -> None:
    for text in ("The town", "<s>The town", "<|im_start|>user\n", " 🌔 ", "", "  x"):
        assert ours.tok_encode(text) == theirs.tok_encode(text)
        plain = theirs.tok_encode(text, add_special_tokens=False)
        assert ours.tok_encode(text, add_special_tokens=False) == plain
    assert ours.prefix_token_id == theirs.prefix_token_id
    assert ours.eot_token_id == theirs.eot_token_id
    assert ours.max_length == theirs.max_length


def test_an_error_leaves_nothing_behind(ours: Any, asked: Asked) -> None:
    """The fixture audits branches and pages at the end."""

    def fail(*_: object) -> None:
        raise RuntimeError("the disk is full")

    ours.cache_hook.add_partial = fail
    with pytest.raises(RuntimeError, match="disk"):
        ours.generate_until(
            asked(*((f"{SHOTS} {i}", {"max_gen_toks": 8}) for i in range(20))), disable_tqdm=True
        )
    assert ours._scores([ScoreRequest((5, 6), (7,))], True)[0][0] < 0


def test_the_entry_point_names_the_model() -> None:
    table = __import__("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(
        (ROOT / "pyproject.toml").read_text("utf-8")
    )
    points = table["project"]["entry-points"]["lm_eval.models"]
    (name, value), = points.items()  # fmt: skip
    model = EntryPoint(name, value, "lm_eval.models").load()
    from lm_eval.api.registry import get_model

    assert get_model("radixlang") is model


def test_options_of_an_open_runtime_are_refused(ours: Any) -> None:
    from radixlang.evaluation.harness import RadixLM

    with pytest.raises(ParameterError, match="device"):
        RadixLM(ours.runtime, device="cpu")


def test_without_the_harness_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['lm_eval.api.model'] = None\n"
        "import radixlang.evaluation\n"
        "try:\n    import radixlang.evaluation.harness\nexcept ImportError as error:\n"
        "    print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'radixlang[eval]'" in told.stdout
