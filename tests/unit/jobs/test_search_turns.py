"""A search for the horizon shares the event loop with a broker."""

import asyncio

from magnetar.bookie.api import StoredEntry
from magnetar.core.ids import Position
from magnetar.jobs.log.transactions.search import ENTRIES_PER_TURN, _in_transactions
from magnetar.transactions.model import TxnId
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry, in_transaction

TURNS = 3


async def test_other_work_is_done_between_the_entries_of_a_large_group() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    plain = build_entry(metadata, b"x")
    of_one = in_transaction(plain, metadata, 0, 9)
    last = TURNS * ENTRIES_PER_TURN
    group = [StoredEntry(number, plain) for number in range(last)] + [StoredEntry(last, of_one)]
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(work())
    found = await _in_transactions(7, group)
    other.cancel()
    assert found == [(Position(7, last), TxnId(0, 9))]
    assert turns >= TURNS
