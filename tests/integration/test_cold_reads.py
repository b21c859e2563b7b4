"""An official client on a cluster whose cold ledgers lie in files: it sees no seam.

The ledgers are moved by what a job does, without Spark, while brokers and bookies serve.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pulsar
import pytest
from tests.support.cluster_processes import brokers, get_json, metric, running_cluster, wait_for
from tests.support.offload_files import move

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.core.clock import SystemClock
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.registered_bookies import RegisteredBookies
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.store_url import open_store
from magnetar.offload.policy import OffloadDefaults, decode_defaults
from magnetar.offload.records import DEFAULTS_KEY
from magnetar.offload.stores import FILESYSTEM, StoreSpec

MESSAGES = 600
LEDGER_ENTRIES = 100
RECEIVE_MS = 30_000
HTTP_TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cold")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, folder: Path, request: pytest.FixtureRequest
) -> Iterator[LocalCluster]:
    before = request.session.testsfailed
    with running_cluster(
        tmp_path_factory.mktemp("cluster"),
        bookies=2,
        brokers=1,
        failed=lambda: request.session.testsfailed > before,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        ledger_rollover_min_minutes=0,
        ledger_entries_max=LEDGER_ENTRIES,
        retention_minutes=-1,
        retention_size_mb=-1,
        cache_size_mb=0,
        offload_driver=FILESYSTEM,
        offload_folder=str(folder),
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[pulsar.Client]:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(cluster.directory / "client.log"))
    with closing(pulsar.Client(cluster.service_url, logger=logger)) as client:
        yield client


def payload(number: int) -> bytes:
    return b"%d " % number * 40


def publish(client: pulsar.Client, topic: str, first: int, count: int) -> None:
    with closing(client.create_producer(topic, batching_enabled=False)) as producer:
        for number in range(first, first + count):
            producer.send_async(payload(number), lambda _result, _id: None)
            if number % 20 == 0:
                producer.flush()  # what arrives together goes into one ledger
        producer.flush()


def receive(consumer: pulsar.Consumer, first: int, last: int) -> None:
    """Exactly these, in order."""
    for number in range(first, last):
        message = consumer.receive(RECEIVE_MS)
        assert message.data() == payload(number), number
        consumer.acknowledge(message)


def name_of(topic: str) -> str:
    return f"public/default/persistent/{topic.rpartition('/')[2]}"


def moved(cluster: LocalCluster, topic: str, folder: Path, count: int) -> None:
    """Moves the oldest `count` ledgers of the topic that are not moved yet."""

    async def work() -> None:
        clock = SystemClock()
        store = await open_store(cluster.metadata_url, clock)
        bookies = RegisteredBookies(store, clock, client="test")
        await bookies.start()
        ledgers = LedgerClient(store, bookies, clock)
        try:
            key = managed_ledger_key(name_of(topic))
            stored = await store.get(key)
            assert stored is not None
            defaults = await store.get(DEFAULTS_KEY)
            assert defaults is not None
            known = decode_defaults(DEFAULTS_KEY, defaults.value)
            assert known == OffloadDefaults(driver=FILESYSTEM, folder=str(folder))
            items = [i for i in decode_managed_ledger(key, stored.value).ledgers if i.closed_ms]
            assert len(items) >= count
            for item in items[:count]:
                spec = StoreSpec(FILESYSTEM, str(folder))
                await move(store, ledgers, name_of(topic), item.ledger_id, spec, group_bytes=5000)
        finally:
            await ledgers.close()
            await bookies.stop()
            await store.close()

    asyncio.run(work())


def rest(cluster: LocalCluster, topic: str, what: str) -> str:
    return f"{brokers(cluster)[0].http_url}/admin/v2/{topic.replace('://', '/')}/{what}"


def deleted(url: str) -> bool:
    return httpx.delete(url, timeout=HTTP_TIMEOUT_S).status_code == 204


def files(folder: Path, topic: str) -> list[Path]:
    return list(folder.rglob(f"{topic.rpartition('/')[2]}/*.parquet"))


def test_a_consumer_goes_through_the_seam_and_back(
    cluster: LocalCluster, client: pulsar.Client, folder: Path
) -> None:
    topic = "persistent://public/default/seam"
    publish(client, topic, 0, MESSAGES)
    options = {"initial_position": pulsar.InitialPosition.Earliest, "receiver_queue_size": 10}
    with closing(client.subscribe(topic, "sub", **options)) as consumer:
        receive(consumer, 0, 150)
        moved(cluster, topic, folder, 5)  # also what is being read from the bookies
        receive(consumer, 150, MESSAGES)
        publish(client, topic, MESSAGES, 50)
        receive(consumer, MESSAGES, MESSAGES + 50)
        consumer.seek(pulsar.MessageId.earliest)
        receive(consumer, 0, MESSAGES + 50)
    (broker,) = brokers(cluster)
    assert metric(broker, "brk_ledgeroffloader_read_bytes") > 0
    assert metric(broker, "pulsar_storage_offloaded_size") >= 0

    ledgers = get_json(rest(cluster, topic, "internalStats"))["ledgers"]
    assert [each["offloaded"] for each in ledgers] == [True] * 5 + [False] * (len(ledgers) - 5)
    stats = get_json(rest(cluster, topic, "stats"))
    assert stats["offloadedStorageSize"] == sum(each["size"] for each in ledgers[:5])
    assert stats["storageSize"] == sum(each["size"] for each in ledgers)
    assert stats["lastOffloadLedgerId"] == ledgers[4]["ledgerId"]
    assert stats["lastOffloadSuccessTimeStamp"] > 0
    assert metric(broker, "pulsar_storage_offloaded_size") == stats["offloadedStorageSize"]
    asked_for(cluster, topic, [each["ledgerId"] for each in ledgers])


def asked_for(cluster: LocalCluster, topic: str, ledger_ids: list[int]) -> None:
    """Requests to offload: what is there already is done at once, the rest waits for a job."""
    url = rest(cluster, topic, "offload")
    nothing = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1}
    not_run = {
        "status": "NOT_RUN",
        "lastError": "",
        "firstUnoffloadedMessage": {**nothing, "batchSize": 0},
    }
    assert get_json(url) == not_run
    up_to = {"ledgerId": ledger_ids[5], "entryId": 0, "partitionIndex": -1}
    assert httpx.put(url, json=up_to, timeout=HTTP_TIMEOUT_S).status_code == 204
    done = get_json(url)
    assert (done["status"], done["firstUnoffloadedMessage"]["ledgerId"]) == (
        "SUCCESS",
        ledger_ids[5],
    )
    all_of_it = {"ledgerId": ledger_ids[-1] + 7, "entryId": 0, "partitionIndex": -1}
    assert httpx.put(url, json=all_of_it, timeout=HTTP_TIMEOUT_S).status_code == 204
    assert get_json(url)["status"] == "RUNNING"
    again = httpx.put(url, json=all_of_it, timeout=HTTP_TIMEOUT_S)
    assert (again.status_code, again.json()) == (409, {"reason": "Offload already in progress"})


def test_while_the_store_is_down_consumers_wait(
    cluster: LocalCluster, client: pulsar.Client, folder: Path
) -> None:
    topic = "persistent://public/default/down"
    publish(client, topic, 0, 250)
    moved(cluster, topic, folder, 2)
    away = folder.with_name("away")
    folder.rename(away)
    try:
        options = {"initial_position": pulsar.InitialPosition.Earliest}
        with closing(client.subscribe(topic, "sub", **options)) as consumer:
            with pytest.raises(pulsar.Timeout):
                consumer.receive(2_000)
            folder.rmdir() if folder.exists() else None
            away.rename(folder)
            receive(consumer, 0, 250)
    finally:
        if away.exists():
            away.rename(folder)


def test_what_goes_takes_its_files_with_it(
    cluster: LocalCluster, client: pulsar.Client, folder: Path
) -> None:
    topic = "persistent://public/default/gone"
    publish(client, topic, 0, 350)
    moved(cluster, topic, folder, 3)
    assert len(files(folder, topic)) == 3
    assert deleted(rest(cluster, topic, "").rstrip("/"))
    wait_for(lambda: not files(folder, topic), "the files of what was deleted are gone")
    document = json.dumps(get_json(rest(cluster, "persistent://public/default", "")[:-1]))
    assert topic not in document
    kept = "persistent://public/default/kept"
    publish(client, kept, 0, 350)
    moved(cluster, kept, folder, 3)
    assert deleted(rest(cluster, kept, "truncate"))
    wait_for(lambda: not files(folder, kept), "the files of what was trimmed are gone")
