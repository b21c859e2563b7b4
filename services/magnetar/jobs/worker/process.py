"""Runs a task in a worker process, and reads the log for it.

The worker asks for entries, one answer at a time, so the broker holds few answers of READ_BYTES,
whatever the size of the task. Cancelling the call kills the process.
"""

import asyncio
import pickle
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, cast

import msgspec

from magnetar.bookie.api import BookieError, NoSuchLedger, StoredEntry
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.jobs.log.log import Log
from magnetar.jobs.log.ranges import Range
from magnetar.jobs.worker.child import Task
from magnetar.jobs.worker.frames import (
    LENGTH_BYTES,
    READ_BYTES,
    Alive,
    Answer,
    Done,
    Entries,
    Failed,
    Read,
    Refused,
    Request,
    decode_request,
    encode,
    framed,
    length_of,
)
from magnetar.ledger.copies_reader import CopiesReader
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.records import read_record

PROGRAM: Final = (sys.executable, "-P", "-m", "magnetar.jobs.worker")
SILENCE_S_MAX: Final = 900.0
"""Between two frames of a worker: it may sort keys, or read and verify a file of one part."""
WRITE_TIMEOUT_S: Final = 900.0
"""For a worker to take an answer: it may be writing a file."""
END_TIMEOUT_S: Final = 5.0
"""For a worker that closed its pipe to end by itself."""
READ_ATTEMPTS_MAX: Final = 5
READ_ATTEMPTS_PLANNED: Final = 2
"""Attempts by the ledger's record as it was planned; then it is read again."""


async def in_worker(log: Log, task: Task, ranges: Iterable[Range]) -> object:
    """Runs the task, which reads these ranges, and returns its result.

    Raises PersistenceError if the task fails, or the process dies.
    """
    process = await create_subprocess_exec(
        *PROGRAM, stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    try:
        return await _Served(log, process, ranges).result(task)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        with suppress(TimeoutError):  # its exit code says more than that of a kill
            async with asyncio.timeout(END_TIMEOUT_S):
                await process.wait()
        code = await _ended(process)
        raise PersistenceError(
            f"the worker process ended with {code} before it was done; its messages are on the "
            "broker's standard error"
        ) from error
    except TimeoutError as error:
        raise PersistenceError(
            f"the worker process did nothing for {SILENCE_S_MAX:g} s, and was stopped"
        ) from error
    finally:
        await _ended(process)


async def _ended(process: Process) -> int:
    """Ends the process, and returns its exit code."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    return await process.wait()


class _Served:
    """A worker process and what it reads."""

    def __init__(self, log: Log, process: Process, ranges: Iterable[Range]) -> None:
        self._to = cast("asyncio.StreamWriter", process.stdin)
        self._from = cast("asyncio.StreamReader", process.stdout)
        self._log = log
        self._copies = CopiesReader(log.context)
        self._ledgers = {ranged.ledger_id: ranged.metadata for ranged in ranges}

    async def result(self, task: Task) -> object:
        await self._send(pickle.dumps(task))
        while True:
            match await self._receive():
                case Done(result):
                    return pickle.loads(result)  # noqa: S301 - from our own child
                case Failed(error):
                    raise PersistenceError(error)
                case Alive():
                    continue
                case Read() as read:
                    await self._send(encode(await self._answer(read)))

    async def _receive(self) -> Request:
        async with asyncio.timeout(SILENCE_S_MAX):
            try:
                length = length_of(await self._from.readexactly(LENGTH_BYTES))
                request: Request = decode_request(await self._from.readexactly(length))
            except (ValueError, msgspec.DecodeError) as error:
                raise PersistenceError(f"the worker process sent no frame: {error}") from error
        return request

    async def _send(self, payload: bytes) -> None:
        self._to.write(framed(payload))
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await self._to.drain()

    async def _answer(self, read: Read) -> Answer:
        try:
            entries = await self._read(read)
        except (MagnetarError, TimeoutError) as error:
            return Refused(str(error) or type(error).__name__)
        return Entries(read.first, [entry.data for entry in entries])

    async def _read(self, read: Read) -> list[StoredEntry]:
        attempt = 0
        while True:
            metadata = await self._metadata(read.ledger_id)
            try:
                return await self._copies.read(
                    metadata, read.first, read.last, bytes_max=READ_BYTES
                )
            except (BookieError, TimeoutError) as error:
                attempt += 1
                if attempt >= READ_ATTEMPTS_MAX or isinstance(error, NoSuchLedger):
                    raise
                await self._log.context.back_off(attempt)
                if attempt >= READ_ATTEMPTS_PLANNED:
                    del self._ledgers[read.ledger_id]

    async def _metadata(self, ledger_id: int) -> LedgerMetadata:
        """Where the ledger is; that of a range with a file names no bookies."""
        metadata = self._ledgers.get(ledger_id)
        if metadata is None or not metadata.ensembles:
            metadata, _ = await read_record(self._log.context, ledger_id)
            self._ledgers[ledger_id] = metadata
        return metadata
