"""What the requests of a step that failed are told."""

from __future__ import annotations

from radixlang.errors import RequestError, StepMemoryError

_HOST_ALLOCATOR = "DefaultCPUAllocator"  # torch has no type of its own for memory of the host


def step_error(error: BaseException, num_rows: int) -> RequestError:
    """The error of a step of `num_rows` tokens, as its requests get it."""
    if _is_of_memory(error):
        found: RequestError = StepMemoryError(
            f"there is no memory for a step of {num_rows} tokens ({_first_line(error)}). Other "
            "requests go on. Lower max_batch_tokens or kv_bytes, or end what else holds memory"
        )
    else:
        found = RequestError(
            f"the engine failed while it ran this request: {error!r}. Other requests go on; "
            "please report this with the log"
        )
    found.__cause__ = error
    return found


def _is_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _HOST_ALLOCATOR in str(error)
    )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
