"""The embedded store's files: their contents after each write, and refusals at the open."""

from pathlib import Path
from typing import Any

import pytest

from magnetar.core.errors import MetadataError
from magnetar.metadata.operations import Change
from magnetar.metadata.rocks import (
    CorruptRecord,
    RocksFiles,
    StoreLocked,
    decode_record,
    encode_record,
)
from magnetar.metadata.store import Record

REVISION = b"mrevision"


def put(
    key: str, revision: int, *, lease_id: int | None = None, was_leased: bool = False
) -> Change:
    return Change(key, None, Record(key, b"v", revision), lease_id, was_leased)


def delete(key: str, *, was_leased: bool = False) -> Change:
    return Change(key, None, None, was_leased=was_leased)


def raw(files: RocksFiles) -> set[bytes]:
    """Every key of the database."""
    return {key for key in files._db.keys() if isinstance(key, bytes)}  # noqa: SIM118


def test_a_write_holds_its_changes_and_the_revision(tmp_path: Path) -> None:
    files = RocksFiles(tmp_path)
    assert files.revision == 0
    files.write([], 9)
    assert raw(files) == set(), "nothing changed: no revision is made"
    files.write([put("/a", 3), put("/b", 3)], 3)
    files.write([delete("/a"), put("/c", 4)], 4)
    assert raw(files) == {REVISION, b"k/b", b"k/c"}
    assert files.get("/a") is None
    assert files.get("/c") == Record("/c", b"v", 4)
    files.close()
    files = RocksFiles(tmp_path)
    assert files.revision == 4
    files.close()


