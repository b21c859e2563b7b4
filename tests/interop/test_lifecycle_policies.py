"""Retention, TTL, backlog quotas and inactive topics, set over REST, felt by the official client.

The server looks for what is too old or too much several times a second, and its ledgers are small.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from tests.support.server_process import ServerProcess

from .conftest import HTTP_TIMEOUT_S, ConnectClient
from .support import read, take, wait_until

ENTRIES_PER_LEDGER = 10
SETTINGS = {
    "MAGNETAR_LEDGER_ENTRIES_MAX": str(ENTRIES_PER_LEDGER),
    "MAGNETAR_LEDGER_ROLLOVER_MIN_MINUTES": "0",
    "MAGNETAR_RETENTION_CHECK_INTERVAL_S": "1",
    "MAGNETAR_TTL_CHECK_INTERVAL_MINUTES": "0.005",
    "MAGNETAR_BACKLOG_QUOTA_CHECK_INTERVAL_S": "0.2",
    "MAGNETAR_DELETE_INACTIVE_TOPICS_INTERVAL_S": "1",
    "MAGNETAR_DELETE_INACTIVE_TOPICS": "false",
}
TOPIC = "persistent://public/default/t"
BODY = b"x" * 1_000
BLOCKED = (
    pulsar.ProducerBlockedQuotaExceededError,
    pulsar.ProducerBlockedQuotaExceededException,
)


class Server:
    """A standalone of its own for each test, and its REST."""

    def __init__(self, process: ServerProcess, http: httpx.Client) -> None:
        self.process = process
        self.http = http

    def set(self, policy: str, value: Any, verb: str = "POST", **query: str) -> None:
        path = f"/admin/v2/namespaces/public/default/{policy}"
        self.http.request(verb, path, json=value, params=query).raise_for_status()

    def effect(self, **query: str) -> dict[str, Any]:
        path = "/admin/v2/magnetar/persistent/public/default/t/effect"
        found: dict[str, Any] = self.http.get(path, params=query).raise_for_status().json()
        return found

    def stats(self) -> dict[str, Any]:
        path = "/admin/v2/persistent/public/default/t/stats"
        found: dict[str, Any] = self.http.get(path).raise_for_status().json()
        return found

    def metrics(self) -> str:
        return self.http.get("/metrics").raise_for_status().text


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with (
        ServerProcess(tmp_path, environment=SETTINGS) as process,
        httpx.Client(base_url=process.http_url, timeout=HTTP_TIMEOUT_S, trust_env=False) as http,
    ):
        yield Server(process, http)


@pytest.fixture
def client(server: Server, connect: ConnectClient) -> pulsar.Client:
    return connect(server.process.service_url)


def publish(client: pulsar.Client, count: int) -> pulsar.Producer:
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for _ in range(count):
        producer.send(BODY)
    return producer


def test_retention(server: Server, client: pulsar.Client) -> None:
    server.set("retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    publish(client, 35)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    assert read(reader, 1)[0].data() == BODY  # kept, though nobody subscribed
    reader.close()
    kept = server.stats()["storageSize"]
    tried = server.effect(retentionTimeInMinutes="0", retentionSizeInMB="0")
    assert tried["deletes"]["ledgers"] == 3
    assert server.effect()["deletes"]["ledgers"] == 0
    whole = server.http.get(
        "/admin/v2/magnetar/namespaces/public/default/effect",
        params={"retentionTimeInMinutes": "0", "retentionSizeInMB": "0"},
    ).json()
    assert (whole["deletes"], whole["topics_affected"]) == (tried["deletes"], 1)
    server.set("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    left = kept - tried["deletes"]["bytes"]
    wait_until(lambda: server.stats()["storageSize"] == left, what="what was predicted")


def test_a_ttl(server: Server, client: pulsar.Client) -> None:
    client.subscribe(TOPIC, "s").close()
    publish(client, 12)
    server.set("messageTTL", 1)
    wait_until(lambda: server.stats()["subscriptions"]["s"]["totalMsgExpired"] == 12, what="expiry")
    subscription = server.stats()["subscriptions"]["s"]
    assert subscription["msgBacklog"] == 0
    assert subscription["lastExpireTimestamp"] > 0
    consumer = client.subscribe(TOPIC, "s")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    assert 'subscription="s"} 12' in next(
        line
        for line in server.metrics().splitlines()
        if line.startswith("pulsar_subscription_total_msg_expired{")
    )


@pytest.mark.parametrize("action", ["producer_request_hold", "producer_exception"])
def test_a_quota_that_keeps_producers_away(
    server: Server, client: pulsar.Client, action: str
) -> None:
    consumer = client.subscribe(TOPIC, "s")
    publish(client, 12).close()
    producer = client.create_producer(TOPIC, batching_enabled=False)
    quota = {"limitSize": 10_000, "limitTime": -1, "policy": action}
    tried = server.effect(backlogQuotaSize="10000", backlogQuotaPolicy=action)
    assert tried["blocks_producers"] is True
    server.set("backlogQuota", quota, backlogQuotaType="destination_storage")
    wait_until(lambda: not server.stats()["publishers"], what="the producer is sent away")
    with pytest.raises(BLOCKED):
        client.create_producer(TOPIC)
    assert server.stats()["backlogQuotaLimitSize"] == 10_000
    assert "pulsar_storage_backlog_quota_limit{" in server.metrics()
    for message in take(consumer, 12):
        consumer.acknowledge_cumulative(message)
    # Nobody has to do anything: new producers are let in, and the old one comes back.
    again = wait_until(lambda: _producer(client), what="a producer is let in")
    again.send(b"more")
    wait_until(lambda: len(server.stats()["publishers"]) == 2, what="the old producer is back")
    producer.send(b"and more")


def _producer(client: pulsar.Client) -> pulsar.Producer | None:
    try:
        return client.create_producer(TOPIC, producer_name="again")
    except BLOCKED:
        return None


def test_a_quota_that_evicts(server: Server, client: pulsar.Client) -> None:
    consumer = client.subscribe(TOPIC, "s")
    producer = publish(client, 50)
    size = server.stats()["storageSize"]
    limit = size * 4 // 5
    tried = server.effect(
        backlogQuotaSize=str(limit), backlogQuotaPolicy="consumer_backlog_eviction"
    )
    quota = {"limitSize": limit, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    server.set("backlogQuota", quota, backlogQuotaType="destination_storage")
    wait_until(lambda: server.stats()["subscriptions"]["s"]["msgBacklog"] < 50, what="eviction")
    assert server.stats()["subscriptions"]["s"]["msgBacklog"] == 50 - tried["evicts"]["s"]
    assert server.stats()["backlogSize"] <= limit
    producer.send(BODY)  # producers are left alone
    assert 'quota_type="size"} 1' in server.metrics()
    consumer.close()


def test_inactive_topics(server: Server, client: pulsar.Client) -> None:
    producer = publish(client, 1)
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    }
    server.set("inactiveTopicPolicies", policy)
    names = "/admin/v2/persistent/public/default"
    keeper = client.create_producer("persistent://public/default/other")
    client.create_producer("persistent://public/default/empty").close()
    wait_until(
        lambda: (
            server.http.get(names).json()
            == ["persistent://public/default/other", "persistent://public/default/t"]
        ),
        what="the empty topic goes, those in use stay",
    )
    producer.close()
    wait_until(
        lambda: server.http.get(names).json() == ["persistent://public/default/other"],
        what="the topic goes",
    )
    keeper.send(b"still here")
