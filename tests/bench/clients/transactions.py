"""transactions URL TOPIC MESSAGES PARTICIPANTS AT_ONCE COUNT [CONNECTIONS]: commits transactions.

Each transaction adds PARTICIPANTS topics, sends MESSAGES of 1 KiB to them in turn, waits for the
receipts, and commits. AT_ONCE of them are open at a time, over all coordinators and over
CONNECTIONS connections (default: one each). Prints the rate and the percentiles of END_TXN. Raw
connections, so that both servers get the same frames.

Client and server share the machine, so the client is a callback for each answer, without tasks and
futures: it costs 60 us per transaction of one message, up to 250 us on a busy machine.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from tests.support.raw_client import RawClient

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType, parse_command
from magnetar.wire.encoder import PONG_FRAME, encode_command, encode_send
from magnetar.wire.framing import FRAME_HEADER

ASSIGN_TOPIC: Final = "persistent://pulsar/system/transaction_coordinator_assign"
COORDINATORS_MAX: Final = 16
PAYLOAD: Final = bytes(1024)
TIMEOUT_MS: Final = 60_000
READY_TIMEOUT_S: Final = 60.0
RUN_TIMEOUT_S: Final = 600.0
POLL_S: Final = 0.2
WARM_UP: Final = 0.1
"""Of the transactions; they do not count."""
_SEND_RECEIPT: Final = int(CommandType.SEND_RECEIPT)
_PING: Final = int(CommandType.PING)


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


class Connection(asyncio.Protocol):
    """Sends commands, and calls back for each answer. All writes of one read leave together."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.on_receipt: dict[int, Callable[[], None]] = {}
        """What to call for each receipt, by producer."""
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self._request_ids = itertools.count(1_000)
        self._connected = asyncio.get_running_loop().create_future()
        self._received = b""
        self._out: list[bytes] = []
        self.reading = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends CONNECT."""
        self.transport = transport  # type: ignore[assignment]
        connect = pb.CommandConnect(client_version="raw", protocol_version=21)
        self.write(encode_command(CommandType.CONNECT, connect))

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the run."""
        if exc is not None:
            raise SystemExit(f"the server closed a connection: {exc}")

    def data_received(self, data: bytes) -> None:
        """Handles all complete frames, then sends what they caused."""
        received = self._received + data if self._received else data
        at, end = 0, len(received)
        self.reading = True
        while end - at >= 8:
            total, size = FRAME_HEADER.unpack_from(received, at)
            if end - at < 4 + total:
                break
            self._command(received[at + 8 : at + 8 + size])
            at += 4 + total
        self._received = received[at:]
        self.reading = False
        if self._out:
            out, self._out = self._out, []
            self.write(b"".join(out))

    def _command(self, data: bytes) -> None:
        kind, message = parse_command(data)
        command: Any = message
        if kind == _SEND_RECEIPT:
            self.on_receipt[command.producer_id]()
        elif kind == _PING:
            self.write(PONG_FRAME)
        elif kind == CommandType.CONNECTED:
            self._connected.set_result(None)
        elif kind in (CommandType.SEND_ERROR, CommandType.ERROR):
            raise SystemExit(f"refused: {command}")
        elif waiting := self._waiting.pop(command.request_id, None):
            waiting(command)

    def write(self, frame: bytes) -> None:
        """Sends a frame; while answers are handled, after the last one."""
        if self.reading:
            self._out.append(frame)
        elif self.transport is not None:
            self.transport.write(frame)

    def request(self, kind: int, command: Any, on_answer: Callable[[Any], None]) -> None:
        """Sends a request."""
        command.request_id = next(self._request_ids)
        self._waiting[command.request_id] = on_answer
        self.write(encode_command(kind, command))

    async def answered(self, kind: int, command: Any) -> Any:
        """Returns the answer to a request."""
        await self._connected
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.request(kind, command, answer.set_result)
        return await answer


