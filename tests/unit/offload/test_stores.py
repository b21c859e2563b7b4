"""Files on a real S3 server and in folders; missing and misconfigured stores."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import ObjectStore
from tests.support.offload_files import entries_of
from tests.support.s3 import running_s3

from magnetar.core.clock import SystemClock
from magnetar.metadata.memory import MemoryStore
from magnetar.offload.cold_files import ColdFiles, FileRef
from magnetar.offload.errors import (
    ColdFileCorrupt,
    ColdFileMissing,
    ColdStoreUnavailable,
    OffloadMisconfigured,
)
from magnetar.offload.file_format import EntryFileWriter, WrittenFile
from magnetar.offload.records import SEGMENT_CHARS_MAX, object_path
from magnetar.offload.store_clock import PROBE_AGE_S, PROBE_FOLDER, store_now_ms
from magnetar.offload.stores import FILESYSTEM, StoreSpec, open_object_store
from magnetar.offload.trash import (
    TRASH_PREFIX,
    TrashedFile,
    delete_file,
    empty_trash,
    put_in_trash,
)
from magnetar.offload.verify import verify_file

PATH = object_path("tenant/ns/persistent/topic", 7, "attempt")
ENTRIES = entries_of(300, 2000)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreSpec]:
    with running_s3(tmp_path_factory.mktemp("s3")) as spec:
        yield spec


def write(spec: StoreSpec) -> WrittenFile:
    store = open_object_store(spec)
    writer = EntryFileWriter(
        obstore.open_writer(store, PATH), managed_ledger="x", group_bytes=1 << 16
    )
    for number, data in enumerate(ENTRIES):
        writer.add(7, number, data)
    return writer.close()


@pytest.mark.parametrize("prefix", ["", "some/where"])
async def test_files_on_s3(s3: StoreSpec, prefix: str) -> None:
    await goes_there_and_back(StoreSpec(s3.driver, s3.bucket, s3.region, s3.endpoint, prefix))


async def test_files_in_a_folder(tmp_path: Path) -> None:
    await goes_there_and_back(StoreSpec(FILESYSTEM, (tmp_path / "new folder").as_uri(), prefix="a"))
    assert list((tmp_path / "new folder/a/tenant/ns/persistent/topic").iterdir()) == []


async def goes_there_and_back(spec: StoreSpec) -> None:
    written = write(spec)
    store = open_object_store(spec)
    found = await verify_file(store, PATH, ledger_id=7, last_entry=299, checksum=written.checksum)
    assert (found.file_bytes, found.length_bytes) == (written.file_bytes, written.length_bytes)
    files = ColdFiles()
    ref = FileRef(spec, PATH, written.file_bytes)
    try:
        file = await files.open(ref)
        read = [entry for each in file.groups for entry in await files.group(ref, each.number)]
        assert [entry.data for entry in read] == ENTRIES
        with pytest.raises(ColdFileCorrupt, match="bytes, not"):
            await files.open(FileRef(spec, PATH, written.file_bytes + 100_000))
        await delete_file(store, PATH)
        await delete_file(store, PATH)  # once more is no error
        files.forget(ref)
        with pytest.raises(ColdFileMissing):
            await files.open(ref)
    finally:
        await files.close()


async def test_what_time_it_is_by_the_store(s3: StoreSpec, tmp_path: Path) -> None:
    for spec in (s3, StoreSpec(FILESYSTEM, str(tmp_path))):
        store = open_object_store(spec)
        await obstore.put_async(store, "before", b"x")
        asked_ms = await store_now_ms(spec)
        await obstore.put_async(store, "behind", b"x")
        before, behind = [
            (await obstore.head_async(store, path))["last_modified"].timestamp() * 1000
            for path in ("before", "behind")
        ]
        assert int(before) <= asked_ms <= int(behind)
        left = await obstore.list(store).collect_async()
        assert not [each["path"] for each in left if PROBE_FOLDER in each["path"]]


async def test_what_one_that_was_killed_left_of_its_question_goes_a_day_later(
    tmp_path: Path,
) -> None:
    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    await store_now_ms(spec)
    folder = tmp_path / PROBE_FOLDER
    old, young = folder / ("a" * 32), folder / ("b" * 32)
    foreign = folder / "notes.txt"
    day_s = PROBE_AGE_S + 60
    for path in (old, young, foreign):
        path.touch()
    for path in (old, foreign):
        os.utime(path, (path.stat().st_mtime - day_s,) * 2)
    await store_now_ms(spec)
    assert sorted(folder.iterdir()) == sorted([young, foreign])


async def test_two_that_ask_for_the_time_do_not_fail_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both delete the probes of former requests, and one comes second."""
    spec = StoreSpec(FILESYSTEM, str(tmp_path))
    await store_now_ms(spec)
    folder = tmp_path / PROBE_FOLDER
    left = {folder / (letter * 32) for letter in "ac"}
    for path in left:
        path.touch()
        os.utime(path, (path.stat().st_mtime - PROBE_AGE_S - 60,) * 2)
    delete = obstore.delete_async

    async def deleted(store: ObjectStore, path: str) -> None:
        if tmp_path / path in left:
            (tmp_path / path).unlink()
        await delete(store, path)

    monkeypatch.setattr(obstore, "delete_async", deleted)
    assert await store_now_ms(spec) > 0
    assert list(folder.iterdir()) == []


