"""Runs the application: in the foreground until it is told to stop, or beside a caller's code."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from radixlang.errors import ParameterError
from radixlang.program.program import Program
from radixlang.serving.app import ServerApp
from radixlang.serving.config import ServerConfig
from radixlang.serving.served_backend import ServedBackend

_LOOK_EVERY_S = 0.1


def serve(
    backend: ServedBackend, config: ServerConfig, tell: Callable[[str], None] = print,
    programs: Sequence[Program] = (),
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM, or `idle_exit_s`; running requests may then end.

    Args:
        backend: stays open.
        tell: is given the server's address once it listens.
        programs: each is served at /programs/NAME.

    Raises:
        ParameterError: the address is taken or not this machine's, or a program cannot be served.
    """
    app = ServerApp(backend, config, programs)
    listener = _listener(config)
    server = _Server(_settings(app, config), app, config)
    with contextlib.closing(app), contextlib.closing(listener), _stops_quietly():
        tell(address_of(listener))
        server.run(sockets=[listener])


@contextlib.contextmanager
def _stops_quietly() -> Iterator[None]:
    """SIGINT and SIGTERM end the block: uvicorn raises them again once its requests have ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def serving(
    backend: ServedBackend, config: ServerConfig | None = None, programs: Sequence[Program] = ()
) -> Iterator[str]:
    """A server on another thread while the block runs; the value is its address.

    Each of `programs` is served at /programs/NAME, as by `radixlang serve FILE`.
    Without a config it listens on a free port of the loopback address.
    """
    config = config or ServerConfig(port=0)
    app = ServerApp(backend, config, programs)
    listener = _listener(config)
    server = _Server(_settings(app, config), app, config)
    thread = threading.Thread(
        target=lambda: server.run(sockets=[listener]), name="radixlang-server", daemon=True
    )
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        yield address_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        app.close()


class _Server(uvicorn.Server):
    """uvicorn's server, which may also end by itself when nobody asks."""

    def __init__(self, settings: uvicorn.Config, app: ServerApp, config: ServerConfig) -> None:
        super().__init__(settings)
        self._gate = app.gate
        self._idle_exit_s = config.idle_exit_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets=sockets)
        self._gate.last_request_s = time.monotonic()
        if self._idle_exit_s is not None:
            self._watch = asyncio.create_task(self._end_when_idle(self._idle_exit_s))

    async def _end_when_idle(self, idle_s: float) -> None:
        gate = self._gate
        while gate.num_running or time.monotonic() - gate.last_request_s < idle_s:
            await asyncio.sleep(min(_LOOK_EVERY_S, idle_s))
        self.should_exit = True


def _settings(app: ServerApp, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=max(1, round(config.shutdown_s)),
    )  # fmt: skip


def _listener(config: ServerConfig) -> socket.socket:
    """A listening socket, bound before anything is said of it."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ParameterError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}; take "
            "another port, or 0 for a free one"
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
