"""Files of compactions that nobody names: which go, and which are kept."""

import uuid
from pathlib import Path

import pytest

from magnetar.compaction.records import (
    CompactedFile,
    CompactionAttempt,
    CompactionRecord,
    RetiredFile,
    attempt_folder,
    attempt_key,
    compaction_key,
    encode,
)
from magnetar.core.clock import SystemClock
from magnetar.core.ids import Position
from magnetar.metadata.memory import MemoryStore
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.records import object_path
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.compact.leftovers import sweep
from magnetar_spark.jobs.sweeping import PROPERTY_CLUSTER

NAME = "public/default/persistent/t"
PLACE = Position(7, 0)


@pytest.fixture
def spec(tmp_path: Path) -> StoreSpec:
    return StoreSpec("filesystem", str(tmp_path))


def written(spec: StoreSpec, path: str, cluster: str | None = "here") -> str:
    """A whole file; its path."""
    whole = Path(spec.bucket) / path
    whole.parent.mkdir(parents=True, exist_ok=True)
    properties = {} if cluster is None else {PROPERTY_CLUSTER: cluster}
    with whole.open("wb") as sink:
        writer = EntryFileWriter(sink, managed_ledger=NAME, properties=properties)
        writer.add(*PLACE, b"entry")
        writer.close()
    return path


def of_attempt(attempt: str = "") -> str:
    """The path of a file of an attempt."""
    folder = attempt_folder(NAME, attempt or uuid.uuid4().hex)
    return f"{folder}/00000-{uuid.uuid4().hex}.parquet"


async def test_what_nobody_names_and_this_cluster_wrote_goes(spec: StoreSpec) -> None:
    store, begun = MemoryStore(SystemClock()), uuid.uuid4().hex
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
