"""transactions URL TOPIC MESSAGES PARTICIPANTS AT_ONCE COUNT: commits so many transactions.

Each transaction adds PARTICIPANTS topics, sends MESSAGES of 1 KiB to them in turn, waits for the
receipts, and commits. AT_ONCE of them are open at a time, over all coordinators. Prints the rate
and the percentiles of END_TXN. Raw connections, so that both servers get the same frames.
"""

import asyncio
import itertools
import json
import sys
import time
from typing import Any, Final
from urllib.parse import urlsplit

from tests.support.raw_client import RawClient

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_send

ASSIGN_TOPIC: Final = "persistent://pulsar/system/transaction_coordinator_assign"
COORDINATORS_MAX: Final = 16
PAYLOAD: Final = bytes(1024)
TIMEOUT_MS: Final = 60_000
READY_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.2
WARM_UP: Final = 0.1
"""Of the transactions; they do not count."""


async def _ready(client: RawClient) -> int:
    """Returns the number of coordinators; waits until the server serves them."""
    asked = pb.CommandPartitionedTopicMetadata(topic=ASSIGN_TOPIC)
    async with asyncio.timeout(READY_TIMEOUT_S):
        while not (  # noqa: ASYNC110 - the server tells nobody when it is ready
            count := (await client.request(CommandType.PARTITIONED_METADATA, asked)).partitions
        ):
            await asyncio.sleep(POLL_S)
        for coordinator in range(count):
            partition = f"{ASSIGN_TOPIC}-partition-{coordinator}"
            connect = pb.CommandTcClientConnectRequest(tc_id=coordinator)
            while True:
                await client.request(CommandType.LOOKUP, pb.CommandLookupTopic(topic=partition))
                answer = await client.request(CommandType.TC_CLIENT_CONNECT_REQUEST, connect)
                if not answer.HasField("error"):
                    break
                await asyncio.sleep(POLL_S)
    return int(min(count, COORDINATORS_MAX))


async def connect_coordinators(port: int) -> None:
    """Return once the server on this port of the machine serves its coordinators."""
    client = await RawClient.connect("127.0.0.1", port)
    await _ready(client)
    await client.close()


class Worker:
    """Commits one transaction after the other."""

    def __init__(self, client: RawClient, coordinator: int, topics: list[str]) -> None:
        self._client, self._coordinator, self._topics = client, coordinator, topics
        self._producers: list[int] = []
        self._sent: list[int] = [0] * len(topics)

    async def attach(self) -> None:
        """Creates a producer on each topic."""
        for topic in self._topics:
            await self._client.request(CommandType.LOOKUP, pb.CommandLookupTopic(topic=topic))
            self._producers.append(await self._client.producer(topic))

    async def commit(self, messages: int) -> float:
        """Runs one transaction; returns the seconds of its END_TXN."""
        begun = pb.CommandNewTxn(tc_id=self._coordinator, txn_ttl_millis=TIMEOUT_MS)
        txn = await self._asked(CommandType.NEW_TXN, begun)
        ids: Any = {
            "txnid_most_bits": txn.txnid_most_bits,
            "txnid_least_bits": txn.txnid_least_bits,
        }
        added = pb.CommandAddPartitionToTxn(partitions=self._topics, **ids)
        await self._asked(CommandType.ADD_PARTITION_TO_TXN, added)
        for index in itertools.islice(itertools.cycle(range(len(self._topics))), messages):
            self._send(index, ids)
        for producer, sent in zip(self._producers, self._sent, strict=True):
            await self._client.receipted(producer, sent)
        end = pb.CommandEndTxn(txn_action=pb.TxnAction.COMMIT, **ids)
        started = time.perf_counter()
        await self._asked(CommandType.END_TXN, end)
        return time.perf_counter() - started

    def _send(self, index: int, ids: Any) -> None:
        producer, sequence_id = self._producers[index], self._sent[index]
        self._sent[index] += 1
        now_ms = int(time.time() * 1000)
        metadata = pb.MessageMetadata(
            producer_name="bench", sequence_id=sequence_id, publish_time=now_ms, **ids
        )
        command = pb.CommandSend(producer_id=producer, sequence_id=sequence_id, **ids)
        self._client.write(encode_send(command, metadata, PAYLOAD))

    async def _asked(self, kind: int, command: object) -> pb.CommandNewTxnResponse:
        answer: pb.CommandNewTxnResponse = await self._client.request(kind, command)
        if answer.HasField("error"):
            raise SystemExit(f"refused: {answer}")
        return answer


async def run(url: str, topic: str, messages: int, topics: int, at_once: int, count: int) -> None:
    """Prints one line of JSON."""
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    client = await RawClient.connect(address.hostname, address.port)
    coordinators = await _ready(client)
    names = [f"{topic}-{index}" for index in range(topics)]
    # A connection each: `RawClient.receipted` wakes all who wait on a connection.
    workers = [
        Worker(await RawClient.connect(address.hostname, address.port), index % coordinators, names)
        for index in range(at_once)
    ]
    for worker in workers:
        await worker.attach()
    seconds: list[float] = []
    left = itertools.count(-int(count * WARM_UP))
    began = 0.0

    async def work(worker: Worker) -> None:
        nonlocal began
        while (number := next(left)) < count:
            if number == 0:
                began = time.perf_counter()
            took = await worker.commit(messages)
            if number >= 0:
                seconds.append(took)

    await asyncio.gather(*map(work, workers))
    elapsed = time.perf_counter() - began
    seconds.sort()
    figures = {
        "transactions": int(count * (1 + WARM_UP)),
        "rate": round(count / elapsed, 1),
        "commit_p50_ms": round(seconds[len(seconds) // 2] * 1e3, 2),
        "commit_p99_ms": round(seconds[int(len(seconds) * 0.99)] * 1e3, 2),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7])))
