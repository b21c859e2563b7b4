"""Unnamed files of compactions: which are deleted, and which are kept."""

import uuid
from pathlib import Path

import pytest

from magnetar.compaction.records import (
    ATTEMPTS_PREFIX,
    CompactedFile,
    CompactionAttempt,
    CompactionRecord,
    RetiredFile,
    attempt_folder,
    attempt_key,
    compaction_key,
)
from magnetar.core.clock import SystemClock
from magnetar.core.ids import Position
from magnetar.jobs.compaction.leftovers import clean_attempts, sweep
from magnetar.jobs.sweeper import PROPERTY_CLUSTER, PROPERTY_HORIZON
from magnetar.managed_ledger.record import ManagedLedgerRecord, managed_ledger_key
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.records import encode as encode_log
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.records import object_path
from magnetar.offload.stores import StoreSpec

NAME = "public/default/persistent/t"
PLACE = Position(7, 0)


@pytest.fixture
def spec(tmp_path: Path) -> StoreSpec:
    return StoreSpec("filesystem", str(tmp_path))


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore(SystemClock())
    await store.put(managed_ledger_key(NAME), encode_log(ManagedLedgerRecord(1, 1)))
    return store


def written(
    spec: StoreSpec, path: str, cluster: str | None = "here", horizon: Position | None = PLACE
) -> str:
    """A whole file; its path."""
    whole = Path(spec.bucket) / path
    whole.parent.mkdir(parents=True, exist_ok=True)
    properties = {} if cluster is None else {PROPERTY_CLUSTER: cluster}
    if horizon is not None:
        properties[PROPERTY_HORIZON] = str(horizon)
    with whole.open("wb") as sink:
        writer = EntryFileWriter(sink, managed_ledger=NAME, properties=properties)
        writer.add(*PLACE, b"entry")
        writer.close()
    return path


def of_attempt(attempt: str = "") -> str:
    """The path of a file of an attempt."""
    folder = attempt_folder(NAME, attempt or uuid.uuid4().hex)
    return f"{folder}/00000-{uuid.uuid4().hex}.parquet"


async def test_what_nobody_names_and_this_cluster_wrote_goes(
    store: MemoryStore, spec: StoreSpec
) -> None:
    begun = uuid.uuid4().hex
    live, retired = written(spec, of_attempt()), written(spec, of_attempt())
    writing = written(spec, of_attempt(begun))
    lost = written(spec, of_attempt())
    foreign = written(spec, of_attempt(), cluster="elsewhere")
    offloaded = written(spec, object_path(NAME, 7, uuid.uuid4().hex))
    nobody_knows = written(spec, of_attempt(), cluster=None)
    torn = written(spec, of_attempt())
    (Path(spec.bucket) / torn).write_bytes(b"PAR1 and no more")
    file = CompactedFile(live, 1, 0, PLACE, PLACE, 1, 1, 5)
    old = RetiredFile(spec, retired, 5)
    record = CompactionRecord(PLACE, 1, uuid.uuid4().hex, spec, 5, (file,), (old,))
    await store.put(compaction_key(NAME), encode(record))
    attempt = CompactionAttempt(spec, attempt_folder(NAME, begun), 5, "job")
    await store.put(attempt_key(NAME, begun), encode(attempt))

    def there() -> set[str]:
        found = Path(spec.bucket).rglob("*.parquet")
        return {str(path.relative_to(spec.bucket)) for path in found}

    everything = there()
    young = await sweep(store, spec, NAME, "here", age_s=3600)
    assert (young.files, young.errors, young.kept) == (0, [], [])
    assert there() == everything
    swept = await sweep(store, spec, NAME, "here", age_s=-60)
    assert (swept.files, swept.errors) == (1, [])
    assert there() == everything - {lost}
    assert {what for what, _ in swept.kept} == {f"{spec}/{torn}", f"{spec}/{nobody_knows}"}
    assert {live, retired, writing, foreign, offloaded} <= there()


def record_to(spec: StoreSpec, horizon: Position) -> bytes:
    return encode(CompactionRecord(horizon, 1, uuid.uuid4().hex, spec, 5))


@pytest.mark.parametrize("horizon", [None, Position(7, 5)])
async def test_an_artifact_from_before_metadata_was_restored_is_kept(
    store: MemoryStore, spec: StoreSpec, horizon: Position | None
) -> None:
    """Its record is an older one again, which says nothing of it; or still that of its attempt."""
    begun = uuid.uuid4().hex
    unnamed = written(spec, of_attempt(), horizon=horizon)
    attempted = written(spec, of_attempt(begun), horizon=horizon)
    attempt = CompactionAttempt(spec, attempt_folder(NAME, begun), 5, "dead")
    await store.put(attempt_key(NAME, begun), encode(attempt))
    torn = Path(spec.bucket) / of_attempt(begun)
    torn.write_bytes(b"PAR1")

    def there() -> list[bool]:
        return [(Path(spec.bucket) / path).exists() for path in (unnamed, attempted)]

    for older in (None, Position(7, 4)):
        if older is not None:
            await store.put(compaction_key(NAME), record_to(spec, older))
        swept = await sweep(store, spec, NAME, "here", age_s=-60)
        assert ([what for what, _ in swept.kept], swept.files) == ([f"{spec}/{unnamed}"], 0)
        assert (await clean_attempts(store, report_kept=False)).kept == []
        cleaned = await clean_attempts(store)
        assert ([what for what, _ in cleaned.kept], cleaned.files) == (
            [f"{spec}/{attempt.folder}"],
            0,
        )
        assert there() == [True, True]
    if horizon is None:
        # Nobody knows how far it reaches; the topic's end is its end.
        await store.delete(managed_ledger_key(NAME))
    else:
        await store.put(compaction_key(NAME), record_to(spec, horizon))
    assert (await clean_attempts(store)).files == 2
    assert (await sweep(store, spec, NAME, "here", age_s=-60)).files == 1
    assert there() == [False, False]
    assert await store.list(ATTEMPTS_PREFIX) == []
