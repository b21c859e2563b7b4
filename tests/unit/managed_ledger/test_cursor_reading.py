"""What a cursor's ledger is read back to, record by record; what makes it unreadable."""

import pytest
from pyroaring import BitMap

from magnetar.bookie.api import BookieError, StoredEntry
from magnetar.core.ids import Position
from magnetar.managed_ledger import cursor_codec_v1
from magnetar.managed_ledger import cursor_state as cursor_reading
from magnetar.managed_ledger.cursor_codec_v1 import encode_delta, encode_snapshot
from magnetar.managed_ledger.cursor_state import StoredState, stored_state
from magnetar.managed_ledger.errors import CursorCorrupt


class Records:
    """A closed ledger in memory, read in portions."""

    ledger_id = 9

    def __init__(self, *records: bytes) -> None:
        self.records = records
        self.last_entry = len(records) - 1
        self.asked: list[tuple[int, int]] = []

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[StoredEntry]:
        self.asked.append((first, last))
        found, size = list[StoredEntry](), 0
        for entry_id in range(first, min(last, self.last_entry) + 1):
            size += len(self.records[entry_id])
            if found and size > bytes_max:
                break
            if self.records[entry_id] == b"harmed":
                raise BookieError(f"entry {entry_id} fails its CRC")
            found.append(StoredEntry(entry_id, self.records[entry_id]))
        return found


def mark(entry_id: int) -> Position:
    return Position(3, entry_id)


def whole(base: int, entry_id: int, *holes: int) -> bytes:
    (record,) = encode_snapshot(base, mark(entry_id), {3: BitMap(holes)} if holes else {}, {})
    return record


def delta(base: int, entry_id: int, *holes: int, **batches: int) -> bytes:
    remains = {(3, int(name[1:])): left for name, left in batches.items()}
    return encode_delta(base, mark(entry_id), {3: BitMap(holes)} if holes else {}, remains)


def in_parts(base: int, entry_id: int) -> list[bytes]:
    """A snapshot of three parts, each with a ledger's holes."""
    holes = {ledger_id: BitMap([5]) for ledger_id in (3, 4, 5)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursor_codec_v1, "PART_BYTES", 20)
        parts = encode_snapshot(base, mark(entry_id), holes, {})
    assert len(parts) == 3
    return parts


async def read(*records: bytes) -> StoredState:
    return await stored_state("sub", Records(*records))  # type: ignore[arg-type]


@pytest.mark.parametrize("load_bytes", [1, 4 << 20])
async def test_the_newest_snapshot_and_what_builds_on_it_is_the_state(
    load_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_reading, "LOAD_BYTES", load_bytes)
    assert await read(whole(0, 1)) == StoredState(mark(1), {}, {})
    assert await read(whole(0, 1), whole(1, 4, 6)) == StoredState(mark(4), {3: BitMap([6])}, {})
    found = await read(
        whole(0, 1), whole(1, 2, 5), delta(1, 2, 7, e8=0b11), delta(1, 3, 5, 9, e8=0b01, e10=1)
    )
    assert found == StoredState(mark(3), {3: BitMap([5, 7, 9])}, {(3, 8): 1, (3, 10): 1})


async def test_what_is_before_the_snapshot_is_not_read() -> None:
    reader = Records(b"nothing that can be read", whole(1, 4), delta(1, 5))
    assert await stored_state("sub", reader) == StoredState(mark(5), {}, {})  # type: ignore[arg-type]
    assert min(first for first, _ in reader.asked) == 1


async def test_a_snapshot_counts_with_its_last_part() -> None:
    parts = in_parts(1, 4)
    every = {ledger_id: BitMap([5]) for ledger_id in (3, 4, 5)}
    assert await read(whole(0, 1), *parts) == StoredState(mark(4), every, {})
    for written in (1, 2):
        assert await read(whole(0, 1, 8), *parts[:written]) == StoredState(
            mark(1), {3: BitMap([8])}, {}
        )
        with pytest.raises(CursorCorrupt, match="no whole snapshot"):
            await read(*in_parts(0, 4)[:written])
    added = await read(whole(0, 1), *parts, encode_delta(1, mark(4), {4: BitMap([7])}, {}))
    assert added.holes == every | {4: BitMap([5, 7])}
    # One that was not finished, behind another that was.
    assert await read(*in_parts(0, 2), *in_parts(3, 4)[:2]) == StoredState(mark(2), every, {})


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "entry -1 of cursor ledger 9: no whole snapshot"),
        ([b"harmed"], "entry 0 .* fails its CRC"),
        ([whole(0, 1), b"???"], "entry 1 .* too few"),
        ([whole(0, 1), delta(2, 3)], "entry 1 .* builds on entry 2"),
        ([whole(0, 1), delta(-1, 3)], "entry 1 .* builds on entry -1"),
        ([whole(0, 1), whole(1, 2), delta(1, 3), delta(0, 4)], "entry 1 .* builds on entry 1, not"),
        ([whole(0, 1), b"harmed", delta(0, 4)], "fails its CRC"),
        ([whole(0, 1), b"??", delta(0, 4)], "entry 1 .* too few"),
    ],
)
async def test_what_cannot_be_read_is_named_and_never_empty(
    records: list[bytes], reason: str
) -> None:
    with pytest.raises(CursorCorrupt, match=reason) as caught:
        await read(*records)
    assert str(caught.value).startswith("cursor sub: entry ")
