"""What kinds of servers can do, and what a program needs of one.

A server is known by the owner that it names in its list of models; of an unknown one only what
OpenAI's API promises is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from radixlang.attention import EXACT
from radixlang.graph.nodes import Adapt, Gen, Graph, RoleBegin, Select, Text
from radixlang.sampling_params import PARAM_NAMES

How = Literal["served", "emulated", "refused"]


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a kind of server can do.

    Attributes:
        tokens: it tokenises runs of text, takes and returns token ids: branches are exact.
        completions: it continues plain text.
        ids_in_logprobs: log-probabilities of a completion name tokens by id, if asked to.
        scores: it tells log-probabilities of a prompt of token ids, by id.
        constraints: regex, choices and grammars, in `structured_outputs`; JSON schemas alone are
            asked for by `response_format`.
        sampling: parameters beyond OpenAI's, such as top_k.
    """

    kind: str
    tokens: bool = False
    completions: bool = True
    ids_in_logprobs: bool = False
    scores: bool = False
    constraints: bool = False
    sampling: bool = False


KINDS = {
    "radixlang": Abilities("radixlang", tokens=True, ids_in_logprobs=True, scores=True,
                           constraints=True, sampling=True),
    "vllm": Abilities("vLLM", ids_in_logprobs=True, constraints=True, sampling=True),
    "sglang": Abilities("SGLang", sampling=True),
    "llamacpp": Abilities("llama.cpp", sampling=True),
}  # fmt: skip
OWNERS = {"me": "llamacpp"}  # what llama-cpp-python's server says
OPENAI = Abilities("OpenAI's API", completions=False)
_OPENAI_S = {"max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty", "stop",
             "seed", "logprobs", "top_logprobs"}  # fmt: skip
_BY_OWN_RULES = {"stop_regex", "heal", "logit_bias", "logits"}  # see fields.py
# parameters that `sampling` stands for: also those that are added some day
BEYOND_OPENAI = tuple(
    name for name in PARAM_NAMES if name not in _OPENAI_S and name not in _BY_OWN_RULES
)


def abilities_of(owner: str) -> Abilities:
    """The abilities of a server by the owner of its models."""
    name = owner.lower().replace("_", "").replace(".", "")
    return KINDS.get(OWNERS.get(name, name), OPENAI)


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a program does, how the endpoint comes to it, and why."""

    what: str
    how: How
    why: str

    def __str__(self) -> str:
        return f"{self.how:<9} {self.what}: {self.why}"


def needs_of(graph: Graph, able: Abilities) -> list[Need]:
    """What a traced program needs of an endpoint, without asking it."""
    found: dict[str, Need] = {}
    for need in _needs(graph, able):
        found.setdefault(need.what, need)
    return list(found.values())


def _needs(graph: Graph, able: Abilities) -> Iterable[Need]:
    nodes = [node for block in graph.blocks for node in block.nodes]
    has_roles = any(isinstance(node, RoleBegin) for node in nodes)
    if any(isinstance(node, Text) for node in nodes) and not has_roles and not able.completions:
        yield Need("plain text", "refused", f"{able.kind} takes conversations only")
    if len(graph.blocks) > 1:
        how: How = "served" if able.tokens else "emulated"
        yield Need("fork", how, "each branch sends its whole prompt; the server's own prefix cache "
                   "is what shares it")  # fmt: skip
    for node in nodes:
        if isinstance(node, Gen):
            yield from _needs_of_gen(node, able)
        elif isinstance(node, Select):
            how = "served" if able.scores else "refused"
            yield Need("select", how, "options are scored by the prompt's log-probabilities"
                       if able.scores else f"{able.kind} tells none of a prompt; use "
                       "gen(choices=…)")  # fmt: skip
        elif isinstance(node, Adapt):
            yield Need("adapter", "refused", "a request has the model it names")


def _needs_of_gen(node: Gen, able: Abilities) -> Iterable[Need]:
    constraint = node.constraint
    if constraint is not None:
        kind = type(constraint).__name__
        is_schema = kind == "JsonSchema"
        how: How = "served" if able.constraints or is_schema else "refused"
        field = "structured_outputs" if able.constraints else "response_format"
        why = f"sent as {field}" if how == "served" else f"{able.kind} has no {kind}"
        yield Need(f"gen under {kind}", how, why)
    if (node.params.logprobs or node.params.top_logprobs) and not able.ids_in_logprobs:
        yield Need("logprobs", "refused", f"{able.kind} names tokens by their text")
    if node.params.logits is not None:
        yield Need("logits=", "refused", "logits do not leave a server")
    if node.against is not None:
        yield Need("contrast", "refused", "logits do not leave a server")
    if node.params.attention not in (None, EXACT):
        yield Need("attention=", "refused", "a server chooses how it attends")
    extra = [name for name in BEYOND_OPENAI if dict(node.overrides).get(name) is not None]
    if extra and not able.sampling:
        yield Need(", ".join(extra), "refused", f"{able.kind} does not have it")
    if node.params.stop_regex:
        how = "served" if able.tokens else "refused"
        yield Need("stop_regex", how, "ours alone")
