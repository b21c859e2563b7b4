"""Mutated frames against a broker that asks for credentials: before and after CONNECT.

    python -m tests.fuzz.closed_sessions --frames 10000000 --seed 1 --state FILE

Strangers write mutated frames without a valid CONNECT, and get nothing but ERROR, PING and PONG.
Clients of a role with grants write them after CONNECT, and reach no topic of another namespace.
Meanwhile a witness sends messages and receives each of them.

The command runs one campaign after another, each with a broker of its own, and counts the frames
that sessions handled. After each one no connection, task or pending byte may be left, and after the
first ones, live objects and memory may not grow. With `--state`, counts and the next seed are kept
in a file, and a later run adds to them.
"""

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import logging
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

import uvloop
from tests.fuzz.fuzz_frames import mutated_frames
from tests.fuzz.session_frames import PRODUCERS, Batch, batches
from tests.security.sessions import ADMIN, connect_command, secured
from tests.support.broker import HOST, running_broker
from tests.support.raw_client import RawClient, Refused
from tests.unit.broker.lifecycle.world import NAMESPACE

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.service import BrokerService
from magnetar.broker.session.session import Session
from magnetar.core.names import NamespaceName
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType, command_name
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import encode_command
from magnetar.wire.events import Command, Event, SendRun
from magnetar.wire.framing import ProtocolError

PAIRS = 4
"""Strangers, and as many clients with grants."""
BATCHES_PER_CONNECTION_MAX = 30
FRAMES_OF_A_STRANGER_MAX = 3
"""Fewer: the first frame that is not CONNECT ends the connection."""
STRANGERS_SHARE = 0.1
"""Of all frames."""
FUZZER = "fuzzer"
TOPIC = "persistent://public/default/fuzzed"
WITNESSED = "persistent://witness/own/t"
TOPICS = 50
MARKER_BYTES = 10
SHARED: Final = pb.CommandSubscribe.SubType.Shared
ENDS_S_MAX = 60.0
STORED_S_MAX = 20.0
WRONG = encode_command(CommandType.CONNECT, connect_command("-"))
SEEDS = 2 * PAIRS
"""Of one campaign."""
FRAMES_OF_A_CAMPAIGN = 200_000
WARM_UP = 5
"""Campaigns before memory is compared."""
OBJECTS_MORE_MAX = 5_000
MIB_MORE_MAX = 60.0
TO_STRANGERS = {CommandType.ERROR, CommandType.PING, CommandType.PONG}


