"""The server of the demo: its own, which it kills and restarts, or a running one."""

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Final, Protocol

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.01


class ServerFailed(Exception):
    """The demo's own server did not start, or ended without being killed."""


class Server(Protocol):
    """A server to publish to."""

    service_url: str
    http_url: str

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class GivenServer:
    """A running server, which the demo neither kills nor stops."""

    def __init__(self, service_url: str, http_url: str) -> None:
        self.service_url = service_url
        self.http_url = http_url

    async def start(self) -> None:
        """Does nothing: it runs already."""

    async def stop(self) -> None:
        """Does nothing: it keeps running."""


class OwnServer:
    """A `magnetar standalone` process. It takes free ports and keeps them over restarts."""

    def __init__(self, directory: Path) -> None:
        self.service_url = ""
        self.http_url = ""
        self._data_dir = directory / "data"
        self._log = directory / "server.log"
        self._ports = ("0", "0")
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts the server and waits until it is ready."""
        command = [sys.executable, "-m", "magnetar.cli.main", "standalone"]
        command += ["--data-dir", str(self._data_dir), "--log-format", "json"]
        command += ["--port", self._ports[0], "--http-port", self._ports[1]]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, start_new_session=True
            )
        ready = await self._ready(self._process)
        self.service_url, self.http_url = str(ready["service_url"]), str(ready["http_url"])
        self._ports = (self.service_url.rpartition(":")[2], self.http_url.rpartition(":")[2])

    async def _ready(self, process: asyncio.subprocess.Process) -> dict[str, object]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.returncode is not None:
                raise ServerFailed(f"the server ended with {process.returncode}: see {self._log}")
            try:
                ready: dict[str, object] = json.loads(
                    (self._data_dir / "standalone.json").read_text()
                )
            except FileNotFoundError:
                ready = {}
            if ready.get("pid") == process.pid:
                return ready
            await asyncio.sleep(POLL_S)
        raise ServerFailed(f"the server was not ready within {START_TIMEOUT_S} s: see {self._log}")

    async def kill(self) -> None:
        """Kills the server with -9 and waits for its end."""
        if self._process is not None:
            if self._process.returncode is not None:
                raise ServerFailed(f"the server ended with {self._process.returncode} by itself")
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """Stops the server with SIGTERM; kills it if it does not drain in time."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            await self.kill()
