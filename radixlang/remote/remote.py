"""`Remote`: an OpenAI-compatible endpoint as a Backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from radixlang.errors import ParameterError, RuntimeClosedError, refuse_pickling
from radixlang.protocol import Message
from radixlang.remote.abilities import KINDS, OPENAI, Need, abilities_of, needs_of
from radixlang.remote.branch import Connection, RemoteBranch
from radixlang.remote.endpoint import Endpoint, EndpointOptions
from radixlang.remote.event_loop import LoopThread
from radixlang.remote.requests import RemoteRequests
from radixlang.remote.turns import render_turns

if TYPE_CHECKING:
    import httpx2

    from radixlang.program.program import Program

_UNKNOWN_LENGTH = 1 << 17  # tokens, of a server that does not tell


@dataclass(frozen=True, slots=True)
class RemoteStats:
    """Counts since the start, as the server tells them."""

    num_requests: int = 0
    num_retries: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0


class Remote:
    """Runs programs on a server; implements `radixlang.protocol.Backend`.

    `radixlang serve` gives exactly what a local runtime gives, token by token. Other servers are
    sent text or conversations; what they cannot do is refused by name, and `explain` says before
    a run what that is.

    Args:
        url: the endpoint with its "/v1".
        model: the model's name there; "" takes the first of its list.
        key: sent as a bearer token.
        kind: "radixlang", "vllm", "sglang", "llamacpp" or "openai"; None asks the server.
        options: timeouts, retries and how many requests at once.
        transport: of httpx2, for tests and proxies.

    Raises:
        ParameterError: the endpoint refuses, or has no such model.
        RequestError: it does not answer.
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        key: str | None = None,
        *,
        kind: str | None = None,
        options: EndpointOptions | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        if kind not in (None, "openai", *KINDS):
            raise ParameterError(f"kind is one of openai, {', '.join(KINDS)}; got {kind!r}")
        self.loop = LoopThread("radixlang-remote")
        # for calls that wait: they may come from callbacks on the first loop
        self._waiting_loop = LoopThread("radixlang-remote-waiting")
        try:
            self._endpoint = self.loop.call(_opened(url, key, options, transport))
            self._asked = self._waiting_loop.call(_opened(url, key, options, transport))
            listed = self._waiting_loop.call(self._asked.get("models"))
            known = {str(each["id"]): each for each in listed.get("data") or ()}
            if model and known and model not in known:
                raise ParameterError(f"{url} has no model {model!r}; it has: {', '.join(known)}")
            self._model = model or next(iter(known), "")
            told = known.get(self._model, {})
            owner = str(told.get("owned_by", ""))
            self.able = KINDS.get(kind, OPENAI) if kind is not None else abilities_of(owner)
            self._context_length = int(told.get("max_model_len") or _UNKNOWN_LENGTH)
            self.requests = RemoteRequests(self._endpoint, self.able, self._model)
            self._questions = RemoteRequests(self._asked, self.able, self._model)
        except BaseException:
            self.close()
            raise

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self._model

    @property
    def context_length(self) -> int:
        """Most tokens of a prompt and its generation together, as far as the server tells."""
        return self._context_length

    def new_branch(self, *, namespace: str = "") -> RemoteBranch:
        """An empty branch."""
        if self.loop.is_closed:
            raise RuntimeClosedError("the remote backend was closed")
        return RemoteBranch(Connection(self.loop, self.requests), namespace)

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The server's chat template, or marks around turns that it is sent as messages."""
        if not self.able.tokens:
            return render_turns(messages, add_generation_prompt=add_generation_prompt)
        rows = [{"role": m.role, "content": m.content} for m in messages]
        return self._waiting_loop.call(self._questions.render(rows, add_generation_prompt))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text run at the start of a prompt, BOS excluded."""
        return self._waiting_loop.call(self._questions.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        return self._waiting_loop.call(self._questions.decode(token_ids))

    def compile_constraint(self, spec: object) -> object:
        """The constraint itself, checked as far as the endpoint's kind is known.

        Raises:
            UnsupportedConstraintError: the endpoint has no such constraint.
        """
        self.requests.check(spec)
        return spec

    def explain(self, program: Program, **arguments: object) -> list[Need]:
        """What a program needs of this endpoint: served, emulated or refused. It is not run."""
        return needs_of(program.trace(**arguments), self.able)

    def stats(self) -> RemoteStats:
        """Counts since the start."""
        told = self.requests
        return RemoteStats(told.num_requests, self._endpoint.num_retries, told.num_prompt_tokens,
                           told.num_cached_tokens, told.num_generated_tokens)  # fmt: skip

    def close(self) -> None:
        """Cancel what runs, and close all connections."""
        for loop, endpoint in ((self.loop, "_endpoint"), (self._waiting_loop, "_asked")):
            if not loop.is_closed and hasattr(self, endpoint):
                loop.call(getattr(self, endpoint).close())
            loop.close()

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a Remote", "make one in each process")

    def __repr__(self) -> str:
        return f"Remote({self._endpoint.url!r}, {self._model!r})"


async def _opened(
    url: str, key: str | None, options: EndpointOptions | None,
    transport: httpx2.AsyncBaseTransport | None,
) -> Endpoint:  # fmt: skip
    return Endpoint(url, key, options or EndpointOptions(), transport)
