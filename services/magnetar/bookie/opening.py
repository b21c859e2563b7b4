"""Puts a bookie's parts together from a data directory: lock, identity, index, checkpoint, replay.

All of it blocks and runs on one thread before anything is served.
"""

import errno
from collections.abc import Callable
from pathlib import Path

import msgspec

from magnetar.bookie import identity as identity_file
from magnetar.bookie import index as index_format
from magnetar.bookie.checkpoint import Checkpoint, Mark
from magnetar.bookie.disk_guard import release_reserve
from magnetar.bookie.entry_log import EntryLogs
from magnetar.bookie.files import File, Files
from magnetar.bookie.flush import Flusher, FlushJob
from magnetar.bookie.identity import DataDirError, Identity
from magnetar.bookie.index import Index
from magnetar.bookie.index_store import Batch, IndexDamaged, IndexStore
from magnetar.bookie.journal_files import JournalPosition, JournalTrim
from magnetar.bookie.ledgers import Ledgers
from magnetar.bookie.recovery import UNKNOWN, Recovered, Replay, find_mark
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.write_cache import WriteCacheHalf
from magnetar.core.clock import Clock
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.opening")

OpenIndex = Callable[[Path], IndexStore]


class Parts(msgspec.Struct):
    """What a bookie is made of."""

    lock: File
    identity: Identity
    index: Index
    ledgers: Ledgers
    logs: EntryLogs
    checkpoint: Checkpoint
    trim: JournalTrim
    flusher: Flusher
    half: WriteCacheHalf
    recovered: Recovered
    journal_dir: Path


def open_parts(
    files: Files,
    data_dir: Path,
    bookie_id: str,
    settings: BookieSettings,
    clock: Clock,
    open_index: OpenIndex,
) -> Parts:
    """Opens or formats the directory; raises DataDirError."""
    lock = identity_file.lock_data_dir(files, data_dir)
    try:
        full = files.usage(data_dir).free < settings.disk_reserve_bytes
        if full:
            release_reserve(files, data_dir)
        identity, _ = identity_file.open_identity(files, data_dir, bookie_id)
        store: IndexStore | None = None
        try:
            store = open_index(data_dir / identity_file.INDEX_DIR)
            return _recover(files, data_dir, identity, settings, clock, store, lock, full)
        except BaseException as error:
            if store is not None:
                store.close()
            if isinstance(error, IndexDamaged):
                text = f"{error}; `magnetar bookie inspect {data_dir}` says more"
                raise DataDirError(text) from error
            raise
    except BaseException:
        lock.close()
        raise


def _recover(
    files: Files,
    data_dir: Path,
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
    flusher = Flusher(logs, index, checkpoint, settings, trim, carried)

    def flush(half: WriteCacheHalf, position: JournalPosition) -> None:
        if full:
            # What room there is, is for a new journal file.
            raise OSError(errno.ENOSPC, "the disk is full", str(data_dir))
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

    replay = Replay(
        files, journal_dir, identity.salt, settings, index, ledgers, flush, carried, clock.now_ms
    )
    recovered = replay.run(mark)
    if recovered.faced or mark == UNKNOWN:
        # Faced once: the checkpoint moves past it, and what is damaged is kept as evidence. Left
        # where it is, a hole torn into a commit would look like damage next time. On a full disk
        # the first flush that has room does it; a crash before that faces the same bytes again.
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
        lock,
        identity,
        index,
        ledgers,
        logs,
        checkpoint,
        trim,
        flusher,
        replay.half,
        recovered,
        journal_dir,
    )


def _check_index(
    index: Index, identity: Identity, mark: Mark, data_dir: Path, carried: Batch
) -> None:
    """An index that is empty although there was a checkpoint was lost, not new."""
    found = index.identity
    wanted = bytes([index_format.VERSION]) + identity.salt
    if found is None and mark.position.seq == 0:
        # Written with the first flush; until then a start puts it again.
        index_format.put_identity(carried, identity.salt)
    elif found is None:
        raise DataDirError(
            f"{data_dir / identity_file.INDEX_DIR} is empty although entries were stored: "
            "restore it, or take this bookie out and let its ledgers be copied from others"
        )
    elif found != wanted:
        raise DataDirError(
            f"{data_dir / identity_file.INDEX_DIR} belongs to another bookie, incarnation or "
            "format version"
        )
    lost = index.lost_since(mark)
    if lost:
        # Replay begins at the checkpoint: what lies between would be answered as never added.
        raise DataDirError(
            f"{data_dir / identity_file.INDEX_DIR} is older than the checkpoint: {lost}. The disk "
            "lost synced writes, or an old copy was restored: restore the index that belongs to "
            "the checkpoint, or take this bookie out and let its ledgers be copied from others"
        )
