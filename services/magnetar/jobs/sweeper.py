"""Deletes files in a topic's folder that no record names: files of offloads and of compactions.

A job records an attempt before it writes a file, so leftovers are found by their attempts. A file
that no record and no attempt names was written by a task that had lost its connection to metadata
for long, and continued after its attempt was cleaned up. It is deleted only if all of this holds:
its name has our pattern; it is older than the bound, both by the store's clock and by ours; its
footer names this cluster as the writer; and no record needs its contents.

The last condition is for metadata that was restored from a backup: then a file that became live
later, and may be the only copy by now, is named by no record. The caller's `Needed` decides that;
such a file is kept and reported. A file whose footer cannot be read, or names no cluster, may
belong to another system: it is kept and reported too.

Files are listed before attempts, and attempts before records, so that a file that moves from one to
the next is never missed.
"""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore
from magnetar.offload import trash
from magnetar.offload.errors import ColdFileCorrupt, ColdFileMissing
from magnetar.offload.file_format import EntryFile
from magnetar.offload.store_clock import store_now_ms
from magnetar.offload.stores import StoreSpec, open_object_store, store_error

SWEEP_AGE_S: Final = 24 * 3600
LIST_TIMEOUT_S: Final = 300.0
MS_PER_S: Final = 1000
CLUSTER_KEY: Final = "/cluster"
STANDALONE: Final = "standalone"
PROPERTY_CLUSTER: Final = "cluster"
"""The property of a file with the id of the cluster that wrote it."""
PROPERTY_HORIZON: Final = "horizon"
"""The property of a compacted file with its horizon, as `LEDGER:ENTRY`."""

Named = Callable[[str], bool]
"""Whether a record or an attempt names the file at this path."""
Needed = Callable[[EntryFile], Awaitable[str | None]]
"""Why a whole unnamed file may be the last copy; None if it cannot be."""


class Report(Protocol):
    """Collects what a job did: counters, remarks, and parts of the work that failed."""

    def count(self, name: str, by: int | float = 1) -> None:
        """Adds to a counter; by 0, it creates the counter."""

    def detail(self, **fields: Any) -> None:
        """Adds a remark."""

    def failure(self, error: str, **fields: Any) -> None:
        """Reports a part of the work that could not be done."""


@dataclass(slots=True)
class Removed:
    """The result of a clean-up: deleted files, and remaining ones with the reasons."""

    files: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)
    """Leftovers that could not be deleted, and the error."""
    kept: list[tuple[str, str]] = field(default_factory=list)
    """Leftovers that must not be deleted, and why. These are no errors."""

    def report(self, summary: "Report", metric: str) -> None:
        """Adds the result to a job's report."""
        summary.count(metric, self.files)
        for what, error in self.errors:
            summary.failure(error, leftover=what)
        for what, why in self.kept:
            summary.count("leftoversKept")
            summary.detail(leftover=what, note=why)


class _Cluster(msgspec.Struct, frozen=True):
    """The part of the cluster's record that jobs read."""

    cluster_id: str


async def cluster_id_of(store: MetadataStore) -> str:
    """The id of the cluster. Raises MetadataError if there is none."""
    record = await store.get(CLUSTER_KEY)
    if record is None:
        raise MetadataError(f"the metadata store holds no cluster ({CLUSTER_KEY} is not there)")
    return msgspec.json.decode(record.value, type=_Cluster).cluster_id


async def ensure_cluster_id(store: MetadataStore, now_ms: int) -> str:
    """The id of the cluster; the first call in the metadata of a standalone gives it one."""
    if await store.get(CLUSTER_KEY) is None:
        identity = {"name": STANDALONE, "cluster_id": uuid.uuid4().hex, "created_ms": now_ms}
        with suppress(BadRevision):  # another call was first
            await store.put(CLUSTER_KEY, msgspec.json.encode(identity), expected=ABSENT)
    return await cluster_id_of(store)


async def empty_trash(store: MetadataStore) -> Removed:
    """Empties the trash. An unavailable store is no error: its files stay on record."""
    emptied = await trash.empty_trash(store)
    return Removed(emptied.files, kept=emptied.left)


async def sweep_folder(
    spec: StoreSpec,
    folder: str,
    pattern: re.Pattern[str],
    named_now: Callable[[], Awaitable[Named]],
    needed: Needed,
    cluster_id: str,
    *,
    age_s: float,
) -> Removed:
    """Deletes unnamed files below `folder` whose names match `pattern`.

    Errors are part of the result.
    """
    removed = Removed()
    try:
        async with asyncio.timeout(LIST_TIMEOUT_S):
            written_ms = await asyncio.to_thread(_listed, spec, folder, pattern)
        before = _ms(datetime.now(UTC)) - age_s * MS_PER_S
        old = {path for path, time_ms in written_ms.items() if time_ms <= before}
        named = await named_now() if old else None
        unnamed = sorted(path for path in old if named is not None and not named(path))
        if unnamed:
            before = min(before, await store_now_ms(spec) - age_s * MS_PER_S)
        for path in unnamed:
            if written_ms[path] <= before:
                await _remove(spec, path, needed, cluster_id, removed)
    except (MagnetarError, TimeoutError, OSError) as error:
        removed.errors.append((f"{spec}/{folder}", str(error) or type(error).__name__))
    return removed


async def _remove(
    spec: StoreSpec, path: str, needed: Needed, cluster_id: str, removed: Removed
) -> None:
    """Deletes or keeps one unnamed file. Raises ColdStoreUnavailable, MetadataError."""
    files = open_object_store(spec)
    what = f"{spec}/{path}"
    try:
        opened = await EntryFile.open(files, path)
    except ColdFileMissing:
        return
    except ColdFileCorrupt as error:
        why = (
            f"no record names it, and its writer cannot be read: delete it if it is yours: {error}"
        )
        removed.kept.append((what, why))
        return
    writer = opened.properties.get(PROPERTY_CLUSTER)
    if writer is None:
        removed.kept.append((what, "no record names it, and it names no cluster as its writer"))
    elif writer == cluster_id:
        if why_needed := await needed(opened):
            removed.kept.append((what, why_needed))
            return
        await trash.delete_file(files, path)
        removed.files += 1


def _listed(spec: StoreSpec, folder: str, pattern: re.Pattern[str]) -> dict[str, int]:
    """The files that match the pattern, and when they were written. Blocks."""
    import obstore

    written_ms: dict[str, int] = {}
    inside = f"{folder}/"
    try:
        for page in obstore.list(open_object_store(spec), prefix=folder):
            for meta in page:
                path = meta["path"]
                if path.startswith(inside) and pattern.fullmatch(path.removeprefix(inside)):
                    written_ms[path] = _ms(meta["last_modified"])
    except Exception as error:
        raise store_error(error, f"{spec}/{folder}") from error
    return written_ms


def _ms(time: datetime) -> int:
    return int(time.timestamp() * MS_PER_S)
