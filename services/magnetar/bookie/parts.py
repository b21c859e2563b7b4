"""Opens a data directory: lock, identity, index, checkpoint, replay; returns the bookie's parts.

All of it blocks, and runs on one thread before the bookie serves requests.
"""

import errno
from collections.abc import Callable
from pathlib import Path

import msgspec

from magnetar.bookie import identity as identity_file
from magnetar.bookie.cache.write_cache import WriteCacheHalf
from magnetar.bookie.entry_log.flush import Flusher, FlushJob
from magnetar.bookie.entry_log.logs import EntryLogs
from magnetar.bookie.identity import DataDirError, Identity
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import Index
from magnetar.bookie.index.ledgers import Ledgers
from magnetar.bookie.index.store import Batch, IndexDamaged, IndexStore
from magnetar.bookie.journal.checkpoint import Checkpoint, Mark
from magnetar.bookie.journal.files import JournalPosition, JournalTrim
from magnetar.bookie.journal.replay import UNKNOWN, Replay, ReplayResult, find_mark
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.upkeep.disk_guard import delete_reserve_file
from magnetar.core.clock import Clock
from magnetar.core.log import get_logger
from magnetar.disk.files import File, Files

log = get_logger("magnetar.bookie.parts")

OpenIndex = Callable[[Path], IndexStore]


class Parts(msgspec.Struct):
    """The parts of a bookie that an opened data directory yields."""

    lock: File
    identity: Identity
    index: Index
    ledgers: Ledgers
    logs: EntryLogs
    checkpoint: Checkpoint
    trim: JournalTrim
    flusher: Flusher
    half: WriteCacheHalf
    recovered: ReplayResult
    journal_dir: Path


def open_parts(
    files: Files,
    data_dir: Path,
    bookie_id: str,
    *,
    settings: BookieSettings,
    clock: Clock,
    open_index: OpenIndex,
) -> Parts:
    """Opens or formats the directory; raises DataDirError."""
    lock = identity_file.lock_data_dir(files, data_dir)
    try:
        full = files.usage(data_dir).free < settings.disk_reserve_bytes
        if full:
            delete_reserve_file(files, data_dir)
        identity, _ = identity_file.open_identity(files, data_dir, bookie_id)
        store: IndexStore | None = None
        try:
            store = open_index(data_dir / identity_file.INDEX_DIR)
            return _recover(
                files,
                data_dir,
                identity=identity,
                settings=settings,
                clock=clock,
                store=store,
                lock=lock,
                full=full,
            )
        except BaseException as error:
            if store is not None:
                store.close()
            if isinstance(error, IndexDamaged):
                text = f"{error}; run `magnetar bookie inspect {data_dir}` for details"
                raise DataDirError(text) from error
            raise
    except BaseException:
        lock.close()
        raise


def _recover(
    files: Files,
    data_dir: Path,
    *,
    identity: Identity,
    settings: BookieSettings,
    clock: Clock,
    store: IndexStore,
    lock: File,
    full: bool,
) -> Parts:
    index = Index(store)
    journal_dir = data_dir / identity_file.JOURNAL_DIR
    mark = find_mark(files, data_dir, identity.salt)
    carried = Batch()
    _check_index(index, identity, mark, data_dir, carried)
    ledgers = Ledgers(index)
    logs = EntryLogs(files, data_dir / identity_file.ENTRY_LOG_DIR, identity.salt, settings)
    checkpoint = Checkpoint(files, data_dir, identity.salt, mark)
    trim = JournalTrim(files, journal_dir, settings)
    flusher = Flusher(
        logs=logs,
        index=index,
        checkpoint=checkpoint,
        settings=settings,
        trim=trim,
        carried=carried,
    )

    replay = Replay(
        files=files,
        journal_dir=journal_dir,
        incarnation=identity.salt,
        settings=settings,
        index=index,
        ledgers=ledgers,
        flush=_replay_flush(ledgers, flusher, data_dir if full else None),
        carried=carried,
        now_ms=clock.now_ms,
    )
    recovered = replay.run(mark)
    if recovered.must_checkpoint or mark == UNKNOWN:
        # Move the checkpoint past the bad bytes, and keep damaged files as evidence. Otherwise the
        # next replay would take a hole in a torn commit for damage. On a full disk, the first
        # flush that has room moves it; after a crash before that, replay meets the bytes again.
        trim.keep({item.path for item in recovered.damage})
        replay.flush(recovered.next_position)
    if recovered.records:
        log.info(
            "bookie data opened",
            path=str(data_dir),
            records_replayed=recovered.records,
            bytes_replayed=recovered.bytes_replayed,
            damaged_ranges=len(recovered.damage),
        )
    return Parts(
        lock=lock,
        identity=identity,
        index=index,
        ledgers=ledgers,
        logs=logs,
        checkpoint=checkpoint,
        trim=trim,
        flusher=flusher,
        half=replay.half,
        recovered=recovered,
        journal_dir=journal_dir,
    )


def _replay_flush(
    ledgers: Ledgers, flusher: Flusher, full_dir: Path | None
) -> Callable[[WriteCacheHalf, JournalPosition], None]:
    """Returns the flush that a replay uses; with `full_dir`, a flush that fails as disk full."""

    def flush(half: WriteCacheHalf, position: JournalPosition) -> None:
        if full_dir is not None:
            # The remaining room is for a new journal file.
            raise OSError(errno.ENOSPC, "the disk is full", str(full_dir))
        states = ledgers.take(half.ledgers)
        last_indexed = {id_: states[id_].last_indexed for id_ in half.ledgers}
        for id_, entries in half.ledgers.items():
            states[id_].last_indexed = max(last_indexed[id_], entries.last)
        records = [(id_, state.record) for id_, state in states.items()]
        try:
            flusher.run(FlushJob(half, position, records, last_indexed))
        except BaseException:
            ledgers.dirty.update(states)
            raise
        finally:
            ledgers.flushing = False

    return flush


def _check_index(
    index: Index, identity: Identity, mark: Mark, data_dir: Path, carried: Batch
) -> None:
    """Raises DataDirError if the index is lost, another bookie's, or older than the checkpoint."""
    owner = index.identity
    if owner is None and mark.position.seq == 0:
        # A new index: the first flush writes its identity.
        index_format.put_identity(carried, identity.salt)
    elif owner is None:
        # An index that is empty although a checkpoint exists was lost.
        raise DataDirError(
            f"{data_dir / identity_file.INDEX_DIR} is empty although entries were stored: "
            "restore it, or decommission this bookie so that its ledgers are copied from others"
        )
    elif owner != bytes([index_format.VERSION]) + identity.salt:
        raise DataDirError(
            f"{data_dir / identity_file.INDEX_DIR} belongs to another bookie, incarnation or "
            "format version"
        )
    lost = index.lost_since(mark)
    if lost:
        # Replay begins at the checkpoint: entries before it that the index lacks would be reported
        # as never added.
        raise DataDirError(
            f"{data_dir / identity_file.INDEX_DIR} is older than the checkpoint: {lost}. The disk "
            "lost synced writes, or an old copy was restored: restore the index that belongs to "
            "the checkpoint, or decommission this bookie so that its ledgers are copied from others"
        )
