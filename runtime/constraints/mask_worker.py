"""Masks of many matchers, computed on other threads while the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import llguidance
import numpy as np

from radixlang.errors import ConstraintError
from radixlang.runtime.constraints.matcher import Matcher


class MaskWorker:
    """Computes masks of many matchers in parallel, while the model's step runs.

    Between `submit` and the future's result the matchers must not be used elsewhere.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._executor = llguidance.LLExecutor(num_threads)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="radixlang-masks")

    def submit(self, matchers: Sequence[Matcher]) -> Future[list[BaseException | None]]:
        """Start computing masks; the result has the error of each matcher, or None.

        Afterwards `fill_bitmask` and `is_finished` of a matcher only copy the result.
        """
        return self._thread.submit(self.compute, list(matchers))

    def compute(self, matchers: Sequence[Matcher]) -> list[BaseException | None]:
        """Compute masks now, without the interpreter's lock and on several threads."""
        waiting = [matcher for matcher in matchers if matcher._row is None]
        if waiting:
            width = -(-waiting[0].source.vocabulary.engine.vocab_size // 32)
            rows = np.zeros((len(waiting), width), dtype=np.int32)
            pairs = [(matcher._engine, index) for index, matcher in enumerate(waiting)]
            self._executor.unsafe_compute_mask_ptr(pairs, rows.ctypes.data, width * 4, len(rows))
        errors: dict[int, BaseException] = {}
        for index, matcher in enumerate(waiting):
            try:
                matcher.take_row(rows[index])
            except ConstraintError as error:
                errors[id(matcher)] = error
        return [errors.get(id(matcher)) for matcher in matchers]

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
