"""The worker process: runs one task, and reads the log through the broker that started it.

It has neither metadata nor bookies, so it can change nothing but the files of its attempt. It runs
with a lower priority, so that the broker's event loop gets the processor first. If the broker dies,
the next read or write of the pipe ends the process.
"""

import os
import pickle
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from pyroaring import BitMap

from magnetar.bookie.api import StoredEntry
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.jobs.event_loop import event_loop
from magnetar.jobs.log.files import FileReader
from magnetar.jobs.log.ranges import Range
from magnetar.jobs.worker.frames import (
    LENGTH_BYTES,
    Alive,
    Done,
    Entries,
    Failed,
    Read,
    Request,
    decode_answer,
    encode,
    framed,
    length_of,
)
from magnetar.offload.errors import COLD_ERRORS

NICENESS: Final = 10
OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
OOM_FIRST: Final = "1000"
"""If memory is short, the kernel ends this process before the broker, which shares its limit."""
ERROR_CHARS_MAX: Final = 500

Task = Callable[[], object]
"""The body of a task. It opens readers by `open_reader`."""


class BrokerGone(EOFError):
    """The broker closed the pipe: it died, or it gave the task up."""


class Pipe:
    """The pipe to the broker."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def receive(self) -> bytes:
        """The next frame. Raises BrokerGone."""
        return self._exactly(length_of(self._exactly(LENGTH_BYTES)))

    def _exactly(self, count: int) -> bytes:
        data = self._incoming.read(count)
        if len(data) < count:
            raise BrokerGone("the broker closed the pipe")
        return data

    def send(self, request: Request) -> None:
        """Sends a frame."""
        self._outgoing.write(framed(encode(request)))
        self._outgoing.flush()

    def read(self, ledger_id: int, first: int, last: int) -> Generator[list[StoredEntry]]:
        """Entries of a ledger, one group while the broker reads the next."""
        self.send(Read(ledger_id, first, last))
        waiting = True
        try:
            while waiting:
                waiting = False
                group = self._answer(ledger_id, first)
                first = group[-1].entry_id + 1
                if first <= last:
                    self.send(Read(ledger_id, first, last))
                    waiting = True
                yield group
        finally:
            if waiting:  # the reader stopped early: the answer must not stay in the pipe
                self.receive()

    def _answer(self, ledger_id: int, first: int) -> list[StoredEntry]:
        answer = decode_answer(self.receive())
        if not isinstance(answer, Entries):
            raise PersistenceError(answer.error)
        if answer.first != first or not answer.data:
            raise PersistenceError(f"entry {ledger_id}:{first} was answered by {answer.first}")
        return [StoredEntry(first + index, data) for index, data in enumerate(answer.data)]


_pipe: list[Pipe] = []
"""The pipe of this process, once `run` has opened it."""


class PipedReader:
    """Reads ranges: files directly, and ledgers through the broker."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._files = FileReader(event_loop())

    def __enter__(self) -> Self:
        # A part may be read from files alone, for which the broker is not asked.
        self._pipe.send(Alive())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Does nothing: the pipe stays open for the next reader."""

    def read(self, ranged: Range) -> Iterator[list[StoredEntry]]:
        """The range's entries in order, without those of aborted transactions, by groups."""
        aborted = BitMap.deserialize(ranged.aborted) if ranged.aborted else None
        with closing(self._groups(ranged)) as groups:
            for group in groups:
                kept = group if aborted is None else _without(group, aborted)
                if kept:
                    yield kept

    def _groups(self, ranged: Range) -> Generator[list[StoredEntry]]:
        first, file = ranged.first, ranged.file
        if file is not None:
            try:
                with closing(self._files.read(file, first, ranged.last)) as groups:
                    for group in groups:
                        yield group
                        first = group[-1].entry_id + 1
                return
            except COLD_ERRORS:
                if file.released_ms:
                    raise  # the bookies may have deleted the ledger
        with closing(self._pipe.read(ranged.ledger_id, first, ranged.last)) as groups:
            yield from groups


def _without(entries: list[StoredEntry], aborted: BitMap) -> list[StoredEntry]:
    return [entry for entry in entries if entry.entry_id not in aborted]


def open_reader() -> PipedReader:
    """A reader for one part of a task. Only a worker process has one."""
    return PipedReader(_pipe[0])


def run(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Runs the task that the broker sends."""
    pipe = Pipe(incoming, outgoing)
    _pipe[:] = [pipe]
    try:
        task: Task = pickle.loads(pipe.receive())  # noqa: S301 - from the broker's own process
        outcome: Done | Failed = Done(pickle.dumps(task()))
    except BrokerGone:
        return
    except (MagnetarError, OSError, TimeoutError) as error:
        outcome = Failed((str(error) or type(error).__name__)[:ERROR_CHARS_MAX])
    pipe.send(outcome)


def main() -> None:
    """Uses standard input and output as the pipe; what libraries print goes to standard error."""
    os.nice(NICENESS)
    with suppress(OSError), OOM_SCORE.open("w") as score:
        score.write(OOM_FIRST)
    outgoing = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    run(sys.stdin.buffer, outgoing)
