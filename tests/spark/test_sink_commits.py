"""Batches in transactions on a real server, without Spark: every step at which a run may die.

A run that dies does nothing more: neither does it abort. The next run of the batch has another
execution, as a query that Spark starts again.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from tests.support.server_process import ServerProcess

from magnetar.broker.transactions.transitions import JOINED_MAX
from magnetar.core.errors import MagnetarError, PersistenceError, PreconditionFailed
from magnetar.jobs.event_loop import run
from magnetar_spark.sink import commit, sender, state
from magnetar_spark.sink.client.transactions import Coordinator
from magnetar_spark.sink.commit import abort_batch, commit_batch
from magnetar_spark.sink.identity import Identity, TaskDone
from magnetar_spark.sink.journal import Kind
from magnetar_spark.sink.options import WriteOptions
from magnetar_spark.sink.settings import TRANSACTIONS_MAX
from magnetar_spark.sink.state import Journal, Superseded
from magnetar_spark.sink.task import write_rows

SCHEMA = StructType([StructField("value", StringType())])
NAMESPACE = "public/default"
TEST_TIMEOUT_S = 180

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


class Died(BaseException):
    """The process is gone."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root: Path = tmp_path_factory.mktemp("sink")
    with ServerProcess(root, environment={"MAGNETAR_TRANSACTIONS": "true"}) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[pulsar.Client]:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(server.data_dir.parent / "client.log"))
    with closing(pulsar.Client(f"pulsar://{server.host}:{server.port}", logger=logger)) as client:
        yield client


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    for value in values:
        yield pa.RecordBatch.from_pylist(
            [{"value": value}], schema=pa.schema([("value", pa.utf8())])
        )


class Sink:
    """A query's sink, and its runs."""

    def __init__(self, server: ServerProcess, client: pulsar.Client) -> None:
        self.id = uuid.uuid4().hex
        self.topic = f"persistent://{NAMESPACE}/{self.id}"
        self._client = client
        client.subscribe(self.topic, "keeps").close()  # a topic without one is trimmed
        given = {"service.url": f"pulsar://{server.host}:{server.port}", "topic": self.topic}
        given["exactlyOnce"] = "true"
        self.options = WriteOptions.parse(given, streaming=True)

    def run(self, batch: int = 0, *, named: bool = False) -> Identity:
        """A new run of a batch."""
        return Identity(uuid.uuid4().hex, self.id, batch, NAMESPACE, named)

    def task(self, identity: Identity, number: int, *values: str) -> TaskDone:
        return write_rows(self.options, SCHEMA, rows(*values), identity, number)

    def tasks(self, identity: Identity) -> list[TaskDone | None]:
        batch = identity.batch
        return [
            self.task(identity, number, f"{batch}-{number}-a", f"{batch}-{number}-b")
            for number in range(2)
        ]

    def commit(self, messages: list[TaskDone | None]) -> None:
        run(commit_batch(self.options, messages))

    def whole(self, *batches: int) -> list[str]:
        return sorted(
            f"{batch}-{number}-{row}" for batch in batches for number in range(2) for row in "ab"
        )

    def visible(self) -> list[str]:
        values = []
        with closing(self._client.create_reader(self.topic, pulsar.MessageId.earliest)) as reader:
            while reader.has_message_available():
                values.append(reader.read_next(30_000).data().decode())
        return sorted(values)


@pytest.fixture
def sink(server: ServerProcess, client: pulsar.Client) -> Sink:
    return Sink(server, client)


def dies_after_record(kind: Kind) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        append = Journal.append

        async def appended(self: Journal, record: Any, **more: Any) -> Any:
            position = await append(self, record, **more)
            if record.kind is kind:
                raise Died
            return position

        patch.setattr(Journal, "append", appended)

    return plant


def dies_at(owner: type, name: str, *, before: bool) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        act = getattr(owner, name)

        async def acted(*given: Any, **more: Any) -> None:
            if not before:
                await act(*given, **more)
            raise Died

        patch.setattr(owner, name, acted)

    return plant


DEATHS = {
    "before the transaction that leads": dies_at(Coordinator, "begin", before=True),
    "after LEAD": dies_after_record(Kind.LEAD),
    "after the journal was settled": dies_at(Journal, "settle", before=False),
    "after DONE": dies_after_record(Kind.DONE),
    "after the commit": dies_at(Coordinator, "commit", before=False),
}


async def nothing(*_: object) -> None:
    """Does nothing: the process is gone."""


