"""Users' functions of logits (`gen(logits=f)`), called between a step's logits and its sampling.

The engine waits for them, so a function sees its row while nothing else runs, and all rows of a
step wait for the slowest. They run on a thread of their own all the same: a function that never
returns then costs the engine one bounded wait, and only its own generation fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.errors import LogitsError
from radixlang.runtime.process.openmp import leaves_no_team
from radixlang.runtime.sampling.row import SamplingRow
from radixlang.user_code import user_threads

MAX_CALL_S = 2.0  # seconds that the engine waits for one call


@dataclass(frozen=True, slots=True)
class LogitsContext:
    """The row of logits from which a generation's next token is about to be sampled.

    Args:
        logits: float32 [vocab_size], the model's own (of a contrast, those of both branches), a
            copy on the model's device: change it in place and return None, or return another one.
            -inf bans a token. Biases, penalties, the constraint's mask and the temperature are
            applied after it.
        prompt_ids: int32, tokens before the generation.
        generated_ids: int32, tokens of the generation so far, forced ones included.
    """

    logits: Tensor
    prompt_ids: NDArray[np.int32]
    generated_ids: NDArray[np.int32]

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """Prompt and generation together."""
        return np.concatenate((self.prompt_ids, self.generated_ids))


def apply_functions(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Call the functions of the rows that have one; each sets its row's `changed` or `error`.

    Args:
        logits: float32 [num_rows, vocab_size]; not changed.
    """
    calls = [
        _Call(row, (logit if row.changed is None else row.changed[: len(logit)]).clone())
        for logit, row in zip(logits, rows, strict=True)
        if row.params.logits is not None
    ]
    while calls:
        calls = calls[_Calls(calls).run() :]


class _Call:
    """One call: its row, and the logits that the function may change."""

    def __init__(self, row: SamplingRow, logits: Tensor) -> None:
        self.row = row
        self.logits = logits

    def __call__(self) -> Tensor | LogitsError:
        """The changed logits, or the error of the call."""
        row, own = self.row, self.logits
        if not bool(own.isfinite().all()):
            return own  # the request fails by the model's numbers
        function = row.params.logits
        assert function is not None
        try:
            found = function(LogitsContext(own, row.prompt_ids, row.generated_ids))
            return self._checked(own if found is None else found)
        except BaseException as error:
            said = f"raised {type(error).__name__}: {error}"
            return self._error(said, error)

    def _checked(self, found: object) -> Tensor | LogitsError:
        own = self.logits
        if not isinstance(found, Tensor):
            return self._error(f"returned {type(found).__name__}, neither a Tensor nor None")
        if found.shape != own.shape:
            return self._error(f"returned shape {tuple(found.shape)}, not {tuple(own.shape)}")
        found = found.to(own)
        if bool((found.isnan() | (found == torch.inf)).any()):
            return self._error("gave NaN or infinite logits; -inf alone is allowed, for a ban")
        return found

    def _error(self, said: str, cause: BaseException | None = None) -> LogitsError:
        row = self.row
        name = getattr(row.params.logits, "__qualname__", type(row.params.logits).__name__)
        error = LogitsError(
            f"the function {name} given as logits= {said}, for token {row.index} of its generation"
        )
        error.__cause__ = cause
        return error

    def overrun(self) -> LogitsError:
        """The error of a call that has not returned in time."""
        return self._error(
            f"ran longer than {MAX_CALL_S:g} s, for which the whole engine waited; do slow work "
            "before the run, or between generations"
        )


class _Calls:
    """Calls in order, on another thread; given up at the first that runs too long."""

    def __init__(self, calls: list[_Call]) -> None:
        self._calls = calls
        self._changed = threading.Condition()
        self._num_done = 0
        self._begun_s = time.monotonic()
        self._is_given_up = False

    def run(self) -> int:
        """Wait for the calls; returns how many have ended, the one given up included."""
        user_threads.submit(self._work)
        with self._changed:
            while self._num_done < len(self._calls):
                at = self._num_done
                left_s = self._begun_s + MAX_CALL_S - time.monotonic()
                if left_s > 0:
                    self._changed.wait_for(partial(self._is_past, at), left_s)
                elif self._num_done == at:
                    self._is_given_up = True
                    call = self._calls[at]
                    call.row.error = call.overrun()
                    return at + 1
        return self._num_done

    def _is_past(self, at: int) -> bool:
        return self._num_done > at

    @leaves_no_team
    @torch.inference_mode()
    def _work(self) -> None:
        for call in self._calls:
            found = call()
            with self._changed:
                if self._is_given_up:
                    return
                if isinstance(found, LogitsError):
                    call.row.error = found
                else:
                    call.row.changed = found
                self._num_done += 1
                self._begun_s = time.monotonic()
                self._changed.notify()
