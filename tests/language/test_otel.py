"""Runs as spans: what an exporter of OpenTelemetry receives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import StatusCode

from radixlang import State, assistant, function, gen, otel, select, user
from radixlang.errors import ProgramError, RequestError

Make = Callable[..., Any]
Spans = dict[str, ReadableSpan]


class Collected:
    """A tracer provider, and the spans that it has been given."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def by_name(self) -> Spans:
        return {span.name: span for span in self.spans()}


@pytest.fixture
def collected() -> Iterator[Collected]:
    found = Collected()
    with otel.export_runs(found.provider):
        yield found


@function
def judge(s: State, text: str = "a text") -> None:
    s += user(f"Judge {text}") + assistant(gen("view", max_tokens=7, temperature=0.5, stop="\n"))
    with s.fork(2) as group:
        group += lambda i: user(f"Part {i}") + assistant(gen("part"))
    s += select("verdict", ["good", "bad"])


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_run_is_a_span_with_its_generations_below(fake: Make, collected: Collected) -> None:
    judge(runtime=fake(lambda p, q: "good, really"), seed=3)
    *below, whole = collected.spans()
    assert whole.name == "invoke_workflow judge"
    assert sorted(span.name for span in below) == [
        "chat part", "chat part", "chat view", "select verdict"]  # fmt: skip
    assert whole.parent is None
    for span in below:
        assert span.parent is not None
        assert span.parent.span_id == whole.context.span_id
        assert whole.start_time <= span.start_time <= span.end_time <= whole.end_time
    assert attributes(whole)["gen_ai.workflow.name"] == "judge"
    assert attributes(whole)["radixlang.seed"] == "3"


def test_a_generation_tells_model_usage_and_reason(fake: Make, collected: Collected) -> None:
    state = judge(runtime=fake(lambda p, q: "good, really"))
    found = attributes(collected.by_name()["chat view"])
    usage = state.usage("view")
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "radixlang",
        "gen_ai.request.model": "fake",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stop_sequences": ("\n",),
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": usage.num_prompt_tokens,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": usage.num_cached_tokens,
        "radixlang.branch": "trunk",
        "radixlang.variable": "view",
    }
    assert {name: found.get(name) for name in expected} == expected
    select = attributes(collected.by_name()["select verdict"])
    assert select["radixlang.options"] == ("good", "bad")


def test_names_are_those_of_the_conventions(fake: Make, collected: Collected) -> None:
    judge(runtime=fake(lambda p, q: "good, really", delay=0.001))
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI")}
    names = {name for span in collected.spans() for name in attributes(span)}
    assert {name for name in names if name.startswith("gen_ai.")} <= known
    assert all(name.startswith(("gen_ai.", "radixlang.")) for name in names)


def test_texts_are_exported_only_where_that_is_wanted(fake: Make) -> None:
    for content in (False, True):
        collected = Collected()
        with otel.export_runs(collected.provider, content=content):
            judge(runtime=fake(lambda p, q: "good, really"))
        found = [attributes(span) for span in collected.spans()]
        assert any("gen_ai.input.messages" in each for each in found) is content
        assert ("Judge a text" in repr(found)) is content
    part = next(each for each in found if each["radixlang.branch"] == "branch 1")
    turns = json.loads(part["gen_ai.input.messages"])
    assert [(turn["role"], turn["parts"][0]["content"]) for turn in turns] == [
        ("user", "Judge a text"), ("assistant", "good, r"), ("user", "Part 1")]  # fmt: skip
    (answer,) = json.loads(part["gen_ai.output.messages"])
    assert answer["parts"] == [{"type": "text", "content": "good, really"}]
    assert answer["finish_reason"] == "eos"


def test_failures_are_told_where_they_happened(fake: Make, collected: Collected) -> None:
    def answer(prompt: str, _: Any) -> Any:
        return RequestError("out of tea") if "Part 1" in prompt else "fine"

    with pytest.raises(ProgramError):
        judge(runtime=fake(answer))
    failed = [span for span in collected.spans() if span.status.status_code is StatusCode.ERROR]
    assert sorted(span.name for span in failed) == ["chat part", "invoke_workflow judge"]
    for span in failed:
        assert attributes(span)["error.type"] == "RequestError"
        assert span.status.description == "RequestError: out of tea"


def test_a_run_lies_below_the_callers_own_span(fake: Make, collected: Collected) -> None:
    tracer = collected.provider.get_tracer("test")
    with tracer.start_as_current_span("mine") as mine:
        judge(runtime=fake(lambda p, q: "fine"))
        judge.run_batch([{"text": "a"}, {"text": "b"}], runtime=fake(lambda p, q: "fine"))
    runs = [span for span in collected.spans() if span.name.startswith("invoke_workflow")]
    assert [span.parent and span.parent.span_id for span in runs] == [mine.context.span_id] * 3


def test_text_outside_of_turns_is_a_completion(fake: Make, collected: Collected) -> None:
    @function
    def plain(s: State) -> None:
        s += "Once upon" + gen("x")

    plain(runtime=fake(["a time"]))
    assert "text_completion x" in collected.by_name()


def test_radixlang_imports_without_opentelemetry() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import radixlang, radixlang.otel\n"
        "try: radixlang.otel.export_runs()\n"
        "except radixlang.ParameterError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'radixlang[otel]'" in told.stdout