def die(sink: Sink, messages: list[TaskDone | None], death: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        DEATHS[death](patch)
        patch.setattr(commit, "abort_all", nothing)
        with pytest.raises(Died):
            sink.commit(messages)


@pytest.mark.parametrize("death", DEATHS)
def test_a_driver_that_dies_leaves_its_batch_to_the_next_run(sink: Sink, death: str) -> None:
    first = sink.tasks(sink.run(0))
    sink.commit(first)
    messages = sink.tasks(sink.run(1))
    die(sink, messages, death)
    assert sink.visible() == sink.whole(0, *([1] if death == "after the commit" else []))
    again = sink.tasks(sink.run(1))
    sink.commit(again)
    assert sink.visible() == sink.whole(0, 1)
    # The dead one was only slow: it goes on, and finds the batch committed.
    sink.commit(messages)
    sink.commit(sink.tasks(sink.run(2)))
    assert sink.visible() == sink.whole(0, 1, 2)


def test_a_batch_that_was_committed_is_skipped_by_its_tasks(sink: Sink) -> None:
    sink.commit(sink.tasks(sink.run(0)))
    again = sink.tasks(sink.run(0))
    assert [message.skipped for message in again if message] == [True, True]
    sink.commit(again)
    assert sink.visible() == sink.whole(0)


def test_only_the_attempts_that_count_are_visible(sink: Sink) -> None:
    identity = sink.run(0)
    lost = sink.task(identity, 1, "0-1-a")  # killed, or beaten by a speculative one
    messages = sink.tasks(identity)
    late = sink.task(identity, 0, "0-0-a", "0-0-b")
    assert lost.txns
    assert late.txns
    sink.commit(messages)
    assert sink.visible() == sink.whole(0)


def test_two_drivers_commit_a_batch_once_whichever_leads_first(sink: Sink) -> None:
    old, new = sink.tasks(sink.run(0)), sink.tasks(sink.run(0))
    with pytest.raises(Superseded):
        sink.commit(old)
    sink.commit(new)
    assert sink.visible() == sink.whole(0)


def test_drivers_at_the_same_time_commit_a_batch_once(sink: Sink) -> None:
    runs = [sink.tasks(sink.run(0)) for _ in range(3)]
    failures: list[BaseException] = []

    def committed(messages: list[TaskDone | None]) -> None:
        try:
            sink.commit(messages)
        except MagnetarError as error:
            failures.append(error)

    threads = [threading.Thread(target=committed, args=(messages,)) for messages in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not sink.visible():  # each may have stopped another
        sink.commit(sink.tasks(sink.run(0)))
    assert sink.visible() == sink.whole(0)


def test_an_aborted_batch_leaves_nothing_open(sink: Sink) -> None:
    identity = sink.run(0)
    sink.task(identity, 0, "0-0-a")  # its executor died: the driver does not have its message
    done = sink.task(identity, 1, "0-1-a")
    run(abort_batch(sink.options, [None, done]))
    with closing(
        sink._client.create_producer(sink.topic, schema=pulsar.schema.StringSchema())
    ) as producer:
        producer.send("plain")
    assert sink.visible() == ["plain"]


def test_a_transaction_that_has_ended_fails_the_whole_batch(sink: Sink) -> None:
    messages = sink.tasks(sink.run(0))
    run(abort_batch(sink.options, [messages[1]]))
    with pytest.raises(PersistenceError, match="transactionTimeoutMs"):
        sink.commit(messages)
    assert sink.visible() == []


def test_a_journal_that_lost_its_records_is_noticed(sink: Sink) -> None:
    with pytest.raises(PreconditionFailed, match="no record of batches before 3"):
        sink.tasks(sink.run(3))
    sink.commit(sink.tasks(sink.run(3, named=True)))
    assert sink.visible() == sink.whole(3)


def test_a_task_survives_the_death_of_the_server_and_repeats_nothing(
    server: ServerProcess, client: pulsar.Client, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "SEGMENT_BYTES_MAX", 64)  # several transactions
    values = [f"{number:04d}" for number in range(40)]

    def interrupted() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(rows(*values)):
            if number == 25:
                server.kill()
                server.start()
            yield batch

    given = {"service.url": f"pulsar://{server.host}:{server.port}", "topic": sink.topic}
    given |= {"exactlyOnce": "true", "pulsar.producer.batchingMaxMessages": "3"}
    options = WriteOptions.parse(given, streaming=True)
    done = write_rows(options, SCHEMA, interrupted(), sink.run(0), 0)
    assert len(done.txns) > 2
    sink.commit([done])
    assert sink.visible() == values


def test_a_batch_of_too_many_transactions_fails_before_it_is_written(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TRANSACTIONS_MAX == JOINED_MAX
    monkeypatch.setattr(state, "TRANSACTIONS_MAX", 3)
    identity = sink.run(0)
    tasks: list[TaskDone | None] = [sink.task(identity, number, "a") for number in range(3)]
    with pytest.raises(PreconditionFailed, match=r"10000 transactions.*maxBytesPerTrigger"):
        sink.task(identity, 3, "a")
    run(abort_batch(sink.options, tasks, identity))
    again = sink.run(0)
    sink.commit([sink.task(again, number, str(number)) for number in range(3)])
    assert sink.visible() == ["0", "1", "2"]


def test_a_write_without_a_name_leaves_nothing_open_and_may_be_repeated(sink: Sink) -> None:
    def unnamed() -> Identity:
        return Identity(uuid.uuid4().hex, None, 0, NAMESPACE)

    failed = unnamed()
    sink.task(failed, 0, "0-0-a")  # killed
    run(abort_batch(sink.options, [None], failed))
    for _ in range(2):
        identity = unnamed()
        sink.task(identity, 1, "0-1-a")  # beaten by another attempt
        run(commit_batch(sink.options, sink.tasks(identity), identity))
    assert sink.visible() == sorted(2 * sink.whole(0))


@pytest.mark.parametrize("number", [0, 1])
def test_a_task_that_outlives_its_aborted_write_stops(sink: Sink, number: int) -> None:
    # Spark aborts a write as soon as one task has failed, and kills the others afterwards.
    identity = Identity(uuid.uuid4().hex, None, 0, NAMESPACE)
    run(abort_batch(sink.options, [None], identity))
    with pytest.raises(Superseded, match="was aborted"):
        sink.task(identity, number, "0-0-a")
    again = Identity(uuid.uuid4().hex, None, 0, NAMESPACE)
    run(commit_batch(sink.options, sink.tasks(again), again))
    assert sink.visible() == sink.whole(0)


@pytest.mark.parametrize("number", [0, 1])
def test_a_task_that_outlives_its_aborted_micro_batch_stops(sink: Sink, number: int) -> None:
    identity = sink.run(0)
    done = sink.task(identity, 1, "0-1-a")
    run(abort_batch(sink.options, [None, done]))
    with pytest.raises(Superseded, match="was aborted"):
        sink.task(identity, number, "0-0-a")
    sink.commit(sink.tasks(sink.run(0)))
    assert sink.visible() == sink.whole(0)
