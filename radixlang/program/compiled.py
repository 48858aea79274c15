"""Compiled programs: a static graph that runs without the program's Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from radixlang.default_runtime import runtime_or_default
from radixlang.errors import NeedsValueError, ParameterError
from radixlang.execution.run import Run
from radixlang.execution.run_options import RunOptions
from radixlang.graph.next_use import future_uses
from radixlang.graph.nodes import Answer, Block, Contrasted, Gen, Graph, Join, Ref, Select
from radixlang.graph.passes import hoist_shared_prefix, merge_text
from radixlang.protocol import Backend
from radixlang.sampling_params import PARAM_NAMES, SamplingParams
from radixlang.spellings import hint_for
from radixlang.state.expressions.thought import thought_name
from radixlang.state.listeners import tell, tell_end
from radixlang.state.reading.bound_values import Joined
from radixlang.state.state import State

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from radixlang.keywords import BatchKeywords, RunKeywords
    from radixlang.records.result import Result

_RUN_NAMES = ("timeout", "max_total_tokens", "namespace", "adapter")


class CompiledProgram:
    """A graph with open arguments. A run walks it; no function of the program is called."""

    def __init__(self, graph: Graph, options: RunKeywords | None = None) -> None:
        self.graph = graph
        self.options: RunKeywords = options or {}
        self.name = graph.name
        self.arguments = graph.arguments()
        self._constraints: dict[int, dict[int, object]] = {}
        self._names = _names_of(graph.root)
        self._uses = future_uses(graph)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the open arguments."""
        return self.arguments

    def __call__(self, **kwargs: object) -> State:
        """The same as `run`."""
        return self.run(**kwargs)

    def run(self, **kwargs: object) -> State:
        """Run with the open arguments given; options as for `Program.run`."""
        check = kwargs.pop("check", self.options.get("check", True))
        state = self.launch(kwargs)
        run = state._run()
        try:
            run.readers.wait(lambda: run.finished)
        except BaseException:  # an interrupt: nobody will read the running rest
            run.cancel()
            raise
        tell_end(state)
        if check and run.error is not None:
            raise run.error
        return state

    def run_batch(
        self, rows: Iterable[Mapping[str, object]], *, progress: bool | None = None,
        **options: Unpack[BatchKeywords],
    ) -> list[Result]:  # fmt: skip
        """One Result for each row, in order; options as for `Program.run_batch`."""
        from radixlang.records.batch import run_batch

        merged: BatchKeywords = {**self.options, **options}
        return run_batch(self, rows, progress=progress, **merged)

    def as_completed(
        self, rows: Iterable[Mapping[str, object]], **options: Unpack[BatchKeywords]
    ) -> Iterator[Result]:
        """Results as rows finish; options as for `Program.run_batch`."""
        from radixlang.records.batch import as_completed

        merged: BatchKeywords = {**self.options, **options}
        return as_completed(self, rows, **merged)

    def launch(
        self,
        row: Mapping[str, object],
        finish: Callable[[State], None] | None = None,
        **options: object,
    ) -> State:
        """Start one run and return at once."""
        given: dict[str, Any] = {**self.options, **row, **options}  # checked below, by name
        given.pop("check", None)
        args = {name: given.pop(name) for name in self.arguments if name in given}
        missing = [name for name in self.arguments if name not in args]
        if missing:
            raise ParameterError(
                f"program {self.name!r} needs the argument {missing[0]!r}: run({missing[0]}=…)"
            )
        backend: Backend = runtime_or_default(given.pop("runtime", None))
        run = Run(
            self.name, backend, self._options(given), args=args, graph=self.graph,
            constraints=self._compiled_constraints(backend), uses=self._uses,
        )  # fmt: skip
        state = State(run, self.graph.root)
        for name, ref, refs in self._names:
            state._variables.bind(
                name, ref if refs is None else Joined(state._reader.joined, ref, refs)
            )
        if finish is not None:
            run.on_finish(lambda: finish(state))
        tell("start", state)
        run.start()
        return state

    def check_options(self, options: Mapping[str, object], whose: str = "a run") -> None:
        """Raise a ParameterError for an option that no run knows."""
        self._options({key: value for key, value in options.items() if key != "check"})

    def _options(self, given: Mapping[str, object]) -> RunOptions:
        names: tuple[str, ...] = (*_RUN_NAMES, "seed")
        known: dict[str, Any] = {key: value for key, value in given.items() if key in names}
        rest: dict[str, Any] = {key: value for key, value in given.items() if key not in known}
        unknown = next((key for key in rest if key not in PARAM_NAMES), None)
        if unknown is not None:
            listed = ", ".join(self.arguments) or "none"
            names = (*self.arguments, *_RUN_NAMES, "seed", "runtime", *PARAM_NAMES)
            hint = hint_for(unknown, names, "a run", f"it has: {listed}")
            raise ParameterError(
                f"compiled program {self.name!r} has no open argument {unknown!r}; {hint}"
            )
        return RunOptions(defaults=SamplingParams.checked(**rest), **known)

    def _compiled_constraints(self, backend: Backend) -> dict[int, object]:
        found = self._constraints.get(id(backend))
        if found is None:
            specs = [node.constraint for _, node in self.graph.walk() if isinstance(node, Gen)]
            found = {
                id(spec): backend.compile_constraint(spec) for spec in specs if spec is not None
            }
            self._constraints[id(backend)] = found
        return found

    def __repr__(self) -> str:
        return f"<compiled program {self.name}({', '.join(self.arguments)})>"


def compile_graph(graph: Graph, options: RunKeywords) -> CompiledProgram:
    """Optimise the graph of a program, and make it a CompiledProgram.

    Raises:
        NeedsValueError: the graph is not fixed, because the program looks at a value.
    """
    boundary = graph.first_dynamic()
    if boundary is not None:
        raise NeedsValueError(
            f"program {graph.name!r} cannot be compiled: at {boundary.location} "
            f"{boundary.reason}. Run it as it is, or keep that decision out of the graph "
            "(select, s.ref(…), a reducer of join)"
        )
    return CompiledProgram(hoist_shared_prefix(merge_text(graph)), options)


def _names_of(block: Block) -> list[tuple[str, Ref, tuple[Ref | None, ...] | None]]:
    """Variables of the main branch: (name, ref, the children's refs of a join)."""
    found: list[tuple[str, Ref, tuple[Ref | None, ...] | None]] = []
    for node in block.nodes:
        if isinstance(node, (Gen, Select)) and node.name is not None:
            found.append((node.name, Ref(block.id, node.slot, node.name), None))
        elif isinstance(node, Contrasted) and node.name is not None:
            found.append((node.name, Ref(node.block, node.slot, node.name), None))
        elif isinstance(node, Answer) and node.name is not None:
            found.append((node.name, Ref(node.child, node.slot, node.name), None))
            if node.thought_slot is not None:
                name = thought_name(node.name)
                found.append((name, Ref(node.child, node.thought_slot, name), None))
        elif isinstance(node, Join) and node.name is not None:
            refs = node.refs if node.mode == "list" else ()
            found.append((node.name, Ref(block.id, node.slot, node.name), refs))
    return found
