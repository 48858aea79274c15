"""Prefill without a generation, for prefixes that are computed before their use."""

from __future__ import annotations

from collections.abc import Callable

from radixlang.progress import awaited
from radixlang.runtime.requests.branch import EngineBranch
from radixlang.sampling_params import SamplingParams

_NOTHING_MORE = SamplingParams(max_tokens=1, temperature=0.0, heal=False)


def prefill(branch: EngineBranch, num_prompt_tokens: Callable[[], int]) -> tuple[int, ...]:
    """Compute a branch's prompt and return its tokens; a bar shows the progress.

    Args:
        num_prompt_tokens: the runtime's counter of prompt tokens, cached or computed.

    Raises:
        PromptTooLongError, PoolExhaustedError: it does not fit.
    """
    tokens = branch.tokens().result()
    answer = branch.generate(_NOTHING_MORE)
    awaited(answer, "computing the prefix", len(tokens), "token", num_prompt_tokens)
    return tokens
