"""Runs as OpenTelemetry spans, named by the GenAI semantic conventions (`radixlang[otel]`).

    import radixlang.otel

    radixlang.otel.export_runs()        # every run from here on, to the global tracer provider

Each run is a span, with a child span for each generation and select: model, tokens, finish reason
and error, which Phoenix, Langfuse and other readers of these conventions show. A run's span is a
child of the caller's current span, if there is one. Spans are made when the run has ended, from
times that it recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from radixlang.errors import ParameterError
from radixlang.execution.pieces import Cell, TurnMark, piece_text
from radixlang.execution.run import Run
from radixlang.protocol import Markup, Message
from radixlang.state.listeners import Subscription, on_run
from radixlang.views.trace import Failure, Lane, Trace, Value
from radixlang.views.trace_builder import trace_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from radixlang.state.state import State

_PROVIDER = "radixlang"
_PARAMETERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}

Attribute: TypeAlias = "tuple[str, AttributeValue]"
Attributes: TypeAlias = "dict[str, AttributeValue]"


def export_runs(
    tracer_provider: TracerProvider | None = None, *, content: bool = False
) -> Subscription:
    """Make spans of every run of this process, until the subscription is stopped.

    Args:
        tracer_provider: an OpenTelemetry TracerProvider; None takes the global one.
        content: also export prompts and answers; by the conventions that is the user's choice.

    Raises:
        ParameterError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import trace
    except ModuleNotFoundError as error:
        raise ParameterError(
            "OpenTelemetry is not installed; pip install 'radixlang[otel]'"
        ) from error
    import radixlang

    tracer = trace.get_tracer("radixlang", radixlang.__version__, tracer_provider)
    exporter = _Exporter(tracer, content)
    return on_run(exporter.export)


class _Exporter:
    def __init__(self, tracer: Tracer, content: bool) -> None:
        self._tracer, self._content = tracer, content

    def export(self, state: State) -> None:
        """Make the spans of a finished run."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        run = state._run()
        trace = trace_of(run)
        whole = self._tracer.start_span(
            f"invoke_workflow {trace.name}", kind=SpanKind.INTERNAL,
            start_time=_nanoseconds(trace, 0.0), attributes=_run_attributes(trace),
        )  # fmt: skip
        below = set_span_in_context(whole)
        for lane, value in trace.values():
            if value.start_s is None or value.end_s is None:
                continue
            span = self._tracer.start_span(
                f"{_operation(value)} {value.name or trace.model_name}", below,
                SpanKind.INTERNAL, self._attributes(run, trace, lane, value),
                start_time=_nanoseconds(trace, value.start_s),
            )  # fmt: skip
            _set_status(span, value.failure)
            span.end(_nanoseconds(trace, value.end_s))
        _set_status(whole, trace.failure)
        whole.end(_nanoseconds(trace, trace.seconds))

    def _attributes(
        self, run: Run, trace: Trace, lane: Lane, value: Value
    ) -> Mapping[str, AttributeValue]:
        found = dict(_value_attributes(trace, lane, value))
        if self._content:
            found["gen_ai.input.messages"] = _as_json(_prompt_of(run, lane, value))
            answer = [Message("assistant", value.text)]
            found["gen_ai.output.messages"] = _as_json(answer, value.finish_reason)
        return found


def _nanoseconds(trace: Trace, seconds: float) -> int:
    """Nanoseconds since the epoch, from seconds since the run began."""
    return int((trace.started_at + seconds) * 1e9)


def _run_attributes(trace: Trace) -> Attributes:
    return {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": trace.name,
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": trace.model_name,
        "radixlang.seed": str(trace.seed),
        "radixlang.num_branches": len(trace.lanes),
        **_error(trace.failure),
    }


def _value_attributes(trace: Trace, lane: Lane, value: Value) -> Iterator[Attribute]:
    yield "gen_ai.operation.name", _operation(value)
    yield "gen_ai.provider.name", _PROVIDER
    yield "gen_ai.request.model", trace.model_name
    yield "gen_ai.response.model", trace.model_name
    yield "radixlang.branch", lane.label
    if value.name:
        yield "radixlang.variable", value.name
    if value.location:
        yield "radixlang.source", value.location
    if value.choice is not None:
        yield "radixlang.options", value.choice.options
        yield "radixlang.probabilities", value.choice.probabilities
    yield from _error(value.failure).items()
    yield from _request(value)
    yield from _response(value)


def _request(value: Value) -> Iterator[Attribute]:
    params = value.params
    if params is None:
        return
    for name, attribute in _PARAMETERS.items():
        given = getattr(params, name)
        if given is not None:
            yield attribute, given
    if params.stop:
        yield "gen_ai.request.stop_sequences", tuple(params.stop)


def _response(value: Value) -> Iterator[Attribute]:
    if value.finish_reason:
        yield "gen_ai.response.finish_reasons", (value.finish_reason,)
    if value.first_s is not None and value.start_s is not None:
        yield "gen_ai.response.time_to_first_chunk", value.first_s - value.start_s
    usage = value.usage
    if usage is not None:
        yield "gen_ai.usage.input_tokens", usage.num_prompt_tokens
        yield "gen_ai.usage.output_tokens", usage.num_generated_tokens
        yield "gen_ai.usage.cache_read.input_tokens", usage.num_cached_tokens


def _operation(value: Value) -> str:
    """The conventions' name of the operation; they have none for a select, which writes nothing."""
    if value.kind == "select":
        return "select"
    return "chat" if value.is_in_turn else "text_completion"


def _error(failure: Failure | None) -> Attributes:
    return {} if failure is None else {"error.type": failure.kind}


def _set_status(span: Span, failure: Failure | None) -> None:
    from opentelemetry.trace import Status, StatusCode

    if failure is not None:
        span.set_status(Status(StatusCode.ERROR, f"{failure.kind}: {failure.message}"))


def _prompt_of(run: Run, lane: Lane, value: Value) -> list[Message]:
    """The turns before a value; text outside of turns counts as the user's."""
    own = run.cells.get((lane.id << 24) | value.slot)
    found, role, texts = list[Message](), "user", list[str]()
    for piece in run.streams[lane.id].history():
        if isinstance(piece, Cell) and piece is own:
            break
        if isinstance(piece, TurnMark):
            found += _message(role, texts)
            role, texts = (piece.role if piece.begins else "user"), []
        elif not isinstance(piece, Markup):
            texts.append(piece_text(piece))
    return found + _message(role, texts)


def _message(role: str, texts: list[str]) -> list[Message]:
    text = "".join(texts)
    return [Message(role, text)] if text else []


def _as_json(messages: list[Message], finish_reason: str = "") -> str:
    ended = {"finish_reason": finish_reason} if finish_reason else {}
    return json.dumps([
        {"role": each.role, "parts": [{"type": "text", "content": each.content}], **ended}
        for each in messages
    ])  # fmt: skip
