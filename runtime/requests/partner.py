"""The other branch of a generation from two branches' logits.

The two sequences are scheduled like any others, so one may be prefilled, preempted or computed in a
step without the other. The last row of the one that comes first is held until the other's is there.
"""

from __future__ import annotations

from torch import Tensor

from radixlang.protocol import Contrast
from radixlang.runtime.requests.branch_state import BranchState
from radixlang.runtime.sampling.row import OtherRow
from radixlang.runtime.scheduling.sequence import TokenSequence


class Partner:
    """The branch and sequence whose logits are contrasted, and the rows that are held.

    Args:
        sequence: its prompt; the generated tokens are appended here too.
        how: the formula.
    """

    def __init__(self, branch: BranchState, how: Contrast) -> None:
        self.branch = branch
        self.how = how
        self.sequence: TokenSequence
        self._rows: dict[TokenSequence, Tensor] = {}

    def join(self, first: TokenSequence, second: TokenSequence) -> None:
        """Advance the second sequence together with the first one."""
        first.partner, second.partner = second, first
        self.sequence = second

    def append(self, token_id: int) -> None:
        """Take a token of the generation."""
        self.sequence.append(token_id)
        self.sequence.first_logit = self.sequence.num_tokens - 1

    def hold(self, sequence: TokenSequence, row: Tensor) -> bool:
        """Keep the model's output at the last token of one of the two, [hidden_size]; True if both
        are there."""
        assert sequence.partner is not None
        self._rows[sequence] = row.clone()
        sequence.held_at = sequence.num_tokens
        return sequence.partner.is_held and sequence.partner.is_running

    def row_of(self, sequence: TokenSequence) -> Tensor:
        """The held row of one of the two."""
        return self._rows[sequence]

    @property
    def other_row(self) -> OtherRow:
        """What the sampler needs of the other branch."""
        return OtherRow(self._rows[self.sequence], self.how)
