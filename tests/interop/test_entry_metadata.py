"""What the broker adds to entries (`entry_metadata`), as a client that asks for it sees it."""

import asyncio
import time
from pathlib import Path

from tests.support.server_process import ServerProcess

from magnetar.client import Client

from .client_rig import take


async def test_a_client_gets_the_index_and_the_time_of_the_broker(tmp_path: Path) -> None:
    began_ms = time.time_ns() // 1_000_000
    settings = {"MAGNETAR_ENTRY_METADATA": "timestamp,index"}
    with ServerProcess(tmp_path, environment=settings) as server:
        async with (
            Client(server.service_url) as client,
            client.consumer("t", "sub") as consumer,
            client.producer("t") as producer,
        ):
            await asyncio.gather(*(producer.send_nowait(b"batched") for _ in range(3)))
            await producer.send(b"alone")
            messages = await take(consumer, 4)
    assert len({(each.id.ledger_id, each.id.entry_id) for each in messages}) == 2
    assert [each.index for each in messages] == [0, 1, 2, 3]
    times = [each.broker_publish_time_ms for each in messages]
    assert all(stored is not None and stored >= began_ms for stored in times), times
