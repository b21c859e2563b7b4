"""The official `pulsar-admin`, unmodified: its commands, what they print, and their exit codes."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pulsar
import pytest

from .java_programs import JAVA_TEST_TIMEOUT_S, JavaPrograms, LineProcess
from .support import (
    Names,
    ServerAddress,
    await_backlog,
    backlog,
    numbered,
    send_all,
    take,
)

COMMAND_TIMEOUT_S = 60.0
TEST_MODE_LINE = "Exit code is"

pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        assert self.code == 0, self.err
        return self.out.split()

    def text(self) -> str:
        assert self.code == 0, self.err
        return self.out.strip()

    def json(self) -> dict[str, object]:
        return dict(json.loads(self.text()))

    def done(self) -> None:
        assert self.code == 0, self.err

    def refused(self, reason: str) -> None:
        assert self.code == 1, self.out
        assert reason in self.err

    def not_deleted(self, reason: str) -> None:
        """Deleting topics prints what failed and ends well all the same."""
        assert self.code == 0, self.err
        assert "Failed to delete topic" in self.out
        assert reason in self.out


Run = Callable[..., Answer]


@pytest.fixture(scope="module")
def run(
    java: JavaPrograms, server: ServerAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    """Runs one command; all commands of the module share a JVM."""
    directory: Path = tmp_path_factory.mktemp("pulsar-admin")
    conf = directory / "client.conf"
    conf.write_text(f"webServiceUrl={server.http_url}/\nbrokerServiceUrl={server.service_url}/\n")
    command = java.command(java.tools, "AdminRunner", str(conf))
    process = LineProcess(command, directory / "jvm.log")

    def run_command(*arguments: object) -> Answer:
        line = json.dumps([str(argument) for argument in arguments])
        answer = json.loads(process.ask(line, COMMAND_TIMEOUT_S))
        out = [part for part in answer["out"].splitlines() if TEST_MODE_LINE not in part]
        return Answer(answer["code"], "\n".join(out), answer["err"])

    yield run_command
    assert process.close() == 0


def test_clusters_and_brokers(run: Run, server: ServerAddress) -> None:
    (cluster,) = run("clusters", "list").lines()
    assert run("clusters", "get", cluster).json()["serviceUrl"]
    run("clusters", "get", "no-such").refused("Cluster does not exist")
    run("clusters", "create", "second", "--url", "http://second:8080").done()
    run("clusters", "create", "second", "--url", "http://second:8080").refused("already exists")
    run("clusters", "update", "second", "--url", "http://third:8080").done()
    assert run("clusters", "get", "second").json()["serviceUrl"] == "http://third:8080"
    run("clusters", "delete", "second").done()
    assert run("brokers", "healthcheck").text() == "ok"
    (broker,) = run("brokers", "list", cluster).lines()
    leader = run("brokers", "leader-broker").json()
    assert leader == {"serviceUrl": server.http_url, "brokerId": broker}


def test_tenants(run: Run, names: Names) -> None:
    tenant = f"{names.namespace}-t"
    run("tenants", "get", tenant).refused("Tenant does not exist")
    run("tenants", "create", tenant, "--admin-roles", "me,you").done()
    run("tenants", "create", tenant).refused("Tenant already exist")
    assert tenant in run("tenants", "list").lines()
    info = run("tenants", "get", tenant).json()
    assert sorted(info["adminRoles"]) == ["me", "you"]  # type: ignore[call-overload]
    run("tenants", "update", tenant, "--admin-roles", "other").done()
    assert run("tenants", "get", tenant).json()["adminRoles"] == ["other"]
    run("namespaces", "create", f"{tenant}/ns").done()
    run("tenants", "delete", tenant).refused("The tenant still has active namespaces")
    run("namespaces", "delete", f"{tenant}/ns").done()
    run("tenants", "delete", tenant).done()
    run("tenants", "delete", tenant).refused("Tenant doesn't exist")


def test_namespaces(run: Run, names: Names) -> None:
    fresh = f"{names.path}-x"
    run("namespaces", "policies", fresh).refused("Namespace does not exist")
    run("namespaces", "create", fresh, "--bundles", "8").done()
    run("namespaces", "create", fresh).refused("Namespace already exists")
    run("namespaces", "create", "no-such/ns").refused("Tenant does not exist")
    assert fresh in run("namespaces", "list", names.tenant).lines()
    policies = run("namespaces", "policies", fresh).json()
    assert dict(policies["bundles"])["numBundles"] == 8  # type: ignore[call-overload]
    assert run("namespaces", "topics", fresh).lines() == []
    run("topics", "create", f"persistent://{fresh}/t").done()
    assert run("namespaces", "topics", fresh).lines() == [f"persistent://{fresh}/t"]
    run("namespaces", "unload", fresh).done()
    run("namespaces", "delete", fresh).refused("Cannot delete non empty namespace")
    run("topics", "delete", f"persistent://{fresh}/t").done()
    run("namespaces", "delete", fresh).done()
    run("namespaces", "delete", fresh).refused("does not exist")


def test_topics(run: Run, names: Names) -> None:
    plain, parts = names.topic("plain"), names.topic("parts")
    run("topics", "create", plain).done()
    run("topics", "create", plain).refused("This topic already exists")
    run("topics", "create-partitioned-topic", parts, "--partitions", 2).done()
    run("topics", "create-partitioned-topic", parts, "-p", 2).refused("This topic already exists")
    partitions = [f"{parts}-partition-0", f"{parts}-partition-1"]
    assert sorted(run("topics", "list", names.path).lines()) == [*partitions, plain]
    assert run("topics", "list-partitioned-topics", names.path).lines() == [parts]
    assert run("topics", "get-partitioned-topic-metadata", parts).json()["partitions"] == 2
    run("topics", "update-partitioned-topic", parts, "--partitions", 4).done()
    assert run("topics", "get-partitioned-topic-metadata", parts).json()["partitions"] == 4
    run("topics", "update-partitioned-topic", parts, "-p", 3).refused("less than the current")
    run("topics", "update-properties", plain, "-p", "a=1", "-p", "b=2").done()
    assert run("topics", "get-properties", plain).lines() == ["a", "1", "b", "2"]
    run("topics", "remove-properties", plain, "-k", "a").done()
    assert run("topics", "get-properties", plain).lines() == ["b", "2"]
    run("topics", "unload", plain).done()
    run("topics", "unload", names.topic("none")).refused("not found")
    run("topics", "delete", parts).not_deleted("is a partitioned topic")
    run("topics", "delete-partitioned-topic", plain).refused("is a non-partitioned topic")
    run("topics", "delete-partitioned-topic", parts).done()
    run("topics", "delete", plain).done()
    run("topics", "delete", plain).not_deleted("not found")
    assert run("topics", "list", names.path).lines() == []


def test_lookup(run: Run, server: ServerAddress, names: Names) -> None:
    parts = names.topic("parts")
    assert run("topics", "lookup", names.topic()).text() == server.service_url
    run("topics", "create-partitioned-topic", parts, "-p", 2).done()
    found = run("topics", "partitioned-lookup", parts).text()
    assert found.count(server.service_url) == 2
    assert run("topics", "bundle-range", names.topic()).text().startswith("0x")
    run("topics", "lookup", "persistent://public/no-such/t").refused("Namespace not found")


def test_stats(run: Run, client: pulsar.Client, names: Names) -> None:
    plain, parts = names.topic("plain"), names.topic("parts")
    client.subscribe(plain, "sub")
    ids = send_all(client.create_producer(plain), numbered(5))
    stats = run("topics", "stats", plain).json()
    assert stats["msgInCounter"] == 5
    assert list(dict(stats["subscriptions"])) == ["sub"]  # type: ignore[call-overload]
    internal = run("topics", "stats-internal", plain).json()
    last = f"{ids[-1].ledger_id()}:{ids[-1].entry_id()}"
    assert (internal["numberOfEntries"], internal["lastConfirmedEntry"]) == (5, last)
    assert "ledgers" in run("topics", "info-internal", plain).json()
    assert run("topics", "last-message-id", plain).json()["entryId"] == ids[-1].entry_id()
    run("topics", "stats", names.topic("none")).refused("not found")
    run("topics", "create-partitioned-topic", parts, "-p", 2).done()
    send_all(client.create_producer(parts), numbered(4))
    partitioned = run("topics", "partitioned-stats", parts, "--per-partition").json()
    assert partitioned["msgInCounter"] == 4
    assert len(dict(partitioned["partitions"])) == 2  # type: ignore[call-overload]
    run("topics", "partitioned-stats", plain).refused("not found")
    internal = run("topics", "partitioned-stats-internal", parts).json()
    assert len(dict(internal["partitions"])) == 2  # type: ignore[call-overload]


def test_subscriptions(run: Run, client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    topic = names.topic()
    run("topics", "create", topic).done()
    run("topics", "create-subscription", topic, "-s", "sub").done()
    run("topics", "create-subscription", topic, "-s", "sub").refused("already exists")
    run("topics", "create-subscription", topic, "-s", "all", "-m", "earliest").done()
    assert sorted(run("topics", "subscriptions", topic).lines()) == ["all", "sub"]
    producer = client.create_producer(topic)
    ids = [producer.send(body, properties={"n": body.decode()}) for body in numbered(10)]
    peeked = run("topics", "peek-messages", topic, "-s", "sub", "-n", 2).text()
    assert f"Message ID: {ids[0].ledger_id()}:{ids[0].entry_id()}" in peeked
    assert "m-1" in peeked
    assert "m-2" not in peeked
    assert backlog(admin, topic, "sub") == 10
    run("topics", "skip", topic, "-s", "sub", "-n", 3).done()
    assert backlog(admin, topic, "sub") == 7
    run("topics", "clear-backlog", topic, "-s", "sub").done()
    assert backlog(admin, topic, "sub") == 0
    run("topics", "reset-cursor", topic, "-s", "sub", "-t", "1h").done()
    assert backlog(admin, topic, "sub") == 10
    target = f"{ids[6].ledger_id()}:{ids[6].entry_id()}"
    run("topics", "reset-cursor", topic, "-s", "sub", "-m", target).done()
    assert "m-6" in run("topics", "peek-messages", topic, "-s", "sub", "-n", 1).text()
    run("topics", "expire-messages", topic, "-s", "all", "-t", 3600).done()
    assert backlog(admin, topic, "all") == 10
    run("topics", "skip", names.topic("none"), "-s", "sub", "-n", 1).refused("not found")
    consumer = client.subscribe(topic, "sub")
    run("topics", "unsubscribe", topic, "-s", "sub").refused("active connected consumers")
    consumer.close()
    run("topics", "unsubscribe", topic, "-s", "sub").done()
    run("topics", "unsubscribe", topic, "-s", "sub").refused("Subscription sub not found")
    assert run("topics", "subscriptions", topic).lines() == ["all"]


def test_deleting_what_is_in_use(
    run: Run, client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = names.topic()
    consumer = client.subscribe(topic, "sub")
    send_all(client.create_producer(topic), numbered(2))
    take(consumer, 2, ack=True)
    await_backlog(admin, topic, "sub")
    run("topics", "delete", topic).not_deleted("clients connected")
    consumer.close()
    run("topics", "delete", topic, "--force").done()
    run("topics", "stats", topic).refused("not found")


def test_schemas(run: Run, names: Names, tmp_path: Path) -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    payload = {"type": "AVRO", "schema": json.dumps(definition), "properties": {}}
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(payload))
    run("topics", "create", names.topic()).done()
    run("schemas", "get", names.topic()).refused("Schema not found")
    run("schemas", "upload", names.topic(), "-f", path).done()
    found = run("schemas", "get", names.topic()).json()
    assert dict(found["schemaInfo"])["type"] == "AVRO"  # type: ignore[call-overload]
    run("schemas", "delete", names.topic()).done()
    run("schemas", "get", names.topic()).refused("Schema not found")


def test_offload(client: pulsar.Client, run: Run, names: Names) -> None:
    """The tool chooses the message by the ledgers' sizes; the newest ledger always stays."""
    topic = names.topic()
    send_all(client.create_producer(topic), numbered(3))
    assert run("topics", "offload", "-s", "10M", topic).text() == "Nothing to offload"
    not_run = f"Offload has not been run for {topic} since broker startup"
    assert run("topics", "offload-status", topic).text() == not_run
    triggered = run("topics", "offload", "-s", "0", topic).text()
    assert triggered.startswith(f"Offload triggered for {topic} for messages before ")
    assert run("topics", "offload-status", "-w", topic).text().startswith("Offload was a success")
    run("topics", "offload", "-s", "0", topic + "-none").refused("not found")


def test_compaction(client: pulsar.Client, run: Run, names: Names) -> None:
    topic = names.topic()
    producer = client.create_producer(topic)
    for number in range(9):
        producer.send(b"%d" % number, partition_key=f"k{number % 3}")
    not_run = f"Compaction has not been run for {topic} since broker startup"
    assert run("topics", "compaction-status", topic).text() == not_run
    for _ in range(2):
        assert run("topics", "compact", topic).text() == f"Topic compaction requested for {topic}"
        ended = run("topics", "compaction-status", "-w", topic)
        assert ended.text() == "Compaction was a success"
    producer.send(b"9", partition_key="k0")
    reader = client.subscribe(
        topic,
        "compacted",
        initial_position=pulsar.InitialPosition.Earliest,
        is_read_compacted=True,
    )
    values = [reader.receive(int(COMMAND_TIMEOUT_S * 1000)).data() for _ in range(4)]
    assert values == [b"6", b"7", b"8", b"9"]
    run("topics", "compact", topic + "-none").refused("not found")
