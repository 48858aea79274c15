"""llama.cpp through llama-cpp-python: one batch a step, prefixes shared by sequence copy.

Arguments: the GGUF to serve, and optionally a type ("q8_0", "q4_0") to requantise it to first.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp as llama
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf
from worker import Call, Outputs, serve

MAX_SEQUENCES = 64
BATCH = 512
TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
FILE_TYPES = {"q8_0": 7, "q4_0": 2}


def requantised(path: str, kind: str) -> str:
    """The model in another type, made once a machine."""
    target = Path(tempfile.gettempdir()) / f"{Path(path).stem}.{kind}.gguf"
    if not target.exists():
        params = llama.llama_model_quantize_default_params()
        params.ftype = FILE_TYPES[kind]
        params.allow_requantize = True
        llama.llama_model_quantize(path.encode(), str(target).encode(), ctypes.byref(params))
    return str(target)


class Engine:
    """A context with a unified cache; sequences share cells after a copy."""

    def __init__(self, path: str) -> None:
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(
            path.encode(), llama.llama_model_default_params()
        )
        self.vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        params = llama.llama_context_default_params()
        params.n_ctx = 16384
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = MAX_SEQUENCES
        params.n_threads = params.n_threads_batch = os.cpu_count() or 1
        params.kv_unified = True
        self.context = llama.llama_init_from_model(self.model, params)
        self.memory = llama.llama_get_memory(self.context)
        self.batch = llama.llama_batch_init(BATCH, 0, 1)  # freed with the process

    def forward(self, rows: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        """Run (token, position, sequence, wants logits) rows; greedy token by sequence."""
        return {sequence: int(row.argmax()) for sequence, row in self.rows(rows).items()}

    def rows(self, rows: list[tuple[int, int, int, bool]]) -> dict[int, np.ndarray[Any, Any]]:
        """The same; logits by sequence."""
        found = {}
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            batch = self.batch
            batch.n_tokens = len(part)
            for i, (token, position, sequence, wants) in enumerate(part):
                batch.token[i], batch.pos[i], batch.logits[i] = token, position, wants
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = sequence
            if llama.llama_decode(self.context, batch):
                raise RuntimeError("llama_decode failed: the context is full")
            for i, (_, _, sequence, wants) in enumerate(part):
                if wants:
                    logits = llama.llama_get_logits_ith(self.context, i)
                    row = np.ctypeslib.as_array(logits, shape=(self.vocab_size,))
                    found[sequence] = row.copy()  # the next part writes over it
        return found


def run(engine: Engine, calls: list[Call], levels: list[list[int]]) -> Outputs:
    """Level by level. A sequence lives until the level of its last child."""
    outputs: Outputs = [[] for _ in calls]
    sequence: dict[int, int] = {}
    pending: dict[int, list[int]] = {}  # the last token of a call is not in its cache yet
    length: dict[int, int] = {}
    parents = {call.parent for call in calls}
    llama.llama_memory_clear(engine.memory, True)
    for level in levels:
        for start in range(0, len(level), MAX_SEQUENCES // 2):
            group = level[start : start + MAX_SEQUENCES // 2]
            run_group(engine, calls, group, outputs, sequence, pending, length)
            for i in [i for i in group if i not in parents]:
                llama.llama_memory_seq_rm(engine.memory, sequence.pop(i), -1, -1)
        for i in [i for i in sequence if i not in level]:
            llama.llama_memory_seq_rm(engine.memory, sequence.pop(i), -1, -1)
    return outputs


def run_group(
    engine: Engine,
    calls: list[Call],
    group: list[int],
    outputs: Outputs,
    sequence: dict[int, int],
    pending: dict[int, list[int]],
    length: dict[int, int],
) -> None:
    """Prefill and decode the calls of a group side by side."""
    rows = []
    for i in group:
        call = calls[i]
        sequence[i] = min(set(range(MAX_SEQUENCES)) - set(sequence.values()))
        tokens, length[i] = list(call.suffix), 0
        if call.parent is not None:
            parent = call.parent
            llama.llama_memory_seq_cp(engine.memory, sequence[parent], sequence[i], -1, -1)
            tokens, length[i] = pending[parent] + tokens, length[parent]
        for k, token in enumerate(tokens):
            rows.append((token, length[i] + k, sequence[i], k + 1 == len(tokens)))
        length[i] += len(tokens)
    owners = {sequence[i]: i for i in group}
    greedy = engine.forward(rows)
    while True:
        for s, token in greedy.items():
            if len(outputs[owners[s]]) < calls[owners[s]].num_tokens:
                outputs[owners[s]].append(token)
        going = [i for i in group if len(outputs[i]) < calls[i].num_tokens]
        if not going:
            break
        rows = [(outputs[i][-1], length[i], sequence[i], True) for i in going]
        for i in going:
            length[i] += 1
        greedy = engine.forward(rows)
    for i in group:
        pending[i] = outputs[i][-1:]


def run_json(engine: Engine, calls: list[Call], schema: dict[str, Any]) -> Outputs:
    """All calls side by side, each under a grammar of its own made from the schema.

    As llama.cpp's own sampler does: the likeliest token is tried first, the whole vocabulary only
    where the grammar refuses it.
    """
    llama.llama_memory_clear(engine.memory, True)
    grammar = json_schema_to_gbnf(json.dumps(schema)).encode()
    vocab = llama.llama_model_get_vocab(engine.model)
    samplers = [llama.llama_sampler_init_grammar(vocab, grammar, b"root") for _ in calls]
    outputs: Outputs = [[] for _ in calls]
    length = [len(call.suffix) for call in calls]
    rows = [
        (token, k, i, k + 1 == len(call.suffix))
        for i, call in enumerate(calls)
        for k, token in enumerate(call.suffix)
    ]
    while rows:
        logits = engine.rows(rows)
        rows = []
        for i, row in logits.items():
            token = constrained(samplers[i], row)
            if llama.llama_vocab_is_eog(vocab, token):
                continue
            llama.llama_sampler_accept(samplers[i], token)
            outputs[i].append(token)
            if len(outputs[i]) < calls[i].num_tokens:
                rows.append((token, length[i], i, True))
                length[i] += 1
    for sampler in samplers:
        llama.llama_sampler_free(sampler)
    return outputs


def constrained(sampler: Any, logits: np.ndarray[Any, Any]) -> int:
    """The likeliest token that a grammar allows."""
    best = int(logits.argmax())
    if allowed(sampler, np.array([best]), logits)[0]:
        return best
    ids = np.arange(len(logits))
    return int(np.where(allowed(sampler, ids, logits), logits, -np.inf).argmax())


def allowed(sampler: Any, ids: np.ndarray[Any, Any], logits: np.ndarray[Any, Any]) -> Any:
    """Which of the tokens the grammar allows [len(ids)]."""
    table = np.zeros(len(ids), TOKEN_DATA)
    table["id"], table["logit"] = ids, logits[ids]
    pointer = table.ctypes.data_as(llama.llama_token_data_p)
    candidates = llama.llama_token_data_array(pointer, len(ids), -1, False)
    llama.llama_sampler_apply(sampler, ctypes.byref(candidates))
    return np.isfinite(table["logit"])


def main() -> None:
    """Serve workloads."""
    kind = sys.argv[2] if len(sys.argv) > 2 else ""
    engine = Engine(requantised(sys.argv[1], kind) if kind else sys.argv[1])
    name = f"llama.cpp {kind or 'as it is'}, sequence copy"
    serve(
        name,
        llama.__version__,
        lambda calls, levels: run(engine, calls, levels),
        lambda calls, schema: run_json(engine, calls, schema),
    )


if __name__ == "__main__":
    main()
