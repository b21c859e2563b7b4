"""The embedded metadata store beyond the contract: durability, damage, locking, leases, bounds."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from magnetar.core.clock import SystemClock
from magnetar.core.errors import MetadataError
from magnetar.metadata.embedded import EmbeddedStore, open_embedded
from magnetar.metadata.rocks import (
    CorruptRecord,
    RocksFiles,
    StoreLocked,
    decode_record,
    encode_record,
)
from magnetar.metadata.store import Check, Compacted, Delete, Put

WRITER = """
import asyncio, sys
from pathlib import Path
from magnetar.core.clock import SystemClock
from magnetar.metadata.embedded import open_embedded

async def main():
    store = await open_embedded(Path(sys.argv[1]), SystemClock())
    lease = await store.grant_lease(3600)
    await store.put("/leased", b"", lease_id=lease.id)
    print("open", flush=True)
    for i in range(1_000_000):
        puts = [store.put(f"/k/{i}/{j}", b"v" * 50) for j in range(4)]
        revisions = await asyncio.gather(*puts)
        print(i, max(revisions), flush=True)

asyncio.run(main())
"""


async def opened(path: Path) -> EmbeddedStore:
    return await open_embedded(path, SystemClock())


async def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    for i in range(50):
        await store.put(f"/a/{i:02}", str(i).encode())
    await store.transact([Delete("/a/00"), Put("/b", b"b")])
    records, revision = await store.list(""), await store.revision()
    await store.close()
    store = await opened(tmp_path)
    assert await store.list("") == records
    assert await store.revision() == revision == 51
    assert await store.put("/c", b"") == revision + 1
    await store.close()


async def test_revisions_grow_over_deletes_and_reopenings(tmp_path: Path) -> None:
    last = 0
    for _ in range(3):
        store = await opened(tmp_path)
        assert await store.revision() == last
        last = await store.put("/a", b"")
        assert await store.delete("/a")
        last += 1
        await store.close()
    assert last == 6


async def test_the_past_before_reopening_is_compacted(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    revision = await store.put("/a", b"")
    await store.close()
    store = await opened(tmp_path)
    with pytest.raises(Compacted):
        await anext(store.watch("/", from_revision=revision))
    watch = store.watch("/", from_revision=revision + 1)
    await store.put("/a", b"new")
    assert (await anext(watch)).record.revision == revision + 1
    await store.close()


async def test_leases_end_with_the_process(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    lease = await store.grant_lease(3600)
    await store.put("/gone", b"", lease_id=lease.id)
    await store.put("/freed", b"", lease_id=lease.id)
    await store.put("/freed", b"")
    revision = await store.put("/stays", b"")
    await store.close()
    store = await opened(tmp_path)
    assert [record.key for record in await store.list("")] == ["/freed", "/stays"]
    assert await store.revision() == revision + 1
    await store.close()
    store = await opened(tmp_path)
    assert await store.revision() == revision + 1
    await store.close()


def test_what_was_returned_survives_kill_9(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    with pytest.raises(StoreLocked, match="open in another process"):
        RocksFiles(tmp_path)
    for _ in range(40):
        done, revision = map(int, process.stdout.readline().split())
    process.send_signal(signal.SIGKILL)
    told = process.stdout.read().split("\n")
    process.stdout.close()
    process.wait()
    # The last line may be cut short by the kill.
    for line in told[:-1]:
        done, revision = map(int, line.split())
    files = RocksFiles(tmp_path)
    assert files.revision > revision
    for i in range(done + 1):
        for j in range(4):
            record = files.get(f"/k/{i}/{j}")
            assert record is not None
            assert record.value == b"v" * 50
    assert files.get("/leased") is None
    files.close()


async def test_a_second_store_on_the_directory_is_refused(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    with pytest.raises(StoreLocked):
        await opened(tmp_path)
    await store.put("/a", b"")
    await store.close()
    await (await opened(tmp_path)).close()


async def test_concurrent_writes_share_syncs(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    groups = 0
    write = store._files.write
    all_asked = threading.Event()

    def counted(changes, revision) -> None:
        nonlocal groups
        groups += 1
        assert threading.current_thread().name == "magnetar-metadata-writer"
        assert all_asked.wait(20)  # or a quick thread would take what a slow loop has put so far
        write(changes, revision)

    store._files.write = counted  # type: ignore[method-assign]
    puts = [asyncio.create_task(store.put(f"/t/{i}", b"x" * 100)) for i in range(5_000)]
    for _ in range(3):
        await asyncio.sleep(0)
    all_asked.set()
    await asyncio.gather(*puts)
    assert groups <= 20
    assert len(await store.list("/t/")) == 5_000
    await store.close()


async def test_reads_show_only_what_is_durable(tmp_path: Path) -> None:
    """While a group is being synced, its keys read as before, though RocksDB has them already."""
    store = await opened(tmp_path)
    old = await store.put("/a/old", b"old")
    await store.put("/a/doomed", b"")
    before = await store.list("/")
    written, go_on = threading.Event(), threading.Event()
    sync = store._files.write

    def held(changes, revision) -> None:
        sync(changes, revision)
        written.set()
        assert go_on.wait(20)

    store._files.write = held  # type: ignore[method-assign]
    watch = store.watch("/")
    change = asyncio.ensure_future(
        store.transact([Put("/a/old", b"new"), Put("/a/b/new", b""), Delete("/a/doomed")])
    )
    await asyncio.sleep(0)
    await asyncio.get_running_loop().run_in_executor(None, written.wait, 20)
    assert await store.list("/") == before
    assert await store.children("/a/") == ["doomed", "old"]
    assert await store.get("/a/b/new") is None
    assert await store.revision() == old + 1
    loser = asyncio.ensure_future(store.put("/a/old", b"", expected=old))
    check = asyncio.ensure_future(store.transact([Check("/a/doomed", 0)]))
    await asyncio.sleep(0)
    assert not loser.done()
    assert not check.done()
    assert not change.done()
    go_on.set()
    assert await change == old + 2
    assert await check == old + 2
    with pytest.raises(MetadataError, match=f"at revision {old + 2}"):
        await loser
    assert await store.children("/a/") == ["b", "old"]
    assert len([await anext(watch) for _ in range(3)]) == 3
    await store.close()


async def test_after_a_failed_write_nothing_more_is_written(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.put("/a", b"1")
    lease = await store.grant_lease(3600)

    def failing(changes, revision) -> None:
        raise OSError(28, "No space left on device")

    write, store._files.write = store._files.write, failing  # type: ignore[method-assign]
    results = await asyncio.gather(
        *(store.put(f"/k/{i}", b"") for i in range(1_000)), return_exceptions=True
    )
    assert all(isinstance(result, MetadataError) for result in results)
    store._files.write = write  # type: ignore[method-assign]
    with pytest.raises(MetadataError, match="No space left on device"):
        await store.put("/b", b"")
    record = await store.get("/a")
    assert record is not None
    assert record.value == b"1"
    assert await store.get("/k/1") is None
    await lease.revoke()
    await store.close()


async def test_a_list_of_a_hundred_thousand_keys_lets_others_run(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    for start in range(0, 100_000, 5_000):
        await asyncio.gather(
            *(
                store.transact([Put(f"/t/{n + m:06}", b"") for m in range(100)])
                for n in range(start, start + 5_000, 100)
            )
        )
    listing = asyncio.ensure_future(store.list("/t/"))
    for _ in range(10):
        await asyncio.sleep(0)
    await store.transact([Put("/t/x", b""), Delete("/t/099999")])
    assert await store.get("/t/099999") is None
    names = [record.key for record in await listing]
    assert names == [f"/t/{n:06}" for n in range(100_000)]
    assert len(await store.list("/t/")) == 100_000
    assert await store.children("/") == ["t"]
    await store.close()


def test_a_record_is_bound_to_its_key_and_revision() -> None:
    stored = encode_record(b"k/a", 7, b"value")
    assert decode_record(b"k/a", stored, Path("x")) == (7, b"value")
    with pytest.raises(CorruptRecord):
        decode_record(b"k/b", stored, Path("x"))
    for at in range(len(stored)):
        for bit in range(8):
            flipped = bytearray(stored)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptRecord) as failure:
                decode_record(b"k/a", bytes(flipped), Path("x"))
            assert failure.value.key == "/a"
    for cut in range(13):
        with pytest.raises(CorruptRecord):
            decode_record(b"k/a", stored[:cut], Path("x"))


def damaged_files(directory: Path) -> list[Path]:
    """The files that hold records or say which do."""
    kinds = ("*.log", "*.sst", "MANIFEST-*", "CURRENT")
    return [path for kind in kinds for path in sorted(directory.glob(kind)) if path.stat().st_size]


async def test_a_flipped_bit_in_any_file_is_reported_and_never_served(tmp_path: Path) -> None:
    source = tmp_path / "source"
    store = await opened(source)
    expected = {}
    for i in range(300):
        expected[f"/k/{i:03}"] = f"value-{i}".encode() * 5
    await asyncio.gather(*(store.put(key, value) for key, value in expected.items()))
    await store._writer.call(store._files._db.flush)
    await store.put("/k/wal", b"only in the log")
    expected["/k/wal"] = b"only in the log"
    copy = tmp_path / "crashed"
    copy.mkdir()
    for path in source.iterdir():
        if path.name != "LOCK":
            (copy / path.name).write_bytes(path.read_bytes())
    await store.close()
    kinds = set()
    for path in damaged_files(copy):
        original = path.read_bytes()
        kinds.add(path.suffix or path.name.partition("-")[0])
        for at in range(0, len(original), max(1, len(original) // 25)):
            flipped = bytearray(original)
            flipped[at] ^= 1 << (at % 8)
            trial = tmp_path / f"{path.name}-{at}"
            trial.mkdir()
            for other in copy.iterdir():
                (trial / other.name).write_bytes(other.read_bytes())
            (trial / path.name).write_bytes(flipped)
            assert_reported_or_whole(trial, expected)
    assert kinds == {".log", ".sst", "MANIFEST", "CURRENT"}


def assert_reported_or_whole(directory: Path, expected: dict[str, bytes]) -> None:
    """Some bytes hold nothing that is read (statistics): then all records must be right."""
    reported: str | None
    try:
        files = RocksFiles(directory)
    except MetadataError as error:
        reported = error.message
    else:
        reported = reported_or_whole(files, expected)
        files.close()
    assert reported is None or str(directory) in reported


def reported_or_whole(files: RocksFiles, expected: dict[str, bytes]) -> str | None:
    try:
        listed = {record.key: record.value for record in files.records("/")}
        read = {key: record.value for key in expected if (record := files.get(key))}
    except CorruptRecord as error:
        return error.message
    assert listed == read == expected
    return None
