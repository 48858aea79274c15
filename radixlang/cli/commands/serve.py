"""`radixlang serve`: a model over HTTP, and programs of a file that run on it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from radixlang.cli._runtime import opened_runtime, sampling_of_model
from radixlang.cli.programs import load_programs, read_text, run_options
from radixlang.errors import ParameterError
from radixlang.program.program import Program
from radixlang.sampling_params import PARAM_NAMES

_PROGRAM_FILE = re.compile(r"\.(py|radix)(:\w+)?$")
_NAMED = {
    "served_name": "model", "max_body_bytes": "max_body_bytes",
    "max_request_tokens": "max_tokens", "max_requests": "max_requests",
    "max_requests_per_key": "max_requests_per_key", "request_timeout": "timeout_s",
    "max_stored": "max_stored", "max_stored_tokens": "max_stored_tokens", "stored": "stored_s",
    "shutdown": "shutdown_s", "idle_exit": "idle_exit_s",
}  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """0 once the server has been told to stop."""
    is_file = _PROGRAM_FILE.search(args.target or "") is not None
    if args.target and args.model and not is_file:
        raise ParameterError(f"two models: {args.target} and --model {args.model}; keep one")
    if args.timeout is not None:
        raise ParameterError("serve takes no --timeout; it is called --request-timeout here")
    programs = _programs(args) if is_file else []
    args.model = args.model if is_file else args.target or args.model
    keys = _keys(args)
    try:
        from radixlang.serving.config import ServerConfig
        from radixlang.serving.server import serve
    except ModuleNotFoundError as error:
        raise ParameterError(
            f"serving needs {error.name}, which is not installed; "
            "install it with: pip install 'radixlang[serve]'"
        ) from error
    with opened_runtime(args) as runtime:
        config = ServerConfig(
            host=args.host, port=args.port, api_keys=keys, sampling=_sampling(args, runtime),
            **_given(args),
        )  # fmt: skip
        serve(runtime, config, lambda url: _tell(args, url, runtime.model_name, programs), programs)
    return 0


def _programs(args: argparse.Namespace) -> list[Program]:
    """The programs of a file, with the options of the command line, as `radixlang run` has them."""
    return [each.with_options(**run_options(args)) for each in load_programs(args.target)]


def _given(args: argparse.Namespace) -> dict[str, Any]:
    return {
        field: getattr(args, flag)
        for flag, field in _NAMED.items()
        if getattr(args, flag) is not None
    }


def _sampling(args: argparse.Namespace, runtime: Any) -> Any:
    """What the model's files say, and over it what the command line says."""
    named = {**sampling_of_model(runtime), **run_options(args)}
    return {name: value for name, value in named.items() if name in PARAM_NAMES}


def _keys(args: argparse.Namespace) -> tuple[str, ...]:
    lines = read_text(args.api_key_file).splitlines() if args.api_key_file else []
    found = [line.strip() for line in lines if line.strip()]
    if args.api_key_file and not found:
        raise ParameterError(f"{args.api_key_file} holds no key; write one a line")
    return (*args.api_key, *found)


def _tell(args: argparse.Namespace, url: str, model: str, programs: Sequence[Program]) -> None:
    paths = [f"{url}/programs/{program.name}" for program in programs]
    if args.json:
        told = {"url": url, "base_url": f"{url}/v1", "model": model}
        print(json.dumps({**told, "programs": paths} if paths else told), flush=True)
    else:
        for path in paths:
            print(f"program POST {path}", file=sys.stderr)
        print(f"serving {model} at {url}/v1 (Ctrl-C stops)", file=sys.stderr, flush=True)
