"""Entry filters with the official Python client, and `magnetar explain` beside it."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pulsar
import pytest

from magnetar.cli.main import main

from .support import (
    PATIENCE_S,
    UNTIL_FLUSH_MS,
    ServerAddress,
    await_backlog,
    bodies,
    take,
    wait_until,
)

Explain = Callable[..., str]

FINE, WRONG = 0, 3
LONG_MS = int(PATIENCE_S * 1000)


@pytest.fixture
def explain(
    server: ServerAddress, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Explain:
    """Runs `magnetar explain`, which must end with `code`; returns what it printed."""
    monkeypatch.setenv("MAGNETAR_ADMIN_URL", server.http_url)

    def run(*arguments: str, code: int = FINE) -> str:
        capfd.readouterr()
        result = main(["explain", *arguments])
        printed = capfd.readouterr()
        assert result == code, printed
        return printed.out or printed.err

    return run


def rest(topic: str) -> str:
    domain, path = topic.split("://")
    return f"/admin/v2/{domain}/{path}"


def set_filters(admin: httpx.Client, topic: str, names: str, **parameters: str) -> None:
    body = {"entryFilterNames": names, "parameters": parameters}
    admin.post(f"{rest(topic)}/entryFilters", json=body).raise_for_status()


def create_subscription(admin: httpx.Client, topic: str, properties: dict[str, str]) -> None:
    admin.put(f"{rest(topic)}/subscription/s").raise_for_status()
    answer = admin.put(f"{rest(topic)}/subscription/s/properties", json=properties)
    answer.raise_for_status()


def send_orders(client: pulsar.Client, topic: str, *, batch: bool) -> list[str]:
    """Sends orders of two regions; returns their ids as clients print them."""
    options: dict[str, Any] = {"batching_enabled": False}
    if batch:
        options = {
            "batching_enabled": True,
            "batching_max_publish_delay_ms": UNTIL_FLUSH_MS,
            "batching_max_messages": 100,
        }
    producer = client.create_producer(topic, **options)
    sent: list[str] = []

    def receipt(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        assert result == pulsar.Result.Ok
        index = message_id.batch_index()
        at = f"{message_id.ledger_id()}:{message_id.entry_id()}"
        sent.append(f"{at}:{index}" if batch else at)

    for number in range(6):
        properties = {"region": ("eu", "us")[number % 2], "amount": str(number)}
        producer.send_async(
            b"%d" % number, receipt, properties=properties, partition_key=f"order-{number}"
        )
    producer.flush()
    wait_until(lambda: len(sent) == 6, what="six receipts")
    return sent


@pytest.mark.parametrize("batch", [False, True])
def test_the_filters_of_policy_and_subscription(
    client: pulsar.Client, admin: httpx.Client, topic: str, explain: Explain, batch: bool
) -> None:
    producer = client.create_producer(topic)
    set_filters(admin, topic, "properties,expression", **{"filter.property.region": "eu"})
    create_subscription(admin, topic, {"filter.expression": "amount >= 2 AND key LIKE 'order-%'"})
    # Without index acks, this client waits for the acks of messages that it was not given.
    consumer = client.subscribe(
        topic, "s", pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    ids = send_orders(client, topic, batch=batch)
    messages = take(consumer, 2)
    assert bodies(messages) == [b"2", b"4"]
    for message in messages:
        consumer.acknowledge(message)
    await_backlog(admin, topic, "s")
    stats = admin.get(f"{rest(topic)}/stats").raise_for_status().json()["subscriptions"]["s"]
    assert (stats["filterAcceptedMsgCount"], stats["filterRejectedMsgCount"]) == (2, 4)
    answer = json.loads(
        explain("subscription", topic, "s", "--message", ids[1], "--json", code=WRONG)
    )
    found = answer["findings"][0]
    assert found["code"] == "filtered"
    assert found["evidence"]["message_properties"] == ["amount: 1", "region: us"]
    assert found["evidence"]["message_key"] == "order-1"
    text = explain("subscription", topic, "s", "--message", ids[4], code=WRONG)
    assert "1. already_acknowledged: " in text
    text = explain("subscription", topic, "s")
    assert "1. caught_up: " in text
    assert "2. filtered: " in text
    assert "rejected_messages: 4" in text
    producer.close()


def test_the_command_shows_reasons_disk_and_codes(
    client: pulsar.Client, admin: httpx.Client, topic: str, explain: Explain
) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=1)
    producer = client.create_producer(topic, batching_enabled=False, producer_name="maker")
    ids = [producer.send(b"x" * 1_000) for _ in range(5)]
    held = consumer.receive(LONG_MS)
    first = f"{ids[0].ledger_id()}:{ids[0].entry_id()}"
    assert held.message_id().entry_id() == ids[0].entry_id()
    text = explain("subscription", topic, "s", "--message", first, code=WRONG)
    assert text.startswith(f"{topic}, subscription s, message {first} (by ")
    assert "1. in_flight: " in text
    assert "   next: " in text
    assert f"pulsar-admin topics unload {topic}" in text
    text = explain("topic", topic)
    assert "1. publishing: " in text
    assert "producers: maker" in text
    document = json.loads(explain("topic", topic, "--json"))
    disk = document["disk"]
    assert disk["exact"]
    assert disk["bytes"] == sum(disk["by_reason"].values()) >= 5_000
    assert disk["bytes"] == sum(ledger["bytes"] for ledger in disk["ledgers"])
    assert f"{disk['bytes']} bytes on bookies:" in text
    codes = dict(line.split(maxsplit=1) for line in explain("codes").splitlines())
    assert codes["filtered"].startswith("Entry filters reject")
    missing = explain("subscription", topic, "other", code=1)
    assert "magnetar explain: " in missing
    assert "other" in missing


def test_what_compaction_removed(
    client: pulsar.Client, admin: httpx.Client, topic: str, explain: Explain
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"%d" % number, partition_key="k") for number in range(3)]
    admin.put(f"{rest(topic)}/compaction").raise_for_status()

    def compacted() -> bool:
        found = admin.get(f"{rest(topic)}/compaction").raise_for_status().json()
        assert found["status"] != "ERROR", found
        return bool(found["status"] == "SUCCESS")

    wait_until(compacted, what="a compaction")
    consumer = client.subscribe(
        topic,
        "s",
        is_read_compacted=True,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    assert bodies(take(consumer, 1)) == [b"2"]
    first = f"{ids[0].ledger_id()}:{ids[0].entry_id()}"
    text = explain("subscription", topic, "s", "--message", first, code=WRONG)
    assert "1. compacted_away: " in text
