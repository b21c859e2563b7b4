"""The payload of a cursor: stored with its state, in parts, and read back."""

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap
from tests.unit.broker.topic.stage import stage
from tests.unit.ledger.stage import turns

from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger import cursor_codec_v1 as codec


@given(st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_a_payload_of_several_parts_is_joined(wholes: int, rest: int, holes: bool) -> None:
    payload = bytes(range(256)) * (codec.PART_BYTES // 256) * wholes + b"x" * rest
    acked = {5: BitMap([1, 2, 9])} if holes else {}
    records = [
        codec.decode(data) for data in codec.encode_snapshot(4, Position(5, 0), acked, {}, payload)
    ]
    assert b"".join(record.payload for record in records) == payload
    assert [record.part for record in records] == list(range(records[0].parts))
    assert records[0].holes == acked
    assert not any(record.holes for record in records[1:])


def test_a_snapshot_without_a_payload_is_version_1() -> None:
    (plain,) = codec.encode_snapshot(0, Position(1, 2), {}, {})
    (carrying,) = codec.encode_snapshot(0, Position(1, 2), {}, {}, b"p")
    assert (plain[4], carrying[4]) == (codec.VERSION, codec.VERSION_WITH_PAYLOAD)


async def test_a_payload_is_as_durable_as_the_cursor_and_survives_a_close_without_acks() -> None:
    async with stage() as s:
        ledger = await s.factory.open("t")
        cursor = await ledger.open_cursor("c", initial=EARLIEST)
        ledger.carry_payload(cursor, lambda: b"one")
        cursor.store_payload(lambda _error: None)
        await cursor.flush()
        for _ in range(2):  # closed twice without a change
            await ledger.close()
            ledger = await s.factory.open("t")
            cursor = ledger.cursors["c"]
            assert cursor.payload is not None
            assert cursor.payload() == b"one"
        ledger.carry_payload(cursor, lambda: b"two")
        cursor.store_payload(lambda _error: None)
        await ledger.close()
        ledger = await s.factory.open("t")
        payload = ledger.cursors["c"].payload
        assert payload is not None
        assert payload() == b"two"


async def test_an_ack_that_moves_mark_delete_writes_the_payload_too() -> None:
    async with stage() as s:
        ledger = await s.factory.open("t")
        cursor = await ledger.open_cursor("c", initial=EARLIEST)
        ledger.carry_payload(cursor, lambda: b"ids")
        done: list[object] = []
        ledger.append([b"a", b"b"], lambda *result: done.append(result))
        while not done:
            await turns(1)
        cursor.ack_cumulative(ledger.last_confirmed)
        await ledger.close()
        ledger = await s.factory.open("t")
        cursor = ledger.cursors["c"]
        assert cursor.payload is not None
        assert cursor.payload() == b"ids"
        assert cursor.mark_delete == ledger.last_confirmed


async def test_a_cursor_with_a_payload_keeps_no_new_entries_in_the_cache() -> None:
    async with stage() as s:
        ledger = await s.factory.open("t")
        cursor = await ledger.open_cursor("c", initial=EARLIEST)
        ledger.carry_payload(cursor, lambda: b"ids")
        done: list[object] = []
        ledger.append([b"a"], lambda *result: done.append(result))
        while not done:
            await turns(1)
        assert ledger.read_cached(ledger.last_confirmed, 1, 100) is None
