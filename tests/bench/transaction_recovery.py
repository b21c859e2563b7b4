"""Recovery of a server that is killed with many open transactions, or after many aborted ones.

    python -m tests.bench.transaction_recovery [--kit DIR] [--open 10000] [--aborted 0] [--runs 3]

Aborts transactions and opens others over 16 coordinators and 16 topics, one message in each, kills
the server with SIGKILL, and starts it again. Figures, all from the start of the new process: until
REST serves, until the first new transaction commits, and until one of each coordinator and topic
has. An old transaction of each coordinator must still be there to be aborted: recovery is not
skipped. With `--open 16` nothing else is open then, and a subscription of each topic must get
the new message as its first: no aborted one.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.bench.clients.transactions import ASSIGN_TOPIC, connect_coordinators
from tests.bench.secured import Security
from tests.bench.servers import MagnetarServer, PulsarServer, Server
from tests.support.raw_client import RawClient, Refused

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_send

HOST: Final = "127.0.0.1"
PORTS: Final = {"magnetar": (27650, 29080, 27651), "pulsar": (37650, 39080, 37651)}
COORDINATORS: Final = 16
ABORTS_AT_ONCE: Final = 50
"""Of each lane."""
PAYLOAD: Final = bytes(1024)
OPEN_TIMEOUT_MS: Final = 3_600_000
ATTEMPT_TIMEOUT_S: Final = 10.0
RECOVERY_TIMEOUT_S: Final = 300.0
EXIT_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.02

Ids = dict[str, int]


class Lane:
    """One coordinator, one topic, and a connection for both."""

    def __init__(self, port: int, number: int) -> None:
        self._port, self._number = port, number
        self._topic = f"persistent://public/default/recovery-{number}"
        self._client: RawClient | None = None

    async def attach(self) -> None:
        """Connect, and create a producer. Raises OSError, Refused, TimeoutError."""
        await self.close()
        self._client = await RawClient.connect(HOST, self._port)
        await self._look_up(f"{ASSIGN_TOPIC}-partition-{self._number}")
        await self._asked(
            CommandType.TC_CLIENT_CONNECT_REQUEST,
            pb.CommandTcClientConnectRequest(tc_id=self._number),
        )
        await self._look_up(self._topic)
        self._producer, self._sent = await self._connection.producer(self._topic), 0

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    @property
    def _connection(self) -> RawClient:
        if self._client is None:
            raise OSError("not connected")
        return self._client

    async def _look_up(self, topic: str) -> None:
        await self._connection.request(CommandType.LOOKUP, pb.CommandLookupTopic(topic=topic))

    async def _asked(self, kind: int, command: Any) -> Any:
        answer = await self._connection.request(kind, command)
        if answer.HasField("error"):
            raise Refused(answer.error, answer.message)
        return answer

    async def open(self) -> Ids:
        """Begin a transaction and send its message."""
        command = pb.CommandNewTxn(tc_id=self._number, txn_ttl_millis=OPEN_TIMEOUT_MS)
        txn = await self._asked(CommandType.NEW_TXN, command)
        ids = {"txnid_most_bits": txn.txnid_most_bits, "txnid_least_bits": txn.txnid_least_bits}
        added: Any = pb.CommandAddPartitionToTxn(partitions=[self._topic], **ids)
        await self._asked(CommandType.ADD_PARTITION_TO_TXN, added)
        now_ms = int(time.time() * 1000)
        metadata = pb.MessageMetadata(
            producer_name="bench", sequence_id=self._sent, publish_time=now_ms, **ids
        )
        send = pb.CommandSend(producer_id=self._producer, sequence_id=self._sent, **ids)
        self._connection.write(encode_send(send, metadata, PAYLOAD))
        self._sent += 1
        return ids

    async def receipts(self) -> None:
        """Return once every message has its receipt."""
        await self._connection.receipted(self._producer, self._sent)

    async def subscribe(self) -> int:
        """Return a consumer whose subscription keeps all messages of the topic."""
        return await self._connection.consumer(self._topic, "keeps")

    async def check_first(self) -> None:
        """Raise SystemExit unless the first message of the subscription is the first sent here."""
        consumer = await self.subscribe()
        self._connection.flow(consumer, 1)
        got = await self._connection.receive(consumer)
        sent = self._connection.receipts[self._producer][0]
        if (got.ledger_id, got.entry_id) != sent:
            raise SystemExit(f"{self._topic}: {got.ledger_id}:{got.entry_id} came, not {sent}")

    async def end(self, ids: Ids, action: "pb.TxnAction.ValueType") -> None:
        """End a transaction. Raises Refused."""
        command: Any = pb.CommandEndTxn(txn_action=action, **ids)  # type: ignore[arg-type]
        await self._asked(CommandType.END_TXN, command)


async def opened(port: int, count: int, aborted: int) -> list[Ids]:
    """Abort and open the transactions; return an open one of each coordinator."""
    await connect_coordinators(port)
    lanes = [Lane(port, number) for number in range(COORDINATORS)]

    async def abort(lane: Lane) -> None:
        for _ in range(aborted // COORDINATORS // ABORTS_AT_ONCE):
            begun = await asyncio.gather(*(lane.open() for _ in range(ABORTS_AT_ONCE)))
            await lane.receipts()
            await asyncio.gather(*(lane.end(ids, pb.TxnAction.ABORT) for ids in begun))

    async def fill(lane: Lane) -> Ids:
        await lane.attach()
        await lane.subscribe()
        await abort(lane)
        all_ids = [await lane.open() for _ in range(count // COORDINATORS)]
        await lane.receipts()
        return all_ids[-1]

    kept = await asyncio.gather(*map(fill, lanes))
    for lane in lanes:
        await lane.close()
    return kept


async def committed(
    port: int, started: float, old: list[Ids], *, checks: bool
) -> tuple[float, float]:
    """Return the seconds since `started` until the first and the last lane has committed."""

    async def recovered(number: int) -> float:
        lane = Lane(port, number)
        while True:
            try:
                async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                    await lane.attach()
                    ids = await lane.open()
                    await lane.receipts()
                    await lane.end(ids, pb.TxnAction.COMMIT)
                    seconds = time.monotonic() - started
            except (OSError, TimeoutError, Refused):
                await asyncio.sleep(POLL_S)
                continue
            await lane.end(old[number], pb.TxnAction.ABORT)
            if checks:
                await lane.check_first()
            await lane.close()
            return seconds

    async with asyncio.timeout(RECOVERY_TIMEOUT_S):
        seconds = await asyncio.gather(*map(recovered, range(COORDINATORS)))
    return min(seconds), max(seconds)


def _kill(pid: int) -> None:
    """Kill the server; return once it is gone, be it a child or not."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            if not Path(f"/proc/{pid}").exists():
                return
        time.sleep(POLL_S)
    raise SystemExit(f"process {pid} did not end in {EXIT_TIMEOUT_S} s")


