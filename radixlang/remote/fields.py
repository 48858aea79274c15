"""What a generation asks for, as fields of a request; what an endpoint lacks is refused by name."""

from __future__ import annotations

import json
import math

from radixlang.attention import EXACT
from radixlang.constraints.specs import Choices, Grammar, JsonSchema, Regex
from radixlang.errors import ParameterError, UnsupportedConstraintError
from radixlang.json_types import JsonBody
from radixlang.remote.abilities import BEYOND_OPENAI, Abilities
from radixlang.sampling_params import SamplingParams

_PLAIN = SamplingParams()


def sampling_fields(params: SamplingParams, able: Abilities) -> JsonBody:
    """Sampling parameters as fields.

    Raises:
        ParameterError: one of them is not the endpoint's.
    """
    found: JsonBody = {
        "max_tokens": params.max_tokens, "temperature": params.temperature, "top_p": params.top_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
    }  # fmt: skip
    if params.stop:
        found["stop"] = list(params.stop)
    if params.seed is not None:
        found["seed"] = params.seed if able.tokens else params.seed % 2**31
    for name in BEYOND_OPENAI:
        value = getattr(params, name)
        if value != getattr(_PLAIN, name):
            _require(able.sampling, name, able)
            found[name] = list(value) if isinstance(value, tuple) else value
    if params.stop_regex:
        _require(able.tokens, "stop_regex", able)
        found["stop_regex"] = list(params.stop_regex)
    if params.logits is not None:
        raise ParameterError("logits= is not possible here: logits do not leave a server")
    if params.attention not in (None, EXACT):
        raise ParameterError(
            f"attention={params.attention} is not possible here: a server chooses how it attends"
        )
    if params.logit_bias:
        found["logit_bias"] = _bias(params)
    return found


def _require(is_able: bool, name: str, able: Abilities) -> None:
    if not is_able:
        raise ParameterError(f"{name} is not possible here: {able.kind} does not have it")


def _bias(params: SamplingParams) -> dict[str, float]:
    found = {}
    for token, value in params.logit_bias:
        if isinstance(token, str):
            raise ParameterError(
                f"logit_bias by the text {token!r} is not possible here: give token ids"
            )
        found[str(token)] = -100.0 if value == -math.inf else value
    return found


def constraint_fields(spec: object, able: Abilities) -> JsonBody:
    """A constraint as fields; None is none.

    Raises:
        UnsupportedConstraintError: it is not the endpoint's.
    """
    if spec is None:
        return {}
    if getattr(spec, "finish", "error") != "error":
        raise UnsupportedConstraintError(
            "finish='close' is not possible on a server: it cannot close a text that was cut off"
        )
    if isinstance(spec, JsonSchema):
        return _schema_fields(spec, able)
    if not able.constraints:
        raise UnsupportedConstraintError(
            f"{able.kind} enforces JSON schemas only, not a {type(spec).__name__}"
        )
    match spec:
        case Regex():
            return {"structured_outputs": {"regex": spec.pattern}}
        case Choices():
            return {"structured_outputs": {"choice": list(spec.options)}}
        case Grammar() if spec == Grammar(spec.text):
            return {"structured_outputs": {"grammar": spec.text}}
    raise UnsupportedConstraintError(
        f"a {type(spec).__name__} with these options cannot be sent to a server; "
        "regexes, choices, JSON schemas and plain grammars can"
    )


def _schema_fields(spec: JsonSchema, able: Abilities) -> JsonBody:
    schema = json.loads(spec.schema)
    if able.tokens and spec.strict:
        return {"structured_outputs": {"json": schema, "whitespace": spec.whitespace}}
    if able.constraints and isinstance(schema, dict) and spec.strict:
        return {"structured_outputs": {"json": schema}}
    inner = {"name": "answer", "schema": schema, "strict": spec.strict}
    return {"response_format": {"type": "json_schema", "json_schema": inner}}
