"""The demo's client processes, each with a pipe for its reports."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

from magnetar.cli.demo.reports import Reader, Report

READ_BYTES: Final = 1 << 18
LEAVE_TIMEOUT_S: Final = 20.0

OnReports = Callable[[list[Report]], None]


class Worker:
    """A client process. Its reports arrive on the event loop, even after it was killed."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, pipe: int) -> None:
        self.name = name
        self.dismissed = False
        self._process = process
        self._pipe = pipe
        self._reader = Reader()
        self._drained = asyncio.Event()

    @classmethod
    async def start(
        cls, module: str, name: str, arguments: list[str], log: str, on_reports: OnReports
    ) -> "Worker":
        """Starts `python -m module` with the arguments and the pipe."""
        pipe, write_end = os.pipe()
        os.set_blocking(pipe, False)
        command = [sys.executable, "-m", module, *arguments, "--log", log]
        command += ["--report-fd", str(write_end)]
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        process = await asyncio.create_subprocess_exec(
            *command,
            pass_fds=(write_end,),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        os.close(output)
        os.close(write_end)
        worker = cls(name, process, pipe)
        asyncio.get_running_loop().add_reader(pipe, worker._read, on_reports)
        return worker

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    def _read(self, on_reports: OnReports) -> None:
        data = os.read(self._pipe, READ_BYTES)
        if data:
            on_reports(list(self._reader.feed(data)))
        else:
            self._close()

    def _close(self) -> None:
        if not self._drained.is_set():
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._drained.set()

    def signal(self, number: int) -> None:
        """Sends SIGTERM or SIGKILL; from now on, the process is expected to end."""
        self.dismissed = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self) -> int:
        """Waits until it has ended and all its reports are read; kills it after LEAVE_TIMEOUT_S."""
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._process.wait()
        await self._drained.wait()
        return self._process.returncode or 0
