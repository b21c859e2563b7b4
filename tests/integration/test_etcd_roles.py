"""A cluster whose processes have only the etcd roles that `magnetar etcd roles` prints."""

import asyncio
import base64
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.support.etcd import EtcdMember, open_on, start_etcd
from tests.support.raw_client import RawClient
from tests.support.transactional import TransactionalClient

from magnetar.cluster import autorecovery_process, bookie_process, broker_process
from magnetar.cluster.etcd_roles import PERMISSIONS
from magnetar.ledger.metadata import LEDGERS_PREFIX, LedgerMetadata
from magnetar.metadata.etcd.errors import MetadataRefused
from magnetar.metadata.store import MetadataStore
from magnetar.settings.bookie import BookieProcessSettings
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import compose
from magnetar.settings.member import AutorecoveryProcessSettings
from magnetar.transactions.model import TxnId
from magnetar.transactions.records import record_key

ROOT = "/magnetar"
PASSWORD = "secret"  # noqa: S105
WITHIN_S = 60.0
MESSAGES = 20
RETENTION = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1}

pytestmark = pytest.mark.timeout(240)


def printed_roles() -> list[dict[str, str]]:
    """What `magnetar etcd roles --json` prints."""
    command = [sys.executable, "-m", "magnetar.cli.main", "etcd", "roles", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=WITHIN_S)
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def end_of(prefix: str) -> str:
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    """An etcd with authentication, and a user for each role, with that role alone."""
    member = start_etcd(tmp_path_factory.mktemp("etcd"))
    with httpx.Client(
        base_url=f"http://{member.address}/v3", trust_env=False, timeout=WITHIN_S
    ) as client:

        def call(path: str, **fields: object) -> None:
            client.post(path, json=fields).raise_for_status()

        for role in ("root", *PERMISSIONS):
            call("/auth/role/add", name=role)
            call("/auth/user/add", name=role, password=PASSWORD)
            call("/auth/user/grant", user=role, role=role)
        for printed in printed_roles():
            key = printed["key"]
            permission = {"permType": printed["access"].upper(), "key": base64_of(key)}
            if printed["prefix"]:
                permission["range_end"] = base64_of(end_of(key))
            call("/auth/role/grant", name=printed["role"], perm=permission)
        call("/auth/enable")
    yield member
    member.stop()


@dataclass
class Cluster:
    """A cluster whose processes run in the test's event loop, each as its own user of etcd."""

    broker: broker_process.BrokerProcess
    bookies: list[bookie_process.BookieProcess]
    rest: httpx.AsyncClient


@pytest.fixture
async def cluster(etcd: EtcdMember, tmp_path: Path) -> AsyncIterator[Cluster]:
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    login: dict[str, Any] = {"metadata_url": etcd.url, "metadata_password_file": password}
    quick: dict[str, Any] = {
        "lost_bookie_delay_s": 0,
        "open_ledger_grace_ms": 1_000,
        "audit_interval_s": 60,
    }
    async with AsyncExitStack() as opened:
        bookies = []
        for number in range(3):
            settings = compose(
                BookieProcessSettings,
                data_dir=tmp_path / f"bookie-{number}",
                bookie_id=f"bookie-{number}",
                port=0,
                http_port=0,
                metadata_username="bookie",
                autorecovery=False,
                **login,
            )
            bookie = await bookie_process.start(settings)
            opened.push_async_callback(bookie.stop)
            bookies.append(bookie)
        recovery = await autorecovery_process.start(
            compose(
                AutorecoveryProcessSettings,
                http_port=0,
                metadata_username="autorecovery",
                **login,
                **quick,
            )
        )
        opened.push_async_callback(recovery.stop)
        broker = await broker_process.start(
            compose(
                BrokerProcessSettings,
                port=0,
                http_port=0,
                metadata_username="broker",
                transactions=True,
                **login,
            )
        )
        opened.push_async_callback(broker.stop)
        rest = await opened.enter_async_context(
            httpx.AsyncClient(base_url=broker.http_url, trust_env=False, timeout=WITHIN_S)
        )
        yield Cluster(broker, bookies, rest)


async def called(rest: httpx.AsyncClient, method: str, path: str, json: object = None) -> object:
    answer = await rest.request(method, f"/admin/v2{path}", json=json)
    assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
    return answer.json() if answer.content else None


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await condition():  # noqa: ASYNC110 - the condition reads etcd
            await asyncio.sleep(0.1)


