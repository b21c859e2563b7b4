"""Files in a topic's folder that nobody names any more: of offloads, and of compactions.

Whatever a job writes is on record as an attempt before, and what is left behind is found by that. A
file that no record and no attempt names is one of a writer that was cut off from metadata for long,
and went on after its attempt was cleaned up. It is deleted only where all of this holds: it is of
a name that we give; it is older than the bound, by the store's clock as well as by ours; and its
footer says that this cluster wrote it; and nothing on record needs what it holds.

The last is for metadata that was restored from a backup: there a file that became live later, and
may be the only copy by now, is named by nobody. Who sweeps gives a `Needed`, which says so; such a
file is kept, and told. One whose footer cannot be read, or names no cluster, may be anybody's: it
is kept, and told. Files are listed before attempts, and attempts before records: none is missed on
its way from one to the next.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.metadata.store import MetadataStore
from magnetar.offload.errors import ColdFileCorrupt, ColdFileMissing
from magnetar.offload.file_format import EntryFile
from magnetar.offload.store_clock import store_now_ms
from magnetar.offload.stores import StoreSpec, open_object_store, store_error
from magnetar.offload.trash import delete_file, empty_trash
from magnetar_spark.jobs.summary import Summary

SWEEP_AGE_S: Final = 24 * 3600
LIST_TIMEOUT_S: Final = 300.0
MS_PER_S: Final = 1000
CLUSTER_KEY: Final = "/cluster"
PROPERTY_CLUSTER: Final = "cluster"
"""In files: the id of the cluster that wrote them."""
PROPERTY_HORIZON: Final = "horizon"
"""In compacted files, `LEDGER:ENTRY`: up to where the log is compacted in them."""

Named = Callable[[str], bool]
"""Whether a record or an attempt names the file of this path."""
Needed = Callable[[EntryFile], Awaitable[str | None]]
"""Why a whole file that nobody names may be the last copy; None where it cannot be."""


@dataclass(slots=True)
class Removed:
    """What was done."""

    files: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)
    """What, and why not."""
    kept: list[tuple[str, str]] = field(default_factory=list)
    """What nobody may delete, and why. No error."""

    def tell(self, summary: Summary, metric: str) -> None:
        """Counts and tells it as a job's."""
        summary.count(metric, self.files)
        for what, error in self.errors:
            summary.failure(error, leftover=what)
        for what, why in self.kept:
            summary.count("leftoversKept")
            summary.detail(leftover=what, note=why)


class _Cluster(msgspec.Struct, frozen=True):
    """What is read of the cluster's record."""

    cluster_id: str


async def cluster_id_of(store: MetadataStore) -> str:
    """Raises MetadataError where there is no cluster."""
    record = await store.get(CLUSTER_KEY)
    if record is None:
        raise MetadataError(f"the metadata store holds no cluster ({CLUSTER_KEY} is not there)")
    return msgspec.json.decode(record.value, type=_Cluster).cluster_id


async def emptied_trash(store: MetadataStore) -> Removed:
    """The trash, emptied. A store that is away is no error: what it has stays on record."""
    emptied = await empty_trash(store)
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
    """Removes files below the folder whose names are of the pattern; see the module's text.

    What goes wrong is told in what comes back.
    """
    removed = Removed()
    try:
        async with asyncio.timeout(LIST_TIMEOUT_S):
            found = await asyncio.to_thread(_listed, spec, folder, pattern)
        before = _ms(datetime.now(UTC)) - age_s * MS_PER_S
        old = {path for path, written_ms in found.items() if written_ms <= before}
        named = await named_now() if old else None
        unnamed = sorted(path for path in old if named is not None and not named(path))
        if unnamed:
            before = min(before, await store_now_ms(spec) - age_s * MS_PER_S)
        for path in unnamed:
            if found[path] <= before:
                await _remove(spec, path, needed, cluster_id, removed)
    except (MagnetarError, TimeoutError, OSError) as error:
        removed.errors.append((f"{spec}/{folder}", str(error) or type(error).__name__))
    return removed


async def _remove(
    spec: StoreSpec, path: str, needed: Needed, cluster_id: str, removed: Removed
) -> None:
    """Raises ColdStoreUnavailable, and what the metadata store raises."""
    files = open_object_store(spec)
    what = f"{spec}/{path}"
    try:
        opened = await EntryFile.open(files, path)
    except ColdFileMissing:
        return
    except ColdFileCorrupt as error:
        why = (
            f"nobody names it, and it cannot be read whose it is: delete it if it is yours: {error}"
        )
        removed.kept.append((what, why))
        return
    writer = opened.properties.get(PROPERTY_CLUSTER)
    if writer is None:
        removed.kept.append((what, "nobody names it, and it does not say which cluster wrote it"))
    elif writer == cluster_id:
        if why_needed := await needed(opened):
            removed.kept.append((what, why_needed))
            return
        await delete_file(files, path)
        removed.files += 1


def _listed(spec: StoreSpec, folder: str, pattern: re.Pattern[str]) -> dict[str, int]:
    """Files by our names, and when they were written."""
    import obstore

    found: dict[str, int] = {}
    inside = f"{folder}/"
    try:
        for some in obstore.list(open_object_store(spec), prefix=folder):
            for each in some:
                path = each["path"]
                if path.startswith(inside) and pattern.fullmatch(path.removeprefix(inside)):
                    found[path] = _ms(each["last_modified"])
    except Exception as error:
        raise store_error(error, f"{spec}/{folder}") from error
    return found


def _ms(time: datetime) -> int:
    return int(time.timestamp() * MS_PER_S)
