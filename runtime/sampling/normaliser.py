"""The normaliser of a row of logits, the same whatever the row's company."""

from __future__ import annotations

import torch
from torch import Tensor

SERIAL_WIDTH = 16_384  # numbers that torch reduces on one thread whatever their company


def log_normaliser(logits: Tensor) -> Tensor:
    """Log of the sum of exponentials of every row, [n] of [n, width].

    In pieces that torch sums on one thread: it splits a long row that is alone among its threads,
    and the last bits would then depend on their number and on the row's company.
    """
    if logits.device.type != "cpu":
        return logits.logsumexp(dim=1)
    pieces = [piece.logsumexp(dim=1) for piece in torch.split(logits, SERIAL_WIDTH, dim=1)]
    return torch.stack(pieces, dim=1).logsumexp(dim=1)