async def test_a_bucket_that_is_not_there_has_lost_no_file(s3: StoreSpec) -> None:
    """It answers 404 as for a file: taken for that, trash would be as good as deleted."""
    away = msgspec.structs.replace(s3, bucket="not-made")
    with pytest.raises(ColdStoreUnavailable, match="no such bucket"):
        await delete_file(open_object_store(away), PATH)
    metadata = MemoryStore(SystemClock())
    await metadata.transact([put_in_trash("x", [TrashedFile(away, PATH)], 1)])
    done = await empty_trash(metadata)
    assert (done.files, len(done.left)) == (0, 1)
    assert len(await metadata.list(TRASH_PREFIX)) == 1


async def test_a_server_that_is_not_there(s3: StoreSpec) -> None:
    files = ColdFiles()
    gone = StoreSpec("aws-s3", "cold", "us-east-1", "http://127.0.0.1:1")
    try:
        with pytest.raises(ColdStoreUnavailable) as raised:
            await files.open(FileRef(gone, PATH, 1000))
        assert raised.value.http_status == 503
        with pytest.raises(ColdStoreUnavailable):
            await delete_file(open_object_store(gone), PATH)
    finally:
        await files.close()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (StoreSpec("tape", "x"), "driver 'tape' is unknown: one of aws-s3"),
        (StoreSpec("S3", ""), "set managedLedgerOffloadBucket"),
        (StoreSpec(FILESYSTEM, "hdfs://host/x"), "use file:///path"),
    ],
)
def test_what_cannot_be_opened_says_what_to_set(spec: StoreSpec, said: str) -> None:
    with pytest.raises(OffloadMisconfigured, match=said):
        open_object_store(spec)


@given(
    st.lists(
        st.text(min_size=1, max_size=400).filter(lambda t: "/" not in t), min_size=4, max_size=4
    )
)
def test_paths_are_what_every_store_takes(parts: list[str]) -> None:
    path = object_path("/".join(parts), 7, "a")
    folders = path.split("/")
    assert len(folders) == 5
    assert all(0 < len(each) <= SEGMENT_CHARS_MAX and each not in (".", "..") for each in folders)
    assert path.isascii()
    assert not set(path) - set("=+-_./") - {c for c in path if c.isalnum()}
    changed = [*parts[:3], parts[3] + "x"]
    assert object_path("/".join(changed), 7, "a") != path
