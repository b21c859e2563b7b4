"""A `magnetar standalone` of its own process, that a test may kill and start again."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


def held_port(host: str) -> socket.socket:
    """A free port that stays ours: who binds to it by name may listen, and no other is given it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host, 0))
    return holder


class ServerProcess:
    """Keeps its data directory and its ports, from one start to the next."""

    def __init__(self, root: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.data_dir = root / "data"
        self.log = root / "server.log"
        self.flags = flags
        self.environment = {**os.environ, **(environment or {})}
        self.host, self.port, self.http_port = "127.0.0.1", 0, 0
        self.ready_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._holders: list[socket.socket] = []

    def __enter__(self) -> "ServerProcess":
        self._holders = [held_port(self.host) for _ in range(2)]
        self.port, self.http_port = (holder.getsockname()[1] for holder in self._holders)
        try:
            self.start()
        except BaseException:
            self.kill()
            self._release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._release()

    def _release(self) -> None:
        for holder in self._holders:
            holder.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def service_url(self) -> str:
        return f"pulsar://{self.host}:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "magnetar.cli.main", "standalone"),
            *("--data-dir", str(self.data_dir)),
            *("--port", str(self.port), "--http-port", str(self.http_port)),
            *self.flags,
        ]

    def start(self) -> None:
        """Returns once the server is ready; fails with its log where it does not become so."""
        started = time.monotonic()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command(), stdout=output, stderr=subprocess.STDOUT, env=self.environment
            )
        ready_file = self.data_dir / "standalone.json"
        while time.monotonic() - started < START_TIMEOUT_S:
            if self._process.poll() is not None:
                raise AssertionError(f"exited during start:\n{self.log_tail()}")
            # The file of an earlier start goes away at any moment.
            with contextlib.suppress(FileNotFoundError):
                ready = json.loads(ready_file.read_text())
                if ready["pid"] == self._process.pid:
                    self.ready_s = time.monotonic() - started
                    self.port = urlsplit(ready["service_url"]).port or 0
                    self.http_port = urlsplit(ready["http_url"]).port or 0
                    return
            time.sleep(0.005)
        self.kill()
        raise AssertionError(f"not ready within {START_TIMEOUT_S} s:\n{self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL: nothing of the process's memory survives."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Waits until it has ended; returns the exit code."""
        assert self._process is not None
        return self._process.wait(STOP_TIMEOUT_S)

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")
