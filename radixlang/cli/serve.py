"""`radixlang serve`: a model over HTTP."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from radixlang.cli._runtime import opened_runtime, sampling_of_model
from radixlang.cli.programs import read_text, run_options
from radixlang.errors import ParameterError
from radixlang.sampling_params import PARAM_NAMES

_NAMED = {
    "served_name": "model", "max_body_bytes": "max_body_bytes",
    "max_request_tokens": "max_tokens", "max_requests": "max_requests",
    "max_requests_per_key": "max_requests_per_key", "request_timeout": "timeout_s",
    "shutdown": "shutdown_s", "idle_exit": "idle_exit_s",
}  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """0 once the server has been told to stop."""
    if args.target and args.model:
        raise ParameterError(f"two models: {args.target} and --model {args.model}; keep one")
    if args.timeout is not None:
        raise ParameterError("serve takes no --timeout; it is called --request-timeout here")
    args.model = args.target or args.model
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
        serve(runtime, config, lambda url: _tell(args, url, runtime.model_name))
    return 0


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


def _tell(args: argparse.Namespace, url: str, model: str) -> None:
    if args.json:
        print(json.dumps({"url": url, "base_url": f"{url}/v1", "model": model}), flush=True)
    else:
        print(f"serving {model} at {url}/v1 (Ctrl-C stops)", file=sys.stderr, flush=True)