def _resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def measured(server: Server, count: int, aborted: int) -> dict[str, float]:
    """Return the figures of one kill."""
    server.start()
    begun = time.monotonic()
    old = asyncio.run(opened(server.port, count, aborted))
    open_s = time.monotonic() - begun
    _kill(server.pids["standalone"])
    started = time.monotonic()
    ready_s = server.start()
    first_s, all_s = asyncio.run(committed(server.port, started, old, checks=count == COORDINATORS))
    figures = {"open_s": open_s, "ready_s": ready_s, "first_s": first_s, "all_s": all_s}
    figures["resident_mib"] = _resident_mib(server.pids["standalone"])
    return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    """Print a row of each run, and the medians."""
    parser = argparse.ArgumentParser(description="recovery with open or aborted transactions")
    parser.add_argument("--kit", type=Path)
    parser.add_argument("--open", type=int, default=10_000)
    parser.add_argument("--aborted", type=int, default=0)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    for name in ("magnetar", *(["pulsar"] if arguments.kit else [])):
        rows = []
        for _ in range(arguments.runs):
            root = Path(tempfile.mkdtemp(prefix="bench-"))
            security = Security({"transactionCoordinatorEnabled": "true"})
            server: Server = MagnetarServer(root, *PORTS[name], security)
            if name == "pulsar":
                server = PulsarServer(arguments.kit.resolve(), root, *PORTS[name], security)
            try:
                rows.append(measured(server, arguments.open, arguments.aborted))
            finally:
                server.stop()
                shutil.rmtree(root, ignore_errors=True)
            print(json.dumps({"server": name, **rows[-1]}), flush=True)
        medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        print(json.dumps({"server": name, "medians": medians}), flush=True)


if __name__ == "__main__":
    main()