class Noted:
    """A database that records its calls."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def write(self, batch: Any) -> None:
        self.asked.append("write")
        self._db.write(batch)

    def flush_wal(self, sync: bool) -> None:
        self.asked.append("sync" if sync else "flush")
        self._db.flush_wal(sync)


def test_a_write_returns_only_once_it_is_on_the_disk(tmp_path: Path) -> None:
    """Not only with the operating system: that forgets it when the power fails."""
    files = RocksFiles(tmp_path)
    noted = Noted(files._db)
    files._db = noted  # type: ignore[assignment]
    files.write([put("/a", 1, lease_id=7), put("/b", 1)], 1)
    files.write([delete("/a", was_leased=True)], 2)
    assert noted.asked == ["write", "sync"] * 2
    files.close()


def test_a_key_is_marked_as_leased_exactly_while_a_lease_has_it(tmp_path: Path) -> None:
    files = RocksFiles(tmp_path)
    files.write([put("/a", 1, lease_id=7), put("/b", 1, lease_id=7), put("/c", 1)], 1)
    assert raw(files) - {REVISION} == {b"k/a", b"k/b", b"k/c", b"l/a", b"l/b"}
    # From one lease to another, to none, and deleted.
    files.write([put("/a", 2, lease_id=8, was_leased=True), put("/b", 2, was_leased=True)], 2)
    assert raw(files) - {REVISION} == {b"k/a", b"k/b", b"k/c", b"l/a"}
    files.write([delete("/a", was_leased=True)], 3)
    assert raw(files) - {REVISION} == {b"k/b", b"k/c"}
    files.close()


def test_what_a_former_process_held_under_leases_goes_in_one_revision(tmp_path: Path) -> None:
    files = RocksFiles(tmp_path)
    files.write([put(f"/{name}", 1, lease_id=7) for name in "abc"] + [put("/d", 1)], 5)
    files.close()
    for _ in range(2):
        files = RocksFiles(tmp_path)
        assert files.revision == 6
        assert raw(files) == {REVISION, b"k/d"}
        files.close()


@pytest.mark.parametrize("prefix", ["/a/", "/a", "/", "", "/a/b", "/x"])
def test_records_are_those_below_the_prefix_in_order(tmp_path: Path, prefix: str) -> None:
    keys = ["/a", "/a/b", "/a/b/c", "/a/c", "/ab", "/b"]
    files = RocksFiles(tmp_path)
    files.write([put(key, 1, lease_id=7) for key in keys], 1)
    found = [record.key for record in files.records(prefix)]
    assert found == sorted(key for key in keys if key.startswith(prefix))
    files.close()


def test_children_cost_what_there_are_of_them_and_not_what_lies_below(tmp_path: Path) -> None:
    below = [f"/a/full/{number}" for number in range(200)]
    files = RocksFiles(tmp_path)
    files.write([put(key, 1) for key in [*below, "/a/file", "/a/full-1", "/a/full0/x", "/b/x"]], 1)
    found = list(files.children("/a/", frozenset()))
    assert found == ["file", "full-1", "full", "full0"], "each is seen once: its folder is passed"
    hidden = frozenset(["/a/file", *below])
    assert list(files.children("/a/", hidden)) == ["full-1", "full0"]
    assert list(files.children("/none/", frozenset())) == []
    files.close()


def test_records_without_a_revision_are_damage_and_not_a_new_store(tmp_path: Path) -> None:
    """To count from 1 again would give revisions that were given before."""
    files = RocksFiles(tmp_path)
    files.write([put("/a", 5)], 5)
    del files._db[REVISION]
    files.close()
    for _ in range(2):
        with pytest.raises(CorruptRecord, match=r"record revision .* missing"):
            RocksFiles(tmp_path)


def test_a_revision_that_fails_its_checksum_is_damage_and_leaves_the_files_unlocked(
    tmp_path: Path,
) -> None:
    files = RocksFiles(tmp_path)
    files.write([put("/a", 5)], 5)
    files._db[REVISION] = encode_record(b"mother", 5, b"")
    files.close()
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="checksum mismatch"):
            RocksFiles(tmp_path)


def test_a_record_in_an_unknown_format_is_not_served(tmp_path: Path) -> None:
    key = b"k/a"
    newer = bytearray(encode_record(key, 7, b"value"))
    newer[0] = 2
    with pytest.raises(CorruptRecord, match="checksum mismatch"):
        decode_record(key, bytes(newer), tmp_path)
    for size in range(13):
        with pytest.raises(CorruptRecord, match=f"{size} bytes are no record"):
            decode_record(key, bytes(size), tmp_path)
    assert decode_record(key, encode_record(key, 7, b""), tmp_path) == (7, b"")


def test_a_damaged_record_is_named_though_its_key_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(CorruptRecord) as failure:
        decode_record(b"k/\xff", b"", tmp_path)
    assert failure.value.key == "/\ufffd"


def test_one_damaged_record_is_reported_where_it_is_read(tmp_path: Path) -> None:
    files = RocksFiles(tmp_path)
    files.write([put("/a", 1), put("/b", 1), put("/c", 1)], 1)
    files._db[b"k/b"] = encode_record(b"k/x", 1, b"v")
    assert files.get("/a") is not None
    with pytest.raises(CorruptRecord, match="record /b in"):
        files.get("/b")
    with pytest.raises(CorruptRecord, match="record /b in"):
        list(files.records("/"))
    assert [record.key for record in files.records("/c")] == ["/c"]
    files.close()


def test_files_that_cannot_be_opened_are_not_said_to_be_locked(tmp_path: Path) -> None:
    files = RocksFiles(tmp_path)
    files.write([put("/a", 1)], 1)
    with pytest.raises(StoreLocked, match="open in another process"):
        RocksFiles(tmp_path)
    files.close()
    (tmp_path / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    with pytest.raises(MetadataError, match="cannot be opened") as failure:
        RocksFiles(tmp_path)
    assert not isinstance(failure.value, StoreLocked)


def test_damage_stops_an_open_and_a_torn_tail_does_not(tmp_path: Path) -> None:
    """RocksDB verifies the log that it reads, and tolerates only a torn tail."""
    RocksFiles(tmp_path).close()
    newest = sorted(tmp_path.glob("OPTIONS-*"))[-1].read_text()
    noted = dict(line.strip().split("=", 1) for line in newest.splitlines() if "=" in line)
    assert noted["paranoid_checks"] == "true"
    assert noted["wal_recovery_mode"] == "kTolerateCorruptedTailRecords"
    assert noted["checksum"] == "kCRC32c"
