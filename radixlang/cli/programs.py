"""From FILE and --set to a program and its arguments."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from radixlang.cli._runtime import Opened
from radixlang.errors import ParameterError, ProgramError, RadixlangError, place_of
from radixlang.keywords import RunKeywords
from radixlang.program.program import Program
from radixlang.state.state import State

_MODULE = "radixlang_program_"  # never __main__: a file's code as a script must not run


def load_program(target: str) -> Program:
    """The program of `FILE` or `FILE:NAME`.

    Raises:
        ParameterError: there is no such file, it has no or several programs, or it cannot run.
    """
    path, name = _split(target)
    if path.suffix == ".radix":
        from radixlang.templates.loading import load_template

        template: Program = load_template(path)
        return template
    if path.suffix != ".py":
        raise ParameterError(f"{path}: a program is a .py or a .radix file")
    return _pick(path, _programs_in(_imported(path)), name)


def load_programs(target: str) -> list[Program]:
    """Every program of `FILE`, or the one of `FILE:NAME`; raises like `load_program`."""
    path, name = _split(target)
    if path.suffix != ".py" or name is not None:
        return [load_program(target)]
    programs = _programs_in(_imported(path))
    return list(programs.values()) or [_pick(path, programs, None)]


def _split(target: str) -> tuple[Path, str | None]:
    path, separator, name = target.rpartition(":")
    if separator and name.isidentifier() and Path(path).suffix in (".py", ".radix"):
        found, wanted = Path(path), name
    else:
        found, wanted = Path(target), None
    if not found.is_file():
        raise ParameterError(f"{found}: no such file")
    return found, wanted


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE + path.stem, path)
    assert spec is not None
    assert spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look for it
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with own_errors():
        spec.loader.exec_module(module)
    return module


def _programs_in(module: ModuleType) -> dict[str, Program]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Program) and value.function.__module__ == module.__name__
    }


def _pick(path: Path, programs: dict[str, Program], name: str | None) -> Program:
    listed = ", ".join(programs) or "none"
    if name is not None:
        if name not in programs:
            raise ParameterError(f"{path} has no program {name!r}; it has: {listed}")
        return programs[name]
    if not programs:
        raise ParameterError(
            f"{path} has no program; put @radixlang.function above a function whose first "
            "parameter is its state"
        )
    if len(programs) > 1 and "main" not in programs:
        raise ParameterError(f"{path} has several programs ({listed}); say which: {path}:NAME")
    return programs.get("main") or next(iter(programs.values()))


def settings(given: Sequence[str], program: Program) -> dict[str, Any]:
    """Arguments of the program from NAME=VALUE: a value that is not JSON is text."""
    found: dict[str, Any] = {}  # JSON data, of the types that the program wants
    for each in given:
        name, separator, text = each.partition("=")
        if not separator or not name:
            raise ParameterError(f"--set takes NAME=VALUE, got {each!r}")
        found[name] = _value(text, _annotation(program, name))
    return found


def typed_cells(row: dict[str, object], program: Program, place: str) -> dict[str, object]:
    """A row of text cells with the program's types.

    A cell is text, or JSON if the argument is annotated as a number, a bool, a list or a dict, or
    has such a default. An empty cell is left out if the argument has a default.
    """
    defaults = program.defaults
    return {
        name: _cell(text, name, program, place)
        for name, text in row.items()
        if text or defaults.get(name, inspect.Parameter.empty) is inspect.Parameter.empty
    }


def _cell(text: object, name: str, program: Program, place: str) -> object:
    kind = _annotation(program, name) or type(program.defaults.get(name)).__name__
    is_json = kind.partition("[")[0] in ("int", "float", "bool", "list", "dict")
    if not is_json or not isinstance(text, str):
        return text
    try:
        return json.loads(text.lower() if kind == "bool" else text)
    except ValueError as error:
        raise ParameterError(f"{place}: {name} is of type {kind}, got {text!r}") from error


def _annotation(program: Program, name: str) -> str:
    kind = getattr(program.function, "__annotations__", {}).get(name, "")
    return kind if isinstance(kind, str) else getattr(kind, "__name__", "")


def _value(text: str, annotation: str) -> object:
    if text.startswith("@"):
        text = read_text(text[1:])
    if annotation == "str":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_text(path: str) -> str:
    """The text of a file.

    Raises:
        ParameterError: it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"cannot read {path}: {error}") from error


def run_options(args: argparse.Namespace) -> RunKeywords:
    """Options of a run that were given on the command line."""
    found: RunKeywords = {}
    if args.seed is not None:
        found["seed"] = args.seed
    if args.temperature is not None:
        found["temperature"] = args.temperature
    if args.max_tokens is not None:
        found["max_tokens"] = args.max_tokens
    if args.timeout is not None:
        found["timeout"] = args.timeout
    return found


def run_program(program: Program, runtime: Opened, options: RunKeywords) -> State:
    """Run once; raises errors as `own_errors` does."""
    with own_errors():
        return program.run(runtime=runtime, **options)


@contextmanager
def own_errors() -> Iterator[None]:
    """Turns an exception of the program's own Python into a ProgramError with its line.

    radixlang's errors get their place in the program as `location`.
    """
    try:
        yield
    except RadixlangError as error:
        error.location = place_of(error)  # the caller's line is not one of the program
        raise
    except Exception as error:
        raise _as_program_error(error) from error


def _as_program_error(error: Exception) -> ProgramError:
    if isinstance(error, SyntaxError) and error.filename:  # its traceback ends in the importer
        location, said = f"{error.filename}:{error.lineno}", error.msg
    else:
        location, said = place_of(error), str(error)
    if isinstance(error, KeyError) and error.args:  # whose text is the repr of its message
        said = str(error.args[0])
    return ProgramError(f"{location}: {type(error).__name__}: {said}", location=location)
