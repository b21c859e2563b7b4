"""The audit log: the role, action, object, address and outcome of each request.

One JSON object per line. A writer task collects the records of AUDIT_FLUSH_S and appends them to a
file in a thread, so a slow disk delays no request; beyond AUDIT_PENDING_MAX the log drops records,
counts them, and reports the number in its next line. What one client can cause by refusals and
connections is bounded (`audit_budget`); the number of records beyond that is reported when a
period ends. A file beyond its limit is renamed to
`NAME.1`, `NAME.1` to `NAME.2`, and so on; the oldest is removed.

Records have names and outcomes only: no bodies, query strings, headers or credentials. A file
belongs to one process; it is readable by its owner alone.
"""

import asyncio
import contextlib
import json
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.observe.audit_budget import AuditBudget

AUDIT_FLUSH_S: Final = 0.2
AUDIT_STOP_S: Final = 5.0
AUDIT_PENDING_MAX: Final = 10_000
"""Records that may wait for the writer."""
AUDIT_TEXT_CHARS_MAX: Final = 512
"""Longer names, which clients may send, are truncated."""
AUDIT_FILE_MODE: Final = 0o600
CUT: Final = "…"

log = get_logger("magnetar.audit")


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One line of the audit log."""

    action: str
    """An HTTP method and path, or a command of the binary protocol such as `PRODUCER`."""
    target: str
    """The object: a topic, a namespace, a tenant; empty if the action names it."""
    role: str
    """The authenticated role; empty if authentication failed."""
    original: str
    """The role behind a proxy; empty without one."""
    address: str
    """The peer's IP address."""
    allowed: bool
    reason: str = ""
    """Why it was denied."""
    status: int = 0
    """The status of the HTTP answer; 0 if there was none, or the action is a command."""
    subscription: str = ""
    """The subscription of a SUBSCRIBE."""
    forwarder: str = ""
    """The role of the broker that passed the request on for `role`; empty if a client sent it."""


class AuditLog:
    """Appends records to a file and rotates it. `start`, then `stop`."""

    def __init__(self, path: Path, file_bytes_max: int, files_max: int, clock: Clock) -> None:
        self.written = 0
        """Records in the file, since the start."""
        self.dropped = 0
        """Records lost because too many waited or the file could not be written."""
        self._path = path
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._clock = clock
        self._pending: deque[tuple[int, AuditRecord]] = deque()
        self.budget = AuditBudget()
        self._dropped_untold = 0
        self._failing = False
        self._tasks = TaskSet("audit")
        self._writer: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audit")

    def start(self) -> None:
        """Opens the file, which shows a wrong path at once, and starts the writer.

        Raises OSError if the file cannot be written.
        """
        self._append(b"")
        self._writer = self._tasks.start(self._write_forever(), "write")

    def record(self, record: AuditRecord) -> None:
        """Queues a record; never waits. For the event loop's thread."""
        if not self.budget.admits(record, self._clock.monotonic()):
            return
        if len(self._pending) >= AUDIT_PENDING_MAX:
            self._drop(1)
            return
        self._pending.append((self._clock.now_ms(), record))

    async def stop(self) -> None:
        """Writes the records that wait, then ends the writer; gives up after AUDIT_STOP_S."""
        self._stopping.set()
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=AUDIT_STOP_S)
        await self._tasks.stop()
        self._thread.shutdown(wait=False)

    async def _write_forever(self) -> None:
        stopping = False
        while not stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AUDIT_FLUSH_S):
                    await self._stopping.wait()
            stopping = self._stopping.is_set()  # before the flush, which is then the last
            await self._flush()

    async def _flush(self) -> None:
        withheld = self.budget.take_due(self._clock.monotonic())
        if not self._pending and not withheld:
            return
        batch = list(self._pending)
        self._pending.clear()
        lines = [_line(at_ms, record) for at_ms, record in batch]
        dropped = self._dropped_untold
        for name, count in (("dropped", dropped), ("withheld", withheld)):
            if count:
                lines.append(json.dumps({"time_ms": self._clock.now_ms(), name: count}))
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._append, data)
        except OSError as error:
            self._drop(len(batch))
            if not self._failing:
                log.error("audit log not written", path=str(self._path), error=str(error))
            self._failing = True
        else:
            self.written += len(batch)
            self._dropped_untold -= dropped
            self._failing = False

    def _drop(self, records: int) -> None:
        self.dropped += records
        self._dropped_untold += records

    def _append(self, data: bytes) -> None:
        descriptor = os.open(
            self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, AUDIT_FILE_MODE
        )
        with os.fdopen(descriptor, "ab") as file:
            file.write(data)
            size = file.tell()
        if size > self._file_bytes_max:
            self._rotate()

    def _rotate(self) -> None:
        for number in range(self._files_max - 1, 0, -1):
            older = self._numbered(number)
            newer = self._numbered(number - 1) if number > 1 else self._path
            if newer.exists():
                newer.replace(older)
        if self._files_max == 1:
            self._path.unlink()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _line(at_ms: int, record: AuditRecord) -> str:
    line: dict[str, object] = {
        "time_ms": at_ms,
        "role": _cut(record.role),
        "action": _cut(record.action),
        "target": _cut(record.target),
        "address": record.address,
        "allowed": record.allowed,
    }
    if record.original:
        line["original"] = _cut(record.original)
    for name in ("subscription", "forwarder", "reason"):
        if text := getattr(record, name):
            line[name] = _cut(text)
    if record.status:
        line["status"] = record.status
    return json.dumps(line)


def _cut(text: str) -> str:
    if len(text) <= AUDIT_TEXT_CHARS_MAX:
        return text
    return text[: AUDIT_TEXT_CHARS_MAX - 1] + CUT
