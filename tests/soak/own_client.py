"""The process of `application.py`, and what it reports."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final, Self, TextIO

KEPT_S: Final = 120
"""Time to live of messages that no subscription takes."""
STOP_TIMEOUT_S: Final = 300.0
"""For the last rounds, and the end of both clients."""


class OwnClient:
    """A program of our client in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, lines: TextIO) -> None:
        self._process, self._lines = process, lines
        self._last: dict[str, Any] = {"rounds": 0, "faults": []}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, url: str, rate: float, lines: TextIO) -> Self:
        """Starts the process; its reports are copied to `lines`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.soak.application", "--url", url, "--rate", str(rate)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process, lines)

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    @property
    def rounds(self) -> int:
        """Rounds up to the last report."""
        return int(self._last["rounds"])

    def resident_mib(self) -> float:
        """Memory of the process that is in RAM now; 0 once it has ended."""
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (FileNotFoundError, IndexError):
            return 0.0
        return pages * 4096 / (1 << 20)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._last = json.loads(line)
            print(json.dumps({"client": self._last}), file=self._lines, flush=True)

    async def stop(self) -> list[str]:
        """Ends the program; returns what it found to be wrong."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                code = await self._process.wait()
        except TimeoutError:
            self._process.kill()
            code = await self._process.wait()
        await self._reading
        faults = list(self._last["faults"])
        if code != 0 and not faults:
            faults.append(f"the program ended with exit code {code}")
        return faults
