"""The context of node handlers: the settings of a run, and the loop that drives its streams."""

from __future__ import annotations

import hashlib
import secrets
import weakref
from collections.abc import Mapping
from typing import Any

from radixlang.errors import ParameterError
from radixlang.execution.branch_run import Stream
from radixlang.execution.handlers.token_budget import Budget
from radixlang.execution.handlers.turn_text import KnownTexts, TurnText
from radixlang.execution.pieces import Cell
from radixlang.execution.run_loop import RunLoop
from radixlang.execution.run_options import RunOptions
from radixlang.graph.next_use import FutureUse, NodePosition
from radixlang.graph.nodes import Gen, Thought
from radixlang.protocol import Backend, Delta
from radixlang.sampling_params import SamplingParams


class NodeContext:
    """The settings of a run, and the data that its generations share.

    `constraints` are compiled ones by the id of their specification; `uses` says when the prompt
    at a node is read again, if the whole graph is known. `events` are the pieces of all
    generations in order of arrival, recorded once somebody reads them (`is_followed`).
    """

    def __init__(
        self, name: str, backend: Backend, options: RunOptions, loop: RunLoop, *,
        args: Mapping[str, object], constraints: Mapping[int, object] | None,
        uses: Mapping[NodePosition, FutureUse] | None,
    ) -> None:  # fmt: skip
        self.name, self.backend, self.options, self.loop = name, backend, options, loop
        self.args = args
        self.seed = secrets.randbits(63) if options.seed is None else options.seed
        self.chat = turn_text(backend)
        self.budget = Budget(options.max_total_tokens)
        self.constraints = dict(constraints or {})
        self.is_followed = False
        self.events: list[tuple[Cell, Delta]] = []
        self._uses = uses
        self._defaulted: dict[int, tuple[SamplingParams, SamplingParams]] = {}

    def params_for(self, stream: Stream, node: Gen) -> SamplingParams:
        """The node's parameters over the run's defaults, with the seed of this node."""
        params = node.params
        if self.options.defaults:
            known = self._defaulted.get(id(params))
            if known is None or known[0] is not params:
                # SamplingParams checks names and types
                given: dict[str, Any] = {**self.options.defaults, **dict(node.overrides)}
                merged = SamplingParams(**given)
                known = self._defaulted[id(params)] = (params, merged)
            params = known[1]
        root = self.seed if params.seed is None else params.seed
        params = params.with_seed(node_seed(root, stream.block.address, node.slot))
        if node.thought is None:
            return params
        closing = self.tags_of(node.thought)[1]
        return params.override(stop=tuple(dict.fromkeys((closing.rstrip(), closing.strip()))))

    def tags_of(self, thought: Thought) -> tuple[str, str]:
        """The texts that open and close a thought.

        Raises:
            ParameterError: none are given, and the model is not known to have any.
        """
        # a backend of others may have no such property
        tags = thought.tags or getattr(self.backend, "think_tags", None)
        if tags is None:
            raise ParameterError(
                f"the chat template of {self.backend.model_name!r} has no thinking tags that are "
                'known here; name them: gen(…, think=256, think_tags=("<think>", "</think>"))'
            )
        opening, closing = tags
        return str(opening), str(closing)

    def hint(self, stream: Stream) -> None:
        """Tell the backend when the prompt up to this node is read next, if the graph is static."""
        if self._uses is not None and stream.branch is not None:
            stream.branch.expect(self._uses[(stream.block.id, stream.pos)].next_in)

    def constraint_for(self, node: Gen) -> object:
        """The node's compiled constraint, or None."""
        return None if node.constraint is None else self.constraints[id(node.constraint)]

    def compile_constraint(self, node: Gen) -> None:
        """Compile the constraint of a node, unless it is compiled already."""
        spec = node.constraint
        if spec is not None and id(spec) not in self.constraints:
            self.constraints[id(spec)] = self.backend.compile_constraint(spec)


def node_seed(seed: int, address: str, slot: int, sample: int = 0) -> int:
    """The 64-bit key of one generation's random numbers: (seed, node path, sample)."""
    key = f"{seed}|{address}|{slot}|{sample}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


_turn_texts: weakref.WeakKeyDictionary[Backend, KnownTexts] = weakref.WeakKeyDictionary()


def turn_text(backend: Backend) -> TurnText:
    """The texts around turns of a backend; runs on it share those that are known.

    Only texts are kept here: a value that holds its backend would keep it for ever.
    """
    try:
        return TurnText(backend, _turn_texts.setdefault(backend, {}))
    except TypeError:  # a backend that allows no weak references
        return TurnText(backend, {})
