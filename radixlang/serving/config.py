"""How a server serves: address, keys, limits and deadlines, in one record."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixlang.errors import ParameterError
from radixlang.sampling_params import SamplingKeywords, SamplingParams

_POSITIVE = (
    "max_body_bytes", "max_tokens", "max_choices", "max_requests", "max_requests_per_key",
    "max_stored", "max_stored_tokens", "stored_s", "timeout_s", "body_timeout_s", "shutdown_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of a server.

    Args:
        host: the address it listens on; the loopback address is reached from this machine only.
        port: 0 takes a free one.
        api_keys: keys of clients. With none, everyone may ask. Clients of different keys share no
            cached tokens, so timing tells them nothing of each other.
        model: the model's name in requests and replies; "" is the backend's own.
        sampling: parameters of a generation that its request leaves open.
        max_body_bytes: largest body of a request.
        max_tokens: most tokens that one request may generate, all its choices together.
        max_choices: most choices of a request, over all its prompts.
        max_requests: requests served at the same time; further ones are told to come again.
        max_requests_per_key: the same for the clients of one key.
        max_stored: most choices of replies that are kept for requests with `parent_id`.
        max_stored_tokens: most tokens of these, each counted with its whole prompt.
        stored_s: seconds without use after which one is dropped.
        timeout_s: seconds after which a request ends, whatever its client asks for.
        body_timeout_s: seconds in which a body must have arrived.
        shutdown_s: seconds that running requests have to end when the server is told to stop.
        idle_exit_s: stop after so many seconds without a request; None serves on.

    Raises:
        ParameterError: a value is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    model: str = ""
    sampling: SamplingKeywords = field(default_factory=SamplingKeywords)
    max_body_bytes: int = 4 << 20
    max_tokens: int = 1 << 16
    max_choices: int = 256
    max_requests: int = 512
    max_requests_per_key: int = 512
    max_stored: int = 256
    max_stored_tokens: int = 1 << 18
    stored_s: float = 600.0
    timeout_s: float = 600.0
    body_timeout_s: float = 30.0
    shutdown_s: float = 30.0
    idle_exit_s: float | None = None

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if not value > 0:
                raise ParameterError(f"{name} must be above 0, got {value!r}")
        if not 0 <= self.port < 1 << 16:
            raise ParameterError(f"port must be between 0 and 65535, got {self.port!r}")
        if any(not key.strip() or not key.isascii() for key in self.api_keys):
            raise ParameterError("an API key must be ASCII text that is not blank")
        SamplingParams.checked(**self.sampling)
