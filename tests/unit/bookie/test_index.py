"""The index: views stay disjoint and resolve to the newest block; both stores behave alike."""

import errno
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Rdict
from tests.support.memory_index import MemoryIndexStore

from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import Damage, Index, LedgerRecord, View
from magnetar.bookie.index.store import Batch, IndexDamaged, IndexStore, RocksIndexStore

SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1])),
    min_size=1,
    max_size=25,
)


@given(SPANS)
def test_the_last_block_written_wins(spans: list[tuple[int, int]]) -> None:
    index = Index(MemoryIndexStore())
    model: dict[int, int] = {}
    alive: set[int] = set()
    for number, (first, last) in enumerate(spans):
        batch = Batch()
        removed = index.cover(batch, View(7, first, last, 1, number, 10))
        index.store.write(batch)
        model.update(dict.fromkeys(range(first, last + 1), number))
        alive.add(number)
        # A replaced view has no entries left, though a part of it may have moved to another view.
        assert all(first <= view.first <= view.last <= last for view in removed)
    views = list(index.views(7))
    assert all(a.last < b.first for a, b in pairwise(views))
    for entry_id in range(75):
        view = index.find(7, entry_id)
        assert (view.offset if view else None) == model.get(entry_id)
        following = next((id_ for id_ in sorted(model) if id_ >= entry_id), None)
        view = index.find_from(7, entry_id, 100)
        assert (view.offset if view else None) == (
            model[following] if following is not None else None
        )
        assert [v.first for v in index.views(7, entry_id, entry_id)] == (
            [view.first] if view is not None and entry_id in model else []
        )
    assert index.find(6, 10) is None
    assert index.find(8, 10) is None


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IndexStore]:
    created: IndexStore = (
        MemoryIndexStore() if request.param == "memory" else RocksIndexStore(tmp_path / "index")
    )
    yield created
    created.close()


def put(store: IndexStore, *keys: bytes) -> None:
    batch = Batch()
    for key in keys:
        batch.put(key, b"v" + key)
    store.write(batch)


def test_store_finds_pairs_by_key_and_range(store: IndexStore) -> None:
    put(store, b"a", b"c", b"e")
    assert store.get(b"c") == b"vc"
    assert store.get(b"b") is None
    assert store.last_at_or_before(b"d") == (b"c", b"vc")
    assert store.last_at_or_before(b"e") == (b"e", b"ve")
    assert store.last_at_or_before(b"A") is None
    assert [key for key, _ in store.scan(b"b", b"e")] == [b"c"]
    assert [key for key, _ in store.scan(b"a", b"f")] == [b"a", b"c", b"e"]


def test_scan_is_consistent_while_the_store_is_written(store: IndexStore) -> None:
    put(store, b"a", b"c", b"e")
    seen = []
    for key, _ in store.scan(b"a", b"z"):
        seen.append(key)
        put(store, b"d")
    assert seen == [b"a", b"c", b"e"]


def test_deletes(store: IndexStore) -> None:
    put(store, b"a", b"b", b"c", b"d", b"e")
    batch = Batch()
    batch.delete(b"e")
    batch.delete_range(b"b", b"d")
    batch.put(b"c", b"new")
    store.write(batch)
    assert list(store.scan(b"a", b"z")) == [(b"a", b"va"), (b"c", b"new"), (b"d", b"vd")]


def test_typed_records_round_trip(store: IndexStore) -> None:
    index = Index(store)
    batch = Batch()
    record = LedgerRecord(4, 9, 1234, -1, index_format.FLAG_FENCED)
    index_format.put_ledger(batch, 2**40, record)
    damage = Damage(3, 5, 8, "/data/journal/1.journal", 4096)
    index_format.put_damage(batch, damage)
    index_format.put_limbo(batch, 77)
    index_format.put_identity(batch, bytes(16))
    index.add_usage(batch, 4, 2**40, 100)
    index.add_usage(batch, 4, 2**40, 50)
    index.add_usage(batch, 5, 1, 7)
    assert index.limbo_through == -1
    store.write(batch)
    assert index.ledger(2**40) == record
    assert index.ledger(1) is None
    assert list(index.ledgers()) == [(2**40, record)]
    assert list(index.damages()) == [damage]
    assert index.limbo_through == 77
    assert index.identity == b"\x01" + bytes(16)
    assert list(index.usage(4)) == [(2**40, 150)]
    batch = Batch()
    index_format.drop_usage(batch, 4)
    index_format.drop_ledger(batch, 2**40)
    index_format.drop_entries(batch, 3)
    store.write(batch)
    assert not list(index.usage(4))
    assert list(index.usage(5)) == [(1, 7)]
    assert not list(index.damages())
    assert not list(index.ledgers())


