"""The outcome of one row of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from radixlang.errors import ProgramError, StateClosedError
from radixlang.state.state import State


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one row: values by name, or an error.

    It pickles without its state, which belongs to the process that ran it.
    """

    index: int
    row: Mapping[str, object]
    values: Mapping[str, Any] = field(default_factory=dict)  # of the types that were asked for
    text: str = ""
    error: ProgramError | None = None
    run_state: State | None = field(default=None, repr=False, compare=False)

    @property
    def state(self) -> State:
        """The finished state of the row.

        Raises:
            StateClosedError: it has none: the row was read from a file, comes out of a pickle, or
                never started.
        """
        if self.run_state is None:
            raise StateClosedError(
                f"the result of row {self.index} has no state: it was read from a file, comes from "
                "another process, or never started. Its values are in `values` and its prompt in "
                "`text`; for more than that, run the row again"
            ) from self.error
        return self.run_state

    def __reduce__(self) -> tuple[object, ...]:
        return Result, (self.index, dict(self.row), dict(self.values), self.text, self.error)

    def __getitem__(self, name: str) -> Any:  # of the type that the program gave it
        """A value of the row; raises the row's error if it has one."""
        if self.error is not None:
            raise self.error
        return self.values[name]
