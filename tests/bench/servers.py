"""The two servers of a comparison, each started, measured and stopped the same way.

Pulsar comes from a kit, a folder with `start.sh DIR`, `stop.sh DIR` and `perf.sh` (pulsar-perf),
which `make bench PULSAR_KIT=DIR` names. Both servers run side by side, one under load at a time.
"""

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tests.bench.secured import OPEN, Security

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
READY_TIMEOUT_S = 120.0
UNGUARDED_PATH = "/metrics/"
"""A path that Pulsar serves without credentials."""
READY_PATH = "/admin/v2/namespaces/public/default"


class Server(Protocol):
    """A server under measurement."""

    name: str
    port: int
    port_tls: int
    http_port: int
    pids: dict[str, int]
    """Its processes by name, such as `broker1`."""

    def start(self) -> float:
        """Seconds until it is ready: the namespace is there over REST, and the port accepts."""

    def stop(self) -> None: ...


def wait_ready(
    http_port: int,
    started: float,
    alive: "subprocess.Popen[bytes] | None",
    headers: Mapping[str, str] | None = None,
) -> float:
    """Polls until the default namespace answers; the seconds since `started`."""
    url = f"http://127.0.0.1:{http_port}{READY_PATH}"
    request = urllib.request.Request(url, headers=dict(headers or {}))
    while time.monotonic() - started < READY_TIMEOUT_S:
        if alive is not None and alive.poll() is not None:
            raise SystemExit("the server exited during start")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - our own server
                if answer.status == 200:
                    return time.monotonic() - started
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.005)
    raise SystemExit(f"not ready after {READY_TIMEOUT_S} s")


class MagnetarServer:
    """This checkout's standalone."""

    name = "magnetar"

    def __init__(
        self,
        root: Path,
        port: int,
        http_port: int,
        port_tls: int = 0,
        security: Security = OPEN,
    ) -> None:
        self.data_dir = root / "magnetar"
        self.port, self.http_port, self.port_tls = port, http_port, port_tls
        self._security = security
        self.pids: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> "subprocess.Popen[bytes]":
        """Starts the process and does not wait for it to serve."""
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        options: list[str] = []
        if self._security.settings:
            config = self.data_dir.parent / "magnetar.conf"
            lines = (f"{key}={value}\n" for key, value in self._security.settings.items())
            config.write_text("".join(lines))
            options += ["--config", str(config)]
        if self._security.ca is not None:
            options += ["--port-tls", str(self.port_tls)]
        with (self.data_dir.parent / "magnetar.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "magnetar.cli.main", "standalone"),
                    *("--data-dir", str(self.data_dir)),
                    *("--port", str(self.port), "--http-port", str(self.http_port)),
                    *options,
                ],
                stdout=log,
                stderr=log,
            )
        self.pids = {"standalone": self._process.pid}
        return self._process

    def start(self) -> float:
        started = time.monotonic()
        return wait_ready(self.http_port, started, self.launch(), self._security.http_headers())

    def stop(self) -> None:
        """Kills the process: a restart is measured as after a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)


class PulsarServer:
    """The kit's standalone, which does not fsync its journal."""

    name = "pulsar"

    def __init__(
        self,
        kit: Path,
        root: Path,
        port: int,
        http_port: int,
        port_tls: int = 0,
        security: Security = OPEN,
    ) -> None:
        self.kit, self.data_dir = kit, root / "pulsar"
        self.port, self.http_port, self.port_tls = port, http_port, port_tls
        self._security = security
        self.pids: dict[str, int] = {}

    def start(self) -> float:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "PULSAR_PORT": str(self.port),
            "HTTP_PORT": str(self.http_port),
        }
        if self._security.settings:
            settings = self._security.settings.items()
            environment["EXTRA_CONF"] = " ".join(f"{key}={value}" for key, value in settings)
            environment["READY_PATH"] = UNGUARDED_PATH
        if self._security.ca is not None:
            environment["PULSAR_TLS_PORT"] = str(self.port_tls)
        started = time.monotonic()
        output = subprocess.run(
            [str(self.kit / "start.sh"), str(self.data_dir)],
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        found = re.search(r"pid (\d+)", output)
        if found is None:
            raise SystemExit(f"the kit did not name the server's pid: {output}")
        self.pids = {"standalone": int(found.group(1))}
        return wait_ready(self.http_port, started, None, self._security.http_headers())

    def stop(self) -> None:
        subprocess.run([str(self.kit / "stop.sh"), str(self.data_dir)], check=False)


def cpu_seconds(server: Server) -> dict[str, float]:
    """User and system CPU time of each process so far."""
    return {name: _cpu_seconds(pid) for name, pid in server.pids.items()}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def memory_mib(server: Server) -> tuple[float, float]:
    """Resident memory of all its processes now, and the sum of their peaks."""
    both = [_memory_mib(pid) for pid in server.pids.values()]
    return sum(now for now, _ in both), sum(peak for _, peak in both)


def shared_memory_mib(server: Server) -> float:
    """Memory of all its processes, a page that n of them share counted 1/n each (PSS).

    This is the memory that the machine loses; the sum of resident memory counts such a page n
    times.
    """
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in server.pids.values()]
    found = [re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE) for text in texts]
    return sum(int(match.group(1)) / 1024 for match in found if match is not None)


def _memory_mib(pid: int) -> tuple[float, float]:
    text = Path(f"/proc/{pid}/status").read_text()
    now, peak = (
        int(match.group(1)) / 1024
        for key in ("VmRSS", "VmHWM")
        if (match := re.search(key + r":\s+(\d+)", text)) is not None
    )
    return now, peak
