"""`radixlang explain`: predicted tokens, sharing and memory of a run, without a model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from radixlang.cli._runtime import load_tokenizer
from radixlang.cli.programs import load_program, own_errors, settings
from radixlang.explain.explanation import Explanation

_FIGURES = ("program", "num_generations", "num_prompt_tokens", "num_shared_tokens",
            "num_unique_tokens", "num_generated_tokens", "peak_kv_tokens", "unshared_kv_tokens",
            "prefill_saved", "is_exact")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Returns 0; a missing argument raises an error."""
    program = load_program(args.file)
    arguments = settings(args.settings, program)
    tokenizer = None
    if args.tokenizer is not None:
        tokenizer = load_tokenizer(None if args.tokenizer == "default" else args.tokenizer)
    with own_errors():
        found = program.explain(tokenizer, **arguments)
    if args.svg:
        Path(args.svg).write_text(found.graph.to_svg(), encoding="utf-8")
    if args.json:
        print(json.dumps(_as_json(found), ensure_ascii=False, indent=2))
        return 0
    if args.graph:
        print(found.graph.show(), end="\n\n")
    print(found)
    return 0


def _as_json(found: Explanation) -> dict[str, object]:
    boundary = found.boundary
    return {
        **{name: getattr(found, name) for name in _FIGURES},
        "stops_at": None if boundary is None else str(boundary.location),
        "edges": [
            {"branch": list(edge.branch), "kind": edge.kind, "label": edge.label,
             "num_tokens": edge.num_tokens, "num_readers": edge.num_readers}
            for edge in found.edges
        ],
    }  # fmt: skip