class Worker:
    """Commits one transaction after the other, until `next_number` is exhausted."""

    producer_ids = itertools.count(1)

    def __init__(
        self, connection: Connection, coordinator: int, topics: list[str], messages: int
    ) -> None:
        self._connection, self._coordinator = connection, coordinator
        self._topics, self._messages = topics, messages
        self._producers: list[int] = []
        self._sent = 0
        self._left = 0
        """Receipts of this transaction that have not come."""
        self._ids: dict[str, int] = {}
        self._end_at = 0.0
        self._on_ended: Callable[[float], bool] = lambda _: False
        self._finished: asyncio.Future[None] | None = None

    async def attach(self) -> None:
        """Creates a producer on each topic."""
        for topic in self._topics:
            lookup = pb.CommandLookupTopic(topic=topic)
            await self._connection.answered(CommandType.LOOKUP, lookup)
            producer = next(self.producer_ids)
            command = pb.CommandProducer(topic=topic, producer_id=producer)
            await self._connection.answered(CommandType.PRODUCER, command)
            self._producers.append(producer)
            self._connection.on_receipt[producer] = self._receipted

    async def run(self, on_ended: Callable[[float], bool]) -> None:
        """Commits transactions; `on_ended` gets the seconds of END_TXN, and says if to go on."""
        self._on_ended = on_ended
        self._finished = asyncio.get_running_loop().create_future()
        self._begin()
        await self._finished

    def _begin(self) -> None:
        command = pb.CommandNewTxn(tc_id=self._coordinator, txn_ttl_millis=TIMEOUT_MS)
        self._connection.request(CommandType.NEW_TXN, command, self._begun)

    def _begun(self, answer: Any) -> None:
        _check(answer)
        self._ids = {
            "txnid_most_bits": answer.txnid_most_bits,
            "txnid_least_bits": answer.txnid_least_bits,
        }
        ids: Any = self._ids
        command = pb.CommandAddPartitionToTxn(partitions=self._topics, **ids)
        self._connection.request(CommandType.ADD_PARTITION_TO_TXN, command, self._added)

    def _added(self, answer: Any) -> None:
        _check(answer)
        self._left = self._messages
        for producer in itertools.islice(itertools.cycle(self._producers), self._messages):
            self._send(producer)

    def _send(self, producer: int) -> None:
        sequence_id, self._sent = self._sent, self._sent + 1
        ids: Any = self._ids
        metadata = pb.MessageMetadata(
            producer_name="bench",
            sequence_id=sequence_id,
            publish_time=int(time.time() * 1000),
            **ids,
        )
        command = pb.CommandSend(producer_id=producer, sequence_id=sequence_id, **ids)
        self._connection.write(encode_send(command, metadata, PAYLOAD))

    def _receipted(self) -> None:
        self._left -= 1
        if not self._left:
            self._end_at = time.perf_counter()
            ids: Any = self._ids
            command = pb.CommandEndTxn(txn_action=pb.TxnAction.COMMIT, **ids)
            self._connection.request(CommandType.END_TXN, command, self._ended)

    def _ended(self, answer: Any) -> None:
        _check(answer)
        if self._on_ended(time.perf_counter() - self._end_at):
            self._begin()
        elif self._finished is not None:
            self._finished.set_result(None)


def _check(answer: Any) -> None:
    if answer.HasField("error"):
        raise SystemExit(f"refused: {answer}")


async def run(
    url: str, topic: str, messages: int, topics: int, at_once: int, count: int, connections: int = 0
) -> None:
    """Prints one line of JSON."""
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    client = await RawClient.connect(address.hostname, address.port)
    coordinators = await _ready(client)
    names = [f"{topic}-{index}" for index in range(topics)]
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(Connection, address.hostname, address.port))[1]
        for _ in range(connections or at_once)
    ]
    workers = [
        Worker(opened[index % len(opened)], index % coordinators, names, messages)
        for index in range(at_once)
    ]
    for worker in workers:
        await worker.attach()
    seconds: list[float] = []
    warm_up = int(count * WARM_UP)
    begun, ended, began = at_once, 0, 0.0

    def on_ended(took: float) -> bool:
        nonlocal begun, ended, began
        ended += 1
        if ended == warm_up:
            began = time.perf_counter()
        elif ended > warm_up:
            seconds.append(took)
        begun += 1
        return begun <= warm_up + count

    cpu = time.process_time()
    async with asyncio.timeout(RUN_TIMEOUT_S):
        await asyncio.gather(*(worker.run(on_ended) for worker in workers))
    elapsed = time.perf_counter() - began
    cpu = time.process_time() - cpu
    for connection in opened:
        if connection.transport is not None:
            connection.transport.close()
    seconds.sort()
    figures = {
        "transactions": ended,
        "rate": round(len(seconds) / elapsed, 1),
        "commit_p50_ms": round(seconds[len(seconds) // 2] * 1e3, 2),
        "commit_p99_ms": round(seconds[int(len(seconds) * 0.99)] * 1e3, 2),
        "client_cpu_us": round(cpu / ended * 1e6),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
