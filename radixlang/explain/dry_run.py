"""A dry run of a graph, on a backend that only counts tokens.

The dry backend is an ordinary Backend: the same executor walks the same graph, every generation
has the most tokens that max_tokens and its constraint allow (or a given or measured number), and a
prefix trie counts shared tokens. With a tokenizer the counts of text are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from radixlang.errors import ParameterError
from radixlang.execution.handlers.node_context import node_seed
from radixlang.execution.pieces import Cell
from radixlang.execution.run import Run
from radixlang.execution.run_options import RunOptions
from radixlang.explain.explanation import Edge, Explanation
from radixlang.graph.nodes import (
    Answer,
    Block,
    Contrasted,
    Fork,
    Gen,
    Graph,
    Join,
    Node,
    Select,
    Text,
    copy_block,
    relinked,
)
from radixlang.graph.token_bounds import most_tokens
from radixlang.protocol import Completion, Message, Option, OptionScore, Usage
from radixlang.sampling_params import SamplingParams
from radixlang.testing import FakeBackend
from radixlang.testing.fake_branch import Plan
from radixlang.testing.fake_tokens import TextCodec

_FIRST_MADE_UP = 1 << 40  # from here on, token ids that no tokenizer has
_BYTES_PER_TOKEN = 4  # of English text; only without a tokenizer


def explain_graph(
    graph: Graph, tokenizer: object = None, *, lengths: Mapping[str, int] | None = None,
    chat: object = None, _cells: Mapping[tuple[int, int], Cell] | None = None,
) -> Explanation:  # fmt: skip
    """Predict tokens by edge, sharing and memory of a graph.

    Args:
        tokenizer: an object with encode(text), or a runtime; None counts 4 bytes a token.
        lengths: expected tokens of each variable's generations; others count with max_tokens, or
            with the longest text under their constraint if that is less.
        chat: an object with render_chat, which a runtime as `tokenizer` is too. None: ChatML.

    Raises:
        ParameterError: an argument of the graph is still open.
    """
    missing = graph.arguments()
    if missing:
        raise ParameterError(f"explain needs the argument {missing[0]!r} of {graph.name!r}")
    plain = _plain_graph(graph)
    backend = DryBackend(plain, tokenizer, lengths or {}, chat or tokenizer, _cells or {})
    backend.bound(graph)
    run = Run(graph.name, backend, RunOptions(seed=0), graph=plain).start()
    run.readers.wait(lambda: run.finished)
    if run.error is not None:
        raise run.error
    return backend.explanation(graph, tokenizer)


def _plain_graph(graph: Graph) -> Graph:
    """The graph without types, constraints and user functions, which change no count."""
    blocks = [copy_block(block) for block in graph.blocks]
    for block in blocks:
        block.nodes = [_plain_node(node) for node in block.nodes]
    return relinked(graph.name, blocks)


def _plain_node(node: Node) -> Node:
    if isinstance(node, Gen):
        return replace(node, constraint=None, output=None)
    if isinstance(node, Select):
        return replace(node, scorer="likelihood")
    if isinstance(node, Join) and node.mode == "reduce":
        return replace(node, mode="list", reducer=None)
    return node


class _ByteGroups:
    """Counts groups of bytes as tokens; cutting a text may change the count by one token."""

    def encode(self, text: str) -> list[int]:
        data = text.encode("utf-8", "surrogatepass")
        step = _BYTES_PER_TOKEN
        return [int.from_bytes(data[at : at + step], "big") for at in range(0, len(data), step)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""


class DryBackend(FakeBackend):
    """A Backend that generates new token ids, as many as predicted."""

    only_counts = True

    def __init__(
        self, graph: Graph, tokenizer: object, lengths: Mapping[str, int], chat: object,
        cells: Mapping[tuple[int, int], Cell],
    ) -> None:  # fmt: skip
        super().__init__(tokens=tokenizer or _ByteGroups(), model_name="dry run")
        self.think_tags = getattr(chat, "think_tags", None) or self.think_tags
        self._graph, self._lengths, self._chat, self._cells = graph, lengths, chat, cells
        self._by_seed: dict[int | None, tuple[Block, Gen]] = {
            node_seed(0 if node.params.seed is None else node.params.seed, block.address,
                      node.slot): (block, node)
            for block, node in graph.walk() if isinstance(node, Gen)
        }  # fmt: skip
        self._bounds: dict[tuple[int, int], int] = {}
        self._next_id = _FIRST_MADE_UP
        self._ends: dict[int, int] = {}
        self._partners: dict[tuple[int, ...], int] = {}  # blocks that take part, by the tokens
        self._generated: dict[tuple[int, int], int] = {}

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids; a word for each that was made up."""
        if any(token_id >= _FIRST_MADE_UP for token_id in token_ids):
            return " word" * len(token_ids)
        return super().decode(token_ids)

    def bound(self, graph: Graph) -> None:
        """Bound each generation by the longest text of its constraint, if there is one."""

        def count(text: str) -> int:
            return len(self.codec.encode_run([text], at_start=False))

        longest: dict[object, int | None] = {}
        for block, node in graph.walk():
            if isinstance(node, Gen) and node.constraint is not None:
                if node.constraint not in longest:
                    longest[node.constraint] = most_tokens(node.constraint, count)
                most = longest[node.constraint]
                if most is not None:
                    self._bounds[(block.id, node.slot)] = most

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The template of the given runtime, or ChatML."""
        render = getattr(self._chat, "render_chat", None)
        if render is None:
            return super().render_chat(messages, add_generation_prompt=add_generation_prompt)
        return str(render(messages, add_generation_prompt=add_generation_prompt))

    def answer(
        self, namespace: str, prompt: list[int], params: SamplingParams, constraint: object
    ) -> Plan:
        """The predicted number of made-up tokens, or the measured answer."""
        block, node = self._by_seed[params.seed]
        completion = self._completion(block, node, params)
        cached = self._trie(namespace).insert(prompt)
        usage = Usage(len(prompt), cached, len(prompt) - cached, len(completion.token_ids))
        self._ends[block.id] = len(prompt) + len(completion.token_ids)
        self._generated[(block.id, node.slot)] = len(completion.token_ids)
        if node.against is not None:
            self._partners[completion.token_ids] = node.against.block
        return Plan([], replace(completion, usage=usage), None)

    def take_part(self, namespace: str, prompt: list[int], completion: Completion) -> None:
        """Count the prompt of the other branch of a contrast."""
        super().take_part(namespace, prompt, completion)
        block = self._partners[completion.token_ids]
        self._ends[block] = len(prompt) + len(completion.token_ids)

    def _completion(self, block: Block, node: Gen, params: SamplingParams) -> Completion:
        cell = self._cells.get((block.id, node.slot))
        if cell is not None and cell.completion is not None:
            return cell.completion
        most = min(params.max_tokens, self._bounds.get((block.id, node.slot), params.max_tokens))
        length = self._lengths.get(node.name or "", most)
        ids = tuple(range(self._next_id, self._next_id + length))
        self._next_id += length
        return Completion(" word" * length, ids, "length")

    def score_options(
        self, namespace: str, prompt: list[int], options: Sequence[Option], num_top: int = 0
    ) -> list[OptionScore]:
        """The measured option, or the longest, which is the most a select can cost."""
        self._trie(namespace).insert(prompt)
        chosen = {cell.choice.text for cell in self._cells.values() if cell.choice is not None}
        found = []
        for option in options:
            text, ids = self.text_and_ids(option)
            best = text in chosen if chosen else len(ids)
            found.append(OptionScore(text, ids, (float(best),) * max(1, len(ids))))
        return found

    def explanation(self, graph: Graph, tokenizer: object) -> Explanation:
        """The counts of the dry run."""
        stats = self.stats()
        return Explanation(
            program=graph.name,
            edges=tuple(_edges(graph, self.codec, self._generated)),
            num_generations=len(self._generated),
            num_prompt_tokens=stats.num_prompt_tokens,
            num_shared_tokens=stats.num_cached_tokens,
            num_unique_tokens=stats.num_computed_tokens,
            num_generated_tokens=stats.num_generated_tokens,
            peak_kv_tokens=sum(trie.num_tokens for trie in self._tries.values()),
            unshared_kv_tokens=sum(self._ends.values()),
            is_exact=tokenizer is not None,
            boundary=graph.first_dynamic(),
            graph=graph,
            codec=tokenizer,
        )


def _edges(graph: Graph, codec: TextCodec, generated: Mapping[tuple[int, int], int]) -> list[Edge]:
    from radixlang.graph.next_use import future_uses
    from radixlang.graph.passes import merge_text

    merged = merge_text(graph)
    uses = future_uses(merged)
    edges = []
    for block in merged.blocks:
        for index, node in enumerate(block.nodes):
            readers = uses[(block.id, index)].num_generations
            if isinstance(node, Text):
                edges.append(_text_edge(block, node, codec, readers))
            elif isinstance(node, Fork) and node.prefix:
                text = "".join(part for part in node.prefix if isinstance(part, str))
                count = len(codec.encode_run([text], at_start=False))
                edges.append(Edge(block.path, "fork", _label(text), count, readers, node.location))
            elif isinstance(node, Answer) and not node.keep:
                count = generated.get((node.child, node.slot), 0)
                label = f"{node.name or 'answer'} without its thought"
                edges.append(Edge(block.path, "text", label, count, readers, node.location))
            elif isinstance(node, Contrasted):
                count = generated.get((node.block, node.slot), 0)
                label = f"{node.name or 'unnamed'}, takes part"
                edges.append(Edge(block.path, "gen", label, count, readers, node.location))
            elif isinstance(node, Gen):
                count = generated.get((block.id, node.slot), 0)
                edges.append(
                    Edge(block.path, "gen", node.name or "", count, readers, node.location)
                )
    return edges


def _text_edge(block: Block, node: Text, codec: TextCodec, readers: int) -> Edge:
    texts = [part for part in node.parts if isinstance(part, str)]
    count = len(codec.encode_run(texts, at_start=False))
    return Edge(block.path, "text", _label("…".join(texts)), count, readers, node.location)


def _label(text: str, width: int = 40) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= width else flat[: width - 1] + "…")
