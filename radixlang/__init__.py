"""radixlang: prompt programs that fork, on a runtime that never computes a prefix twice.

Names load when they are first used: importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from radixlang import hooks

if TYPE_CHECKING:
    from radixlang.attention import Exact, TopMass, TopPages
    from radixlang.constraints.specs import (
        Capture,
        Choices,
        Grammar,
        JsonSchema,
        Match,
        Regex,
        Sequence,
        Tool,
        ToolCall,
        Tools,
        match,
    )
    from radixlang.default_runtime import get_default_runtime, set_default_runtime
    from radixlang.errors import (
        AdapterFormatError,
        BudgetError,
        CancelledError,
        ConstraintError,
        DeadlineError,
        IncompleteError,
        InvalidConstraintError,
        JoinError,
        LogitsError,
        ModelError,
        ModelFormatError,
        ModelNotFoundError,
        NeedsValueError,
        NumericalError,
        ParameterError,
        PoolExhaustedError,
        ProgramError,
        PromptTooLongError,
        RadixlangError,
        RequestError,
        RuntimeClosedError,
        ScriptError,
        StateClosedError,
        TemplateError,
        UnknownVariableError,
        UnsupportedConstraintError,
        ValueParseError,
        WorkersLostError,
    )
    from radixlang.execution.pieces import Choice
    from radixlang.explain.explanation import Explanation
    from radixlang.explain.savings import Savings, savings
    from radixlang.graph.nodes import Graph
    from radixlang.program.compiled import CompiledProgram
    from radixlang.program.program import Program, function
    from radixlang.program.strategies import beam, best_of, majority, mean_logprob, retry
    from radixlang.program.tools import ToolBox
    from radixlang.protocol import (
        AdapterUse,
        Completion,
        Markup,
        Message,
        NextToken,
        OptionScore,
        TokenLogprob,
        Usage,
    )
    from radixlang.records.checkpoint import resume, take_checkpoint
    from radixlang.records.replay import save_replay, verify_replay
    from radixlang.records.result import Result
    from radixlang.records.row_files import read_rows
    from radixlang.remote.endpoint import EndpointOptions
    from radixlang.remote.remote import Remote
    from radixlang.rollouts.rows import PackedTree, Rollout
    from radixlang.rollouts.token_tree import TokenNode, TokenTree
    from radixlang.runtime.runtime import Runtime
    from radixlang.runtime.sampling.logits_functions import LogitsContext
    from radixlang.sampling_params import SamplingParams
    from radixlang.state.contrasting import contrast
    from radixlang.state.expressions.builders import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        role,
        select,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
    )
    from radixlang.state.listeners import on_run
    from radixlang.state.recording.groups import ForkGroup
    from radixlang.state.state import State
    from radixlang.templates.loading import load_template, template
    from radixlang.tree_search.monte_carlo import MCTS
    from radixlang.tree_search.particles import SMC, Particle
    from radixlang.tree_search.policies import Beam, BestFirst
    from radixlang.tree_search.run_search import SearchResult, search
    from radixlang.tree_search.tree import SearchNode, SearchTree
    from radixlang.workers.workers import Workers

    __version__: str

_HOMES = {
    "attention": "Exact TopMass TopPages",
    "records.result": "Result",
    "records.row_files": "read_rows",
    "execution.pieces": "Choice",
    "records.checkpoint": "resume take_checkpoint",
    "program.compiled": "CompiledProgram",
    "constraints.specs": "Capture Choices Grammar JsonSchema Match Regex Sequence Tool "
    "ToolCall Tools match",
    "default_runtime": "get_default_runtime set_default_runtime",
    "errors": "AdapterFormatError BudgetError CancelledError ConstraintError DeadlineError "
    "IncompleteError InvalidConstraintError JoinError LogitsError ModelError ModelFormatError "
    "ModelNotFoundError "
    "NeedsValueError NumericalError ParameterError PoolExhaustedError ProgramError "
    "PromptTooLongError RadixlangError RequestError RuntimeClosedError ScriptError "
    "StateClosedError TemplateError UnknownVariableError UnsupportedConstraintError "
    "ValueParseError WorkersLostError",
    "state.listeners": "on_run",
    "explain.explanation": "Explanation",
    "state.contrasting": "contrast",
    "state.expressions.builders": "assistant assistant_begin assistant_end gen role select system "
    "system_begin system_end user user_begin user_end",
    "graph.nodes": "Graph",
    "state.recording.groups": "ForkGroup",
    "program.strategies": "beam best_of majority mean_logprob retry",
    "sampling_params": "SamplingParams",
    "program.program": "Program function",
    "remote.remote": "Remote",
    "remote.endpoint": "EndpointOptions",
    "protocol": "AdapterUse Completion Markup Message NextToken OptionScore TokenLogprob Usage",
    "records.replay": "save_replay verify_replay",
    "explain.savings": "Savings savings",
    "rollouts.rows": "PackedTree Rollout",
    "rollouts.token_tree": "TokenNode TokenTree",
    "runtime.runtime": "Runtime",
    "runtime.sampling.logits_functions": "LogitsContext",
    "state.state": "State",
    "templates.loading": "load_template template",
    "tree_search.monte_carlo": "MCTS",
    "tree_search.particles": "Particle SMC",
    "tree_search.policies": "Beam BestFirst",
    "tree_search.run_search": "SearchResult search",
    "tree_search.tree": "SearchNode SearchTree",
    "program.tools": "ToolBox",
    "workers.workers": "Workers",
}
hooks.bind(
    explain_graph="radixlang.explain.dry_run",
    match_text="radixlang.runtime.constraints.compiled",
)
_HOME = {name: f"radixlang.{home}" for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "MCTS",
    "SMC",
    "AdapterFormatError",
    "AdapterUse",
    "Beam",
    "BestFirst",
    "BudgetError",
    "CancelledError",
    "Capture",
    "Choice",
    "Choices",
    "CompiledProgram",
    "Completion",
    "ConstraintError",
    "DeadlineError",
    "EndpointOptions",
    "Exact",
    "Explanation",
    "ForkGroup",
    "Grammar",
    "Graph",
    "IncompleteError",
    "InvalidConstraintError",
    "JoinError",
    "JsonSchema",
    "LogitsContext",
    "LogitsError",
    "Markup",
    "Match",
    "Message",
    "ModelError",
    "ModelFormatError",
    "ModelNotFoundError",
    "NeedsValueError",
    "NextToken",
    "NumericalError",
    "OptionScore",
    "PackedTree",
    "ParameterError",
    "Particle",
    "PoolExhaustedError",
    "Program",
    "ProgramError",
    "PromptTooLongError",
    "RadixlangError",
    "Regex",
    "Remote",
    "RequestError",
    "Result",
    "Rollout",
    "Runtime",
    "RuntimeClosedError",
    "SamplingParams",
    "Savings",
    "ScriptError",
    "SearchNode",
    "SearchResult",
    "SearchTree",
    "Sequence",
    "State",
    "StateClosedError",
    "TemplateError",
    "TokenLogprob",
    "TokenNode",
    "TokenTree",
    "Tool",
    "ToolBox",
    "ToolCall",
    "Tools",
    "TopMass",
    "TopPages",
    "UnknownVariableError",
    "UnsupportedConstraintError",
    "Usage",
    "ValueParseError",
    "Workers",
    "WorkersLostError",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "beam",
    "best_of",
    "contrast",
    "function",
    "gen",
    "get_default_runtime",
    "load_template",
    "majority",
    "match",
    "mean_logprob",
    "on_run",
    "read_rows",
    "resume",
    "retry",
    "role",
    "save_replay",
    "savings",
    "search",
    "select",
    "set_default_runtime",
    "system",
    "system_begin",
    "system_end",
    "take_checkpoint",
    "template",
    "user",
    "user_begin",
    "user_end",
    "verify_replay",
]


if not TYPE_CHECKING:  # a checker that saw it would let any name pass, misspelt ones too

    def __getattr__(name):
        if name == "__version__":
            return _version()
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'radixlang' has no attribute {name!r}")
        value = getattr(_imported(home), name)
        globals()[name] = value
        return value


def _imported(home: str) -> ModuleType:
    if not home.startswith("radixlang.runtime"):
        return importlib.import_module(home)
    from radixlang.progress import doing

    with doing("importing torch"):
        return importlib.import_module(home)


def __dir__() -> list[str]:
    """The public names; modules are imported by their full names."""
    return sorted({*__all__, *(name for name in globals() if name.endswith("__")), "__version__"})


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("radixlang")
    except metadata.PackageNotFoundError:  # a checkout that is on the path, not installed
        return "unknown"