@dataclass(slots=True)
class Counts:
    """What the sessions of a campaign received."""

    written: int = 0
    before: int = 0
    """Frames that a session handled before CONNECT succeeded."""
    after: int = 0
    survived: int = 0
    """Batches after which the broker answered a PING."""
    witnessed: int = 0

    def add(self, other: "Counts") -> None:
        """Adds the counts of another campaign."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


async def stranger(port: int, frames: Iterator[bytes], counts: Counts) -> None:
    """Writes frames without credentials."""
    for number in itertools.count():
        batch = list(itertools.islice(frames, FRAMES_OF_A_STRANGER_MAX))
        if not batch:
            return
        counts.written += len(batch)
        if not number % 3:
            batch.insert(number % len(batch), WRONG)
        reader, writer = await asyncio.open_connection(HOST, port)
        received = b""
        with contextlib.suppress(ConnectionError):
            writer.write(b"".join(batch))
            writer.write_eof()
            async with asyncio.timeout(ENDS_S_MAX):
                received = await reader.read()
        writer.close()
        for event in FrameDecoder().feed(received):
            assert isinstance(event, Command)
            assert event.type in TO_STRANGERS, command_name(event.type)


class Attacker(asyncio.Protocol):
    """A connection that writes batches, and looks in what it receives only for one answer."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.lost = False
        self._tail = b""
        self._marker = b""
        self._answered = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._marker in self._tail + data:
            self._answered.set()
        self._tail = data[-MARKER_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._answered.set()

    async def connect(self) -> None:
        """Completes CONNECT as FUZZER."""
        self.transport.write(encode_command(CommandType.CONNECT, connect_command(FUZZER)))
        async with asyncio.timeout(ENDS_S_MAX):
            await self._answered.wait()

    async def send(self, batch: Batch) -> bool:
        """Returns whether the broker answered a request behind the batch."""
        number = (1 << 63) + secrets.randbits(63)
        command = pb.CommandPartitionedTopicMetadata(topic=f"{TOPIC}-0", request_id=number)
        request = encode_command(CommandType.PARTITIONED_METADATA, command)
        self._answered.clear()
        self._marker = request[-MARKER_BYTES:]  # the number as a varint is last
        self.transport.write(b"".join(batch.frames) + request)
        if batch.ends:
            self.transport.write_eof()
        async with asyncio.timeout(ENDS_S_MAX):
            await self._answered.wait()
        return not self.lost


def opening(topic: str) -> bytes:
    """Returns the commands for all producers and for a consumer."""
    frames = []
    for number in PRODUCERS:
        producer = pb.CommandProducer(topic=topic, producer_id=number, request_id=number)
        frames.append(encode_command(CommandType.PRODUCER, producer))
    # Refused while a frame of another client is deleting the subscription.
    consumer = pb.CommandSubscribe(
        topic=topic, subscription="fuzz", subType=SHARED, consumer_id=1, request_id=1_000
    )
    frames.append(encode_command(CommandType.SUBSCRIBE, consumer))
    return b"".join(frames)


async def granted(port: int, stream: Iterator[Batch], counts: Counts) -> None:
    """Writes batches as FUZZER, each connection's until one of them ends it."""
    loop = asyncio.get_running_loop()
    for number in itertools.count():
        _, client = await loop.create_connection(Attacker, HOST, port)
        await client.connect()
        await client.send(Batch([opening(f"{TOPIC}-{number % TOPICS}")], ends=False))
        try:
            for _ in range(BATCHES_PER_CONNECTION_MAX):
                batch = next(stream, None)
                if batch is None:
                    return
                counts.written += len(batch.frames)
                answered = await client.send(batch)
                counts.survived += answered
                if batch.ends or not answered:
                    break
        finally:
            client.transport.close()


async def witness(port: int, stop: asyncio.Event) -> int:
    client = await RawClient.connect(HOST, port, connect_command(ADMIN))
    consumer_id = await client.consumer(WITNESSED, "witness")
    producer_id = await client.producer(WITNESSED)
    client.flow(consumer_id, 1_000_000)
    sent = 0
    while not stop.is_set():
        payload = b"witness-%d" % sent
        client.send(producer_id, sent, payload)
        sent += 1
        await client.receipted(producer_id, sent)
        assert (await client.receive(consumer_id)).payload == payload
        await asyncio.sleep(0)
    await client.close()
    return sent


async def prepared(service: BrokerService) -> None:
    """Gives FUZZER its grants, and the witness a tenant of its own."""
    info = {"adminRoles": [], "allowedClusters": [service.cluster]}
    await service.resources.create_tenant("witness", info)
    document = default_policies(service.cluster)
    await service.resources.create_namespace(NamespaceName("witness", "own"), document)

    def change(former: dict[str, Any]) -> dict[str, Any]:
        grants = {"namespace_auth": {FUZZER: ["produce", "consume"]}}
        return {**former, "auth_policies": {**former["auth_policies"], **grants}}

    await service.resources.update_policies(NAMESPACE, change)


async def until_granted(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            client = await RawClient.connect(HOST, port, connect_command(FUZZER))
            try:
                await client.producer(f"{TOPIC}-0")
            except Refused:
                await asyncio.sleep(0.01)
            else:
                return
            finally:
                await client.close()


@contextlib.contextmanager
def counted(counts: Counts) -> Iterator[None]:
    """Counts the frames that sessions handle."""
    handle, broken = Session.handle, Session.broken
    handling = False

    def add(session: Session, number: int) -> None:
        if session.state.connected:
            counts.after += number
        else:
            counts.before += number

    def unreadable(self: Session, error: ProtocolError) -> None:
        if not handling:
            add(self, 1)
        broken(self, error)

    def counting(self: Session, events: list[Event]) -> None:
        nonlocal handling
        number = sum(len(e.entries) if isinstance(e, SendRun) else 1 for e in events)
        add(self, number)
        handling = True
        handle(self, events)
        handling = False

    Session.handle = counting  # type: ignore[method-assign]
    Session.broken = unreadable  # type: ignore[method-assign]
    try:
        yield
    finally:
        Session.handle = handle  # type: ignore[method-assign]
        Session.broken = broken  # type: ignore[method-assign]


class Errors(logging.Handler):
    """Keeps the log records of errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def no_errors(seed: int) -> Iterator[None]:
    """Raises AssertionError if something logged an error."""
    errors = Errors()
    logging.getLogger().addHandler(errors)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(errors)
    for record in errors.records:
        raise AssertionError(f"seed {seed}: {record.getMessage()}\n{record.exc_text}")


async def until_idle(service: BrokerService) -> None:
    """Waits until the broker has stored what it received and forgotten every connection."""
    async with asyncio.timeout(STORED_S_MAX):
        while service.budget.pending_bytes or service.sessions:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)


async def campaign(seed: int, count: int) -> Counts:
    """Writes `count` mutated frames to a broker of its own. Raises AssertionError on a finding."""
    counts = Counts()
    settings = compose(BrokerSettings, transactions=bool(seed // SEEDS % 2))
    with no_errors(seed), counted(counts):
        async with running_broker(settings, secure=secured()) as (service, port):
            await prepared(service)
            await until_granted(port)
            stop = asyncio.Event()
            watching = asyncio.create_task(witness(port, stop))
            strange = int(count * STRANGERS_SHARE) // PAIRS
            rest = count // PAIRS - strange
            async with asyncio.TaskGroup() as attacks:
                for n in range(PAIRS):
                    frames = mutated_frames(seed + n, strange)
                    attacks.create_task(stranger(port, frames, counts))
                    stream = batches(seed + PAIRS + n, rest)
                    attacks.create_task(granted(port, stream, counts))
            stop.set()
            counts.witnessed = await watching
            assert counts.witnessed > 0
            assert counts.survived > 0, "every connection was closed: none was tried in depth"
            foreign = [topic for topic in service.topics if topic.name.namespace != NAMESPACE]
            assert [topic.full_name for topic in foreign] == [WITNESSED]
            await until_idle(service)
    return counts


def held() -> tuple[int, float]:
    """Returns how many objects this process holds, and its memory in MiB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(gc.get_objects()), pages * 4096 / 2**20


@dataclass(slots=True)
class State:
    """The sum of several runs."""

    counts: Counts
    next_seed: int

    @classmethod
    def load(cls, file: Path | None, seed: int) -> "State":
        """Returns the state that a former run left, or a new one."""
        if file is None or not file.exists():
            return cls(Counts(), seed)
        document = json.loads(file.read_text())
        return cls(Counts(**document["counts"]), document["next_seed"])

    def save(self, file: Path | None) -> None:
        """Keeps the state for a later run."""
        if file is not None:
            file.write_text(
                json.dumps({"counts": asdict(self.counts), "next_seed": self.next_seed})
            )


def run(state: State, file: Path | None, frames: int) -> None:
    """Runs campaigns until sessions have handled so many frames. Raises AssertionError."""
    base: tuple[int, float] | None = None
    started = time.monotonic()
    for number in itertools.count():
        handled = state.counts.before + state.counts.after
        if handled >= frames:
            return
        state.counts.add(uvloop.run(campaign(state.next_seed, FRAMES_OF_A_CAMPAIGN)))
        state.next_seed += SEEDS
        state.save(file)
        objects, mib = held()
        if number == WARM_UP:
            base = objects, mib
        if number % 10 == 0:
            s = time.monotonic() - started
            print(f"{s:.0f} s {state.counts} {objects} objects {mib:.1f} MiB", flush=True)
        if base is not None:
            assert objects <= base[0] + OBJECTS_MORE_MAX, f"{objects} objects, {base[0]} before"
            assert mib <= base[1] + MIB_MORE_MAX, f"{mib:.1f} MiB, {base[1]:.1f} before"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=10_000_000, help="to handle (10,000,000)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (1)")
    parser.add_argument("--state", type=Path, help="where counts are kept between runs")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    state = State.load(arguments.state, arguments.seed)
    run(state, arguments.state, arguments.frames)
    print(state.counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
