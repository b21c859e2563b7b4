"""The sink on a closed server: TLS, tokens in files, certificates, rights; no secret is shown."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from tests.security.closed_standalone import ClosedStandalone, closed_standalone

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.jobs.event_loop import run
from magnetar_spark.sink.commit import commit_batch
from magnetar_spark.sink.identity import Identity
from magnetar_spark.sink.journal import JournalRecord, Kind
from magnetar_spark.sink.options import WriteOptions
from magnetar_spark.sink.state import Journal
from magnetar_spark.sink.task import write_rows

SCHEMA = StructType([StructField("value", StringType())])
TOPIC = "persistent://public/default/closed"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedStandalone]:
    with closed_standalone(
        tmp_path_factory.mktemp("closed"), transactionCoordinatorEnabled="true"
    ) as server:
        for role in ("writer", "certified"):
            server.grant(role, "produce", "consume")
        yield server


def write(topic: str, value: str, *, sink: str = "sink", **options: str) -> None:
    given = {name.replace("__", "."): text for name, text in options.items()}
    given |= {"topic": topic, "pulsar.client.operationTimeoutMs": "10000"}
    parsed = WriteOptions.parse(given, streaming=False)
    identity = None if parsed.exactly_once is None else Identity(value, sink, 0, "public/default")
    batch = pa.RecordBatch.from_pylist([{"value": value}], schema=pa.schema([("value", pa.utf8())]))
    done = write_rows(parsed, SCHEMA, iter([batch]), identity, 0)
    run(commit_batch(parsed, [done]))


def read(closed: ClosedStandalone, topic: str, count: int) -> list[str]:
    client = closed.by_token("admin")
    with closing(client.create_reader(topic, pulsar.MessageId.earliest)) as reader:
        return [reader.read_next(30_000).data().decode() for _ in range(count)]


def test_credentials_of_every_kind(closed: ClosedStandalone, tmp_path: Path) -> None:
    plain, tls = closed.process.service_url, closed.tls_url
    token = tmp_path / "token"
    token.write_text(f"{closed.token('writer')}\n")
    trust = str(closed.ca.file)
    write(TOPIC, "file", service__url=plain, token__file=str(token))
    write(
        TOPIC,
        "once",
        service__url=tls,
        token__file=str(token),
        tls__trust__file=trust,
        exactlyOnce="true",
    )
    own = closed.ca.issue("certified")
    write(
        TOPIC,
        "certificate",
        service__url=tls,
        pulsar__client__authPluginClassName="org.apache.pulsar.client.impl.auth.AuthenticationTls",
        pulsar__client__tlsTrustCertsFilePath=trust,
        pulsar__client__tlsCertificateFilePath=str(own.cert),
        pulsar__client__tlsKeyFilePath=str(own.key),
    )
    assert read(closed, TOPIC, 3) == ["file", "once", "certificate"]


def test_who_may_not_write_is_refused_without_a_word_of_the_token(
    closed: ClosedStandalone, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = closed.process.service_url
    stranger = closed.token("stranger")
    expired = closed.token("writer", -60)
    for secret, text in ((stranger, "AuthorizationError"), (expired, "AuthenticationError")):
        with pytest.raises(MagnetarError) as raised:
            write(
                TOPIC,
                "never",
                service__url=plain,
                pulsar__client__authPluginClassName="token",
                pulsar__client__authParams=f"token:{secret}",
            )
        assert text in str(raised.value)
        assert secret not in str(raised.value)
        output = capfd.readouterr()
        assert secret not in output.out + output.err
    with pytest.raises(MagnetarError):  # the server's CA is not one of the machine's
        write(TOPIC, "never", service__url=closed.tls_url, token__file=str(tmp_path / "none"))


def test_a_run_as_another_role_does_not_overtake_one_that_may_still_commit(
    closed: ClosedStandalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers answer that the first run's transaction is not found, though it is open."""
    topic = "persistent://public/default/roles"
    for role in ("writer", "certified"):
        (tmp_path / role).write_text(closed.token(role))
    closed.by_token("admin").subscribe(topic, "keeps").close()
    append, late = Journal.append, list[MagnetarError]()

    def write_as(role: str) -> None:
        token = str(tmp_path / role)
        service = closed.process.service_url
        given = {"service__url": service, "token__file": token, "exactlyOnce": "true"}
        write(topic, role, sink="roles", **given)

    def second() -> None:
        try:
            write_as("certified")
        except MagnetarError as error:
            late.append(error)

    async def overtaken(self: Journal, record: JournalRecord, **more: Any) -> Position:
        if record.kind is Kind.DONE:
            monkeypatch.setattr(Journal, "append", append)
            await asyncio.to_thread(second)
        return await append(self, record, **more)

    monkeypatch.setattr(Journal, "append", overtaken)
    write_as("writer")
    with closing(
        closed.by_token("admin").create_reader(topic, pulsar.MessageId.earliest)
    ) as reader:
        read = []
        while reader.has_message_available():
            read.append(reader.read_next(30_000).data().decode())
    assert read == ["writer"]
    ((text),) = map(str, late)
    assert "another role" in text