async def test_every_process_works_with_its_role_alone(
    cluster: Cluster, etcd: EtcdMember, caplog: pytest.LogCaptureFixture
) -> None:
    rest = cluster.rest
    await called(rest, "PUT", "/tenants/t", {"adminRoles": [], "allowedClusters": ["magnetar"]})
    await called(rest, "PUT", "/namespaces/t/n")
    await called(rest, "POST", "/namespaces/t/n/retention", RETENTION)
    await called(rest, "PUT", "/persistent/t/n/parts/partitions", 2)
    await called(rest, "POST", "/persistent/t/n/parts/retention", RETENTION)
    schema = {"type": "STRING", "schema": "", "properties": {}}
    await called(rest, "POST", "/schemas/t/n/parts/schema", schema)
    await publish_and_consume(cluster, "persistent://t/n/one")
    await commit_a_transaction(cluster, "persistent://t/n/one")
    await called(rest, "PUT", "/persistent/t/n/one/compaction")
    await called(rest, "GET", "/brokers/magnetar")
    await called(rest, "GET", "/bookies/all")
    await lose_a_bookie(cluster, etcd)
    for topic in ("one", "parts"):
        path = f"/persistent/t/n/{topic}" + ("/partitions" if topic == "parts" else "")
        await called(rest, "DELETE", f"{path}?force=true")
    await called(rest, "DELETE", "/namespaces/t/n")
    await called(rest, "DELETE", "/tenants/t")
    assert "permission denied" not in caplog.text


async def publish_and_consume(cluster: Cluster, topic: str) -> None:
    found = await cluster.rest.get(f"/lookup/v2/topic/{topic.replace('://', '/')}")
    assert found.is_success, found.text
    host, _, port = cluster.broker.service_url.removeprefix("pulsar://").partition(":")
    client = await RawClient.connect(host, int(port))
    consumer = await client.consumer(topic, "sub")
    producer = await client.producer(topic)
    client.flow(consumer, MESSAGES)
    for number in range(MESSAGES):
        client.send(producer, number, b"payload")
    await client.receipted(producer, MESSAGES)
    received = [await client.receive(consumer) for _ in range(MESSAGES)]
    await client.ack(consumer, [(one.ledger_id, one.entry_id) for one in received[:-1]])
    await client.close()


async def commit_a_transaction(cluster: Cluster, topic: str) -> None:
    host, _, port = cluster.broker.service_url.removeprefix("pulsar://").partition(":")
    async with TransactionalClient((host, int(port))) as client:
        await client.coordinators()
        txn = await client.begin()
        await client.add(txn, topic)
        await client.send(topic, txn, b"payload")
        await client.end(txn, commit=True)


async def ledgers(store: MetadataStore) -> list[LedgerMetadata]:
    stored = await store.list(LEDGERS_PREFIX)
    return [msgspec.json.decode(record.value, type=LedgerMetadata) for record in stored]


async def lose_a_bookie(cluster: Cluster, etcd: EtcdMember) -> None:
    """Stops a bookie that has entries; autorecovery copies them to the other two."""
    reader = await open_on(etcd, username="root", password=PASSWORD, root=ROOT)
    try:
        records = [
            msgspec.json.decode(stored.value, type=LedgerMetadata)
            for stored in await reader.list("/ledgers/")
        ]
        lost = records[0].ensembles[0].bookies[0]
        index = [bookie.identity for bookie in cluster.bookies].index(lost)
        await cluster.bookies[index].stop()

        async def repaired() -> bool:
            left = [
                msgspec.json.decode(stored.value, type=LedgerMetadata)
                for stored in await reader.list("/ledgers/")
            ]
            return all(
                lost not in ensemble.bookies for record in left for ensemble in record.ensembles
            )

        await until(repaired)
    finally:
        await reader.close()


@pytest.mark.parametrize(
    ("role", "denied"),
    [
        ("bookie", "/tenants/t"),
        ("bookie", "/managed-ledgers/t/n/persistent/one"),
        ("autorecovery", "/ownership/t/n/0x0_0xf"),
        ("autorecovery", "/bookies/bookie-0"),
        ("job", "/ledgers/1"),
        ("job", "/namespaces/t/n"),
        ("job", "/transactions/0/1"),
        ("bookie", "/dynamic-settings/cluster"),
        ("bookie", "/bookies-racks"),
        ("job", "/dynamic-settings/cluster"),
        ("broker", "/bookies/bookie-0"),
        ("broker", "/offload-jobs/j"),
    ],
)
async def test_a_role_cannot_write_what_it_does_not_need(
    etcd: EtcdMember, role: str, denied: str
) -> None:
    store = await open_on(etcd, username=role, password=PASSWORD, root=ROOT)
    try:
        with pytest.raises(MetadataRefused, match="permission denied"):
            await store.put(denied, b"")
        with pytest.raises(MetadataRefused, match="permission denied"):
            await store.delete(denied)
    finally:
        await store.close()


async def test_a_job_reads_the_records_of_transactions(etcd: EtcdMember) -> None:
    """Without them, Spark and compaction cannot tell which messages were aborted."""
    key = record_key(TxnId(0, 1 << 40))
    broker = await open_on(etcd, username="broker", password=PASSWORD, root=ROOT)
    job = await open_on(etcd, username="job", password=PASSWORD, root=ROOT)
    try:
        await broker.put(key, b"{}")
        stored = await job.get(key)
        assert stored is not None
        assert stored.value == b"{}"
    finally:
        await job.close()
        await broker.close()
