"""Programs: functions whose first parameter is their state."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, overload

from radixlang.default_runtime import runtime_or_default
from radixlang.errors import ParameterError, StateClosedError, refuse_pickling
from radixlang.execution.run import Run
from radixlang.execution.run_options import RunOptions
from radixlang.execution.threads.readers import running_loop
from radixlang.graph.nodes import Arg, Graph
from radixlang.keywords import BATCH_NAMES, RUN_NAMES, BatchKeywords, RunKeywords
from radixlang.program.launching import launches
from radixlang.program.parameters import Parameters
from radixlang.protocol import Backend
from radixlang.sampling_params import PARAM_NAMES, SamplingParams
from radixlang.state.expressions.items import Placeholder
from radixlang.state.listeners import tell, tell_end, told
from radixlang.state.reading.streaming import ProgramStream
from radixlang.state.state import State
from radixlang.state.stream_state import stream_state
from radixlang.state.tracing import Tracer, is_boundary, record_boundary

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Self, Unpack

    from radixlang.explain.explanation import Explanation
    from radixlang.graph.lints import Lint
    from radixlang.program.compiled import CompiledProgram
    from radixlang.records.result import Result

    P = ParamSpec("P", default=...)  # a bare Program takes any arguments
    Q = ParamSpec("Q")
else:
    from typing import ParamSpec

    P, Q = ParamSpec("P"), ParamSpec("Q")


class Program(Generic[P]):
    """A prompt program. `program(arg=…)` runs it and returns its finished state."""

    def __init__(
        self, function: Callable[Concatenate[State, P], object], name: str | None = None,
        bound: Mapping[str, object] | None = None, options: RunKeywords | None = None,
    ) -> None:  # fmt: skip
        self.function = function
        self._call: Callable[..., Any] = function  # its result is awaited if it can be
        self.name = name or str(getattr(function, "__name__", "program"))
        self.bound = dict(bound or {})
        self.options: RunKeywords = options or {}
        self._parameters = Parameters.of(function, self.name)
        self.__doc__ = function.__doc__
        self.__name__ = self.name

    @property
    def is_async(self) -> bool:
        """Whether the function is `async def`."""
        return inspect.iscoroutinefunction(self.function)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments, the state excluded."""
        return tuple(self._parameters.defaults)

    @property
    def defaults(self) -> dict[str, object]:
        """Arguments and their defaults; `inspect.Parameter.empty` where there is none."""
        return dict(self._parameters.defaults)

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """A method's program bound to an instance: its function takes `self`, then its state."""
        if instance is None or not self._parameters.owner:
            return self
        bound = MethodType(self.function, instance)
        return type(self)(bound, self.name, self.bound, self.options)

    def bind(self, **kwargs: object) -> Program[...]:
        """The same program with some arguments set; explicit ones still win."""
        self._parameters.check(kwargs)
        return Program(self.function, self.name, {**self.bound, **kwargs}, self.options)

    def with_options(self, **options: Unpack[RunKeywords]) -> Program[P]:
        """The same program with options of `run` set; those of a call still win.

        A type checker then checks both: `greet.with_options(temperature=0)(name="Ada")`. A call
        inside another program uses the options of the outer run.
        """
        self.check_options(options)
        return Program(self.function, self.name, self.bound, {**self.options, **options})

    # -- running ------------------------------------------------------------------------

    # `launches` gives these four the types of the program's own arguments, in place of Any
    @launches
    def __call__(self, *args: Any, **kwargs: Any) -> State:
        """Run; with a state as first argument, run nested in it and inline."""
        if args and isinstance(args[0], State):
            return args[0].call(self, *args[1:], **kwargs)
        return self.run(*args, **kwargs)

    @launches
    def run(self, *args: Any, **kwargs: Any) -> State:
        """Run to the end and return the finished state.

        Args:
            args, kwargs: the program's arguments, and by keyword the options of the run.
            runtime: the backend it runs on; None takes the default runtime.
            timeout: seconds after which the run ends with a DeadlineError.
            seed: key of the random numbers; None draws one, which is `state.seed`.
            max_total_tokens: most tokens that all branches generate together.
            namespace: two namespaces share no cached tokens.
            adapter: of the runtime, for all that names no other.
            check: False returns a failed state instead of raising its error.
            temperature, max_tokens, …: any field of SamplingParams, as the default of this run.

        Raises:
            ProgramError: the program's first error.
        """
        if self.is_async:
            return asyncio.run(self.arun(*args, **kwargs))
        arguments, run, check = self.prepare(args, kwargs)
        state = State(run, run.blocks[0])
        with told(state):
            try:
                run.start()
                self.execute(run, state, arguments)
                run.readers.wait(lambda: run.finished)
            except BaseException:  # an interrupt: nobody will read the running rest
                run.cancel()
                raise
        return _checked(state, run, check)

    @launches
    async def arun(self, *args: Any, **kwargs: Any) -> State:
        """Like `run`, for a caller on an event loop; other tasks go on meanwhile."""
        arguments, run, check = self.prepare(args, kwargs)
        state = State(run, run.blocks[0])
        with told(state):
            try:
                run.start()
                if self.is_async:
                    await self._execute_async(run, state, arguments)
                else:
                    await asyncio.to_thread(self.execute, run, state, arguments)
                await run.readers.wait_async(lambda: run.finished)
            except BaseException:
                run.cancel()
                raise
        return _checked(state, run, check)

    @launches
    def stream(self, *args: Any, **kwargs: Any) -> ProgramStream:
        """Start the program and yield its text as it is generated; it runs on another thread."""
        arguments, run, _ = self.prepare(args, kwargs)
        run.nodes.is_followed = True
        state = State(run, run.blocks[0])
        tell("start", state)
        run.start()

        def work() -> None:
            try:
                if self.is_async:
                    asyncio.run(self._execute_async(run, state, arguments))
                else:
                    self.execute(run, state, arguments)
            except BaseException as error:
                run.fail_from_program(error)
            tell_end(state)

        threading.Thread(target=work, name=f"radixlang-stream-{self.name}", daemon=True).start()
        return ProgramStream(run, stream_state(run, state))

    def run_batch(
        self, rows: Iterable[Mapping[str, object]], *, progress: bool | None = None,
        **options: Unpack[BatchKeywords],
    ) -> list[Result]:  # fmt: skip
        """One Result for each row, in the order of the rows; a failed row's has its error.

        Args:
            rows: the arguments of each row; they are never changed.
            progress: show a bar; None shows one on a terminal, if it takes more than a moment.
            max_workers: threads for programs that wait for values in Python; 32.
            max_in_flight: rows that run at the same time; 2048.
            save_to: a JSONL file. Each result is appended when its row finishes; rows that the
                file already holds without an error are not run again.
            seed: row i runs with a seed made from this and i.
            runtime, timeout, max_total_tokens, namespace, adapter, check, temperature,
                …: of each row's run, as for `run`.

        Raises:
            ParameterError: an option is unknown to `run`, or the file holds other rows.
        """
        from radixlang.records.batch import run_batch

        merged: BatchKeywords = {**self.options, **options}
        return run_batch(self, rows, progress=progress, **merged)

    def as_completed(
        self, rows: Iterable[Mapping[str, object]], **options: Unpack[BatchKeywords]
    ) -> Iterator[Result]:
        """Results as rows finish, each with its index; options as for `run_batch`."""
        from radixlang.records.batch import as_completed

        merged: BatchKeywords = {**self.options, **options}
        return as_completed(self, rows, **merged)

    # -- without a model ----------------------------------------------------------------

    def trace(self, **kwargs: object) -> Graph:
        """The graph of the program for these arguments; missing ones stay open.

        Where Python looks at a generated value the graph ends in a Dynamic node.
        """
        tracer = Tracer(self.name)
        state = State(tracer, tracer.recorder.blocks[0])
        try:
            _drive(self._call, state, self.arguments(kwargs, tracer))
        except Exception as error:
            if not is_boundary(error):
                raise
            record_boundary(tracer, tracer.recorder.blocks[0], error)
        return tracer.recorder.graph

    def explain(
        self,
        tokenizer: object = None,
        *,
        lengths: Mapping[str, int] | None = None,
        **kwargs: object,
    ) -> Explanation:  # fmt: skip
        """Predict tokens, sharing and memory; see `radixlang.explain.dry_run.explain_graph`."""
        from radixlang.explain.dry_run import explain_graph

        return explain_graph(self.trace(**kwargs), tokenizer, lengths=lengths)

    def compile(self, **kwargs: object) -> CompiledProgram:
        """The program as a graph that runs without its Python.

        Args:
            kwargs: values to build in, as defaults are; the other arguments are given to each run.

        Raises:
            NeedsValueError: the program looks at a value, so its graph is not fixed; the message
                names the place.
        """
        from radixlang.program.compiled import compile_graph

        return compile_graph(self.trace(**kwargs), self.options)

    def lint(self, **kwargs: object) -> list[Lint]:
        """Doubtful places of the program; see `radixlang.graph.lints`."""
        from radixlang.graph.lints import lint

        return lint(self.trace(**kwargs), self)

    # -- pieces that batches and nested calls use ---------------------------------------

    def prepare(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[dict[str, object], Run, bool]:
        """Split keywords into arguments and run options: (arguments, run, check)."""
        own = {key: value for key, value in kwargs.items() if key in self._parameters.defaults}
        rest: dict[str, Any] = {**self.options, **kwargs}  # checked below, by name
        for key in own:
            del rest[key]
        # RunOptions and SamplingParams check what they get
        options: dict[str, Any] = {key: rest.pop(key) for key in RUN_NAMES if key in rest}
        backend: Backend = runtime_or_default(options.pop("runtime", None))
        check = options.pop("check", True)
        self.check_options({**rest, "check": check})
        arguments = self.arguments(self._parameters.by_name(args, own))
        run_options = RunOptions(defaults=SamplingParams.checked(**rest), **options)
        return arguments, Run(self.name, backend, run_options, args=arguments), check

    def arguments(
        self, given: Mapping[str, object], tracer: Tracer | None = None
    ) -> dict[str, object]:
        """Bound, given and default arguments; missing ones are placeholders while tracing."""
        self._parameters.check_bound()
        self._parameters.check(given)
        known = {**self.bound, **given}
        for name, default in self._parameters.defaults.items():
            if name in known:
                continue
            if default is not inspect.Parameter.empty:
                known[name] = default
            elif tracer is None:
                raise self._parameters.missing(name)
            else:
                known[name] = Placeholder(tracer.recorder, Arg(name))
        return known

    def launch(
        self, row: Mapping[str, object], finish: Callable[[State], None], **options: object
    ) -> State:
        """Start a run for a batch: the function runs here, its generations go on in the runtime.

        `finish(state)` is called once, from any thread, when the run has ended.
        """
        arguments, run, _ = self.prepare((), {**row, **options})
        state = State(run, run.blocks[0])
        run.on_finish(lambda: finish(state))
        tell("start", state)
        run.start()
        with suppress(BaseException):  # it is the run's error now
            if self.is_async:
                asyncio.run(self._execute_async(run, state, arguments))
            else:
                self.execute(run, state, arguments)
        return state

    def check_options(self, options: Mapping[str, object], whose: str = "a run") -> None:
        """Raise a ParameterError for an option that no run knows.

        `whose`: "run_batch" for options that were given to a batch.
        """
        known = (*BATCH_NAMES, *RUN_NAMES) if whose == "run_batch" else RUN_NAMES
        unknown = [name for name in options if name not in (*RUN_NAMES, *PARAM_NAMES)]
        self._parameters.check(dict.fromkeys(unknown), (*known, *PARAM_NAMES), whose)
        if not isinstance(options.get("check", True), bool):
            raise ParameterError(f"check must be True or False, got {options['check']!r}")

    def execute(self, run: Run, state: State, arguments: Mapping[str, object]) -> None:
        """Run the function once; an exception ends the run and is raised again."""
        try:
            state._returned.value = self._call(state, **arguments)
            run.end_program()
        except BaseException as error:
            run.fail_from_program(error)
            _raise_root_cause(run, error)
            raise

    async def _execute_async(self, run: Run, state: State, arguments: Mapping[str, object]) -> None:
        run.readers.event_loop = asyncio.get_running_loop()
        try:
            state._returned.value = await self._call(state, **arguments)
            run.end_program()
        except BaseException as error:
            run.fail_from_program(error)
            _raise_root_cause(run, error)
            raise

    def call_with(
        self, state: State, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """Run the function on a state of another program."""
        return _drive(self._call, state, self._nested_arguments(state, args, kwargs))

    async def acall_with(
        self, state: State, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """Like `call_with`; what the function awaits is awaited here."""
        returned = self._call(state, **self._nested_arguments(state, args, kwargs))
        return await returned if isinstance(returned, Awaitable) else returned

    def _nested_arguments(
        self, state: State, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> dict[str, object]:
        tracer = state._host if isinstance(state._host, Tracer) else None
        return self.arguments(self._parameters.by_name(args, kwargs), tracer)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled by name, as functions are: the process that reads it imports the module."""
        module, path = self.function.__module__, self.function.__qualname__
        base = _found(module, path)
        if base is None or base.function is not self.function:
            refuse_pickling(
                f"program {self.name!r}", f"define it at the top level of its module {module!r}"
            )
        if base is self:
            return _found, (module, path)
        return _rebound, (module, path, self.name, self.bound)

    def __repr__(self) -> str:
        return f"<program {self.name}({', '.join(self.parameters)})>"

    def _instead_of_appending(self) -> str:
        return f"run it here: {self.name}(s, …)"


@overload
def function(target: Callable[Concatenate[State, P], object]) -> Program[P]: ...
@overload
def function(target: Callable[Concatenate[object, State, P], object]) -> Program[P]: ...
@overload
def function(
    *, name: str | None = None
) -> Callable[[Callable[Concatenate[State, Q], object]], Program[Q]]: ...
def function(target: Callable[..., object] | None = None, *, name: str | None = None) -> Any:
    """Make a program of a function whose first parameter is its state.

    A method takes `self` and then its state: `judge.grade(essay="…")` runs it on an instance.

    Raises:
        ParameterError: the function has no parameter for the state, takes *args or **kwargs,
            names a parameter like an option of `run`, or is a generator or a class.
    """
    if target is None:
        return lambda target: Program(target, name)
    return Program(target, name)


def _found(module: str, path: str) -> Program | None:
    """The program of this name in a module, imported if needed; None if there is none."""
    found: object = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, Program) else None


def _rebound(module: str, path: str, name: str, bound: Mapping[str, object]) -> Program:
    base = _found(module, path)
    if base is None:
        raise ParameterError(f"module {module!r} has no program {path!r} here")
    return Program(base.function, name, bound)


def _drive(target: Callable[..., object], state: State, arguments: Mapping[str, object]) -> object:
    """Call the function; a coroutine is stepped here, and must not wait for an event loop."""
    returned = target(state, **arguments)
    if not isinstance(returned, Awaitable):
        return returned
    coroutine: Any = returned  # an Awaitable that has send() and close()
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    name = getattr(target, "__name__", "the program")
    if isinstance(state._host, Run) and running_loop() is not None:
        raise ParameterError(
            f"{name} awaits something, and a plain call cannot wait on an event loop; "
            f"write await s.acall({name}, …) in an async program"
        )
    raise ParameterError(
        f"{name} awaits something outside its state, and "
        "cannot be traced or nested; pass what it fetches as an argument"
    )


def _raise_root_cause(run: Run, error: BaseException) -> None:
    """Raise the error of the run: an append refused by a failed run is only its symptom."""
    root = run.error
    if isinstance(error, StateClosedError) and root is not None and error.__cause__ is root:
        raise root from root.__cause__


def _checked(state: State, run: Run, check: bool) -> State:
    if check and run.error is not None:
        raise run.error
    return state
