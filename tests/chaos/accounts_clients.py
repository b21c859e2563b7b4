"""The processes of the campaign of accounts: one bank, and workers that may die.

Each process (`tests/interop/java/accounts`) writes its observations into a file of its own. A new
process replaces a killed worker; the file of the old one stays.
"""

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.chaos.plan import Planned

ATTACH_TIMEOUT_S: Final = 120.0
END_TIMEOUT_S: Final = 240.0
"""For answers that were lost, and for transactions that time out."""
POLL_S: Final = 0.2

Command = Callable[[], list[str]]
"""Returns the command of a process; called once the addresses of the brokers are known."""


class ClientProcess:
    """One process, and the file of its observations."""

    def __init__(self, path: Path, command: list[str]) -> None:
        self.path = path
        self._process: subprocess.Popen[str]
        with path.open("w") as output, path.with_suffix(".err").open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=errors, text=True
            )

    def lines(self) -> list[str]:
        """Return the whole lines that it has written so far."""
        text = self.path.read_text()
        return text[: text.rfind("\n") + 1].splitlines()

    def wait_for(self, word: str, timeout_s: float) -> None:
        """Return once it has written a line that begins with this word; raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not any(line.partition(" ")[0] == word for line in self.lines()):
            if self._process.poll() is not None:
                errors = self.path.with_suffix(".err").read_text()
                raise RuntimeError(f"{self.path.stem} ended: {errors[-2000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.path.stem} wrote no {word} in {timeout_s} s")
            time.sleep(POLL_S)

    def tell(self) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Wait for its end; raises if it does not end, or with an error."""
        self.tell()
        self.wait_for("F", END_TIMEOUT_S)
        if code := self._process.wait(END_TIMEOUT_S):
            raise RuntimeError(f"{self.path.stem} ended with status {code}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it and wait for its end."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Bank:
    """The process that writes orders and reads the accounts."""

    def __init__(self, root: Path, command: Command) -> None:
        self._root, self._command = root, command
        self._process: ClientProcess | None = None

    @property
    def _running(self) -> ClientProcess:
        if self._process is None:
            raise RuntimeError("the bank is not started")
        return self._process

    def start(self) -> None:
        """Start it, and return once it is attached to all accounts."""
        self._process = ClientProcess(self._root / "bank.log", self._command())
        self._process.wait_for("S", ATTACH_TIMEOUT_S)

    def lines(self) -> list[str]:
        """Return its observations."""
        return self._running.lines()

    def size(self) -> int:
        """Return the size of its observations in bytes."""
        return self._running.path.stat().st_size

    def end_orders(self) -> None:
        """End the orders; return once every order has its receipt."""
        self._running.tell()
        self._running.wait_for("D", END_TIMEOUT_S)

    def stop(self) -> None:
        """End it."""
        self._running.end()

    def kill(self) -> None:
        """Kill it if it was started."""
        if self._process is not None:
            self._process.kill()


class Workers:
    """The processes that carry orders out."""

    def __init__(self, root: Path, command: Command, count: int) -> None:
        self._root, self._command, self._count = root, command, count
        self._all: list[ClientProcess] = []
        """Those that were killed as well."""
        self._running: list[ClientProcess] = []

    def start(self) -> None:
        """Start all, and return once they are attached."""
        self._running = [self._begin() for _ in range(self._count)]
        for worker in self._running:
            worker.wait_for("S", ATTACH_TIMEOUT_S)

    def _begin(self) -> ClientProcess:
        worker = ClientProcess(self._root / f"worker-{len(self._all)}.log", self._command())
        self._all.append(worker)
        return worker

    async def disturb(self, planned: Planned) -> None:
        """Kill a worker and start another; faults of other kinds pause it for a while."""
        worker = self._running[planned.index]
        if planned.kind == "kill":
            await asyncio.to_thread(worker.kill)
            await asyncio.sleep(planned.lasts_s)
            self._running[planned.index] = await asyncio.to_thread(self._begin)
        else:
            worker.send(signal.SIGSTOP)
            await asyncio.sleep(planned.lasts_s)
            worker.send(signal.SIGCONT)

    def lines(self) -> list[str]:
        """Return the observations of all."""
        return [line for worker in self._all for line in worker.lines()]

    def size(self) -> int:
        """Return the size of the observations in bytes."""
        return sum(worker.path.stat().st_size for worker in self._all)

    def stop(self) -> None:
        """End those that run; raises if one ended with an error."""
        for worker in self._running:
            worker.end()

    def kill(self) -> None:
        """Kill all."""
        for worker in self._all:
            worker.kill()