def test_memory_bytes_grow_with_buffers_and_reads_and_are_0_after_close(tmp_path: Path) -> None:
    store = RocksIndexStore(tmp_path / "index")
    empty_bytes = store.memory_bytes
    batch = Batch()
    for number in range(1_000):
        batch.put(b"%08d" % number, bytes(100))
    store.write(batch)
    assert store.memory_bytes >= empty_bytes + 100_000  # in a memtable
    store.sync()
    flushed_bytes = store.memory_bytes
    assert store.get(b"%08d" % 500) == bytes(100)
    assert store.memory_bytes > flushed_bytes  # in the block cache
    store.close()
    assert store.memory_bytes == 0


def test_rocksdb_keeps_synced_writes(tmp_path: Path) -> None:
    store = RocksIndexStore(tmp_path / "index")
    put(store, b"a")
    store.sync()
    store.close()
    store = RocksIndexStore(tmp_path / "index")
    assert store.get(b"a") == b"va"
    store.close()


def test_damaged_table_file_is_reported(tmp_path: Path) -> None:
    store = RocksIndexStore(tmp_path / "index")
    put(store, *(b"%d" % n for n in range(100)))
    store.sync()
    store.close()
    (table,) = (tmp_path / "index").glob("*.sst")
    content = bytearray(table.read_bytes())
    content[20] ^= 1
    table.write_bytes(content)
    with pytest.raises(IndexDamaged, match=table.name):
        read_all(tmp_path / "index")


def read_all(path: Path) -> None:
    store = RocksIndexStore(path)
    try:
        list(store.scan(b"0", b"99"))
    finally:
        store.close()


class Failing:
    """RocksDB after a background error: it refuses writes and loses its memtable on close."""

    def __init__(self, db: Rdict, path: Path) -> None:
        self._db = db
        self._path = path

    def write(self, *_: object) -> None:
        raise RuntimeError(f"IO error: While appending to file: {self._path}/000012.sst")

    def close(self) -> None:
        self._db.close()
        shutil.rmtree(self._path)


def test_writer_detects_writes_lost_by_a_reopened_store(tmp_path: Path) -> None:
    path = tmp_path / "index"
    store = RocksIndexStore(path)
    index = Index(store)
    batch = Batch()
    batch.put(b"k", b"v")
    change = index.change()
    change.__enter__()
    store.write(batch)
    # After it is reopened, all writes succeed, and `k` is lost.
    store._db = Failing(store._db, path)  # type: ignore[assignment]
    with pytest.raises(IndexDamaged, match="000012"):
        store.write(Batch())
    with pytest.raises(IndexDamaged, match="reopened"):
        change.__exit__(None, None, None)
    assert store.get(b"k") is None
    with index.change():
        store.write(batch)
    assert store.get(b"k") == b"v"
    store.close()


def test_one_writer_changes_the_index_at_a_time() -> None:
    index = Index(MemoryIndexStore())
    with ThreadPoolExecutor(1) as pool:
        with index.change():
            another = pool.submit(lambda: index.change().__enter__())
            with pytest.raises(TimeoutError):
                another.result(0.05)
        another.result(20)


@pytest.mark.parametrize(
    "text",
    [
        "IO error: No space left on device: While appending to file: /x/000012.log: No space left",
        "No space left on device",
    ],
)
def test_full_disk_of_the_index_is_an_error_of_the_disk_that_names_the_index(
    tmp_path: Path, text: str
) -> None:
    """Others treat it as a full disk, which ends by itself, and not as damage."""
    store = RocksIndexStore(tmp_path / "index")
    error = store._failure(Exception(text))
    assert isinstance(error, OSError)
    assert (error.errno, error.strerror, error.filename) == (
        errno.ENOSPC,
        text,
        str(tmp_path / "index"),
    )
    store.close()
