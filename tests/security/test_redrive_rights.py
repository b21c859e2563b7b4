"""A redrive moves only what its role may read, and only to topics that the role may produce to."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.unit.ledger.stage import publish

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.client import Client, SubscriptionType
from magnetar.client.auth import Token
from magnetar.core.names import parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.entry import build_entry

from .closed_standalone import ADMIN, ClosedStandalone
from .rest import SUPER, TOPIC, Closed, closed_rest, reason_of

PATH = "~/persistent/t1/n1/a-DLQ/subscription/dlq/redrive"
PATIENCE_S = 60.0
POLL_S = 0.05


def letter(origin: str) -> bytes:
    head = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    head.properties.add(key="REAL_TOPIC", value=origin)
    return build_entry(head, b"x")


async def buried(closed: Closed) -> None:
    """A letter of the topic `a` and one of the topic `b`."""
    await closed.done(SUPER, "PUT", "~/persistent/t1/n1/a-DLQ")
    await closed.done(SUPER, "PUT", "~/persistent/t1/n1/b")
    await closed.done(SUPER, "PUT", "~/persistent/t1/n1/a-DLQ/subscription/dlq")
    topic = await closed.service.topics.get_or_open(parse_topic(f"{TOPIC}-DLQ"), create=False)
    assert isinstance(topic, PersistentTopic)
    for origin in (TOPIC, "persistent://t1/n1/b"):
        await publish(topic.managed_ledger, letter(origin))


async def result(closed: Closed, role: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            progress: dict[str, Any] = (await closed.call(role, "GET", PATH)).json()
            if progress["state"] != "running":
                return progress
            await asyncio.sleep(0)


async def test_letters_go_only_to_topics_of_the_role() -> None:
    async with closed_rest(transactions=True) as closed:
        await buried(closed)
        both = "~/persistent/t1/n1/a-DLQ/permissions/topicprod"
        await closed.done(SUPER, "POST", both, ["consume"])  # and it may produce to `a`
        for role in ("cons", "topicprod"):
            body = {"to": "persistent://t1/n1/b", "dryRun": True}
            refused = await closed.call(role, "POST", PATH, body)
            assert refused.status_code in (401, 403), refused.text
            hidden = await closed.call(role, "POST", PATH, {**body, "to": f"{TOPIC}-none"})
            assert hidden.status_code == refused.status_code
        for role, kept in (("cons", 2), ("topicprod", 1)):
            await closed.done(role, "POST", PATH, {"dryRun": True})
            progress = await result(closed, role)
            assert (progress["matched"], progress["skipped"]) == (2, {"no_right": kept})
        await closed.done("ta", "POST", PATH, {"dryRun": True})
        assert (await result(closed, "ta"))["skipped"] == {}


async def test_a_closed_broker_needs_credentials_of_its_own() -> None:
    async with closed_rest(transactions=True) as closed:
        await buried(closed)
        refused = await closed.call(SUPER, "POST", PATH, {})
        assert refused.status_code == 412
        assert "brokerClientAuthenticationPlugin" in reason_of(refused)


@pytest.mark.timeout(300)
async def test_a_closed_broker_moves_letters_with_its_own_credentials(tmp_path: Path) -> None:
    own = tmp_path / "own.token"
    closed = ClosedStandalone(
        tmp_path,
        transactionCoordinatorEnabled="true",
        brokerClientAuthenticationPlugin="token",
        brokerClientAuthenticationParameters=f"file://{own}",
    )
    own.write_text(closed.token(ADMIN))
    name = "persistent://public/default/orders"
    path = "/admin/v2/persistent/public/default/orders-DLQ/subscription/dlq/redrive"
    headers = {"authorization": f"Bearer {closed.token(ADMIN)}"}
    with closed.process as process:
        try:
            async with (
                Client(process.service_url, auth=Token(closed.token(ADMIN))) as client,
                httpx.AsyncClient(
                    base_url=process.http_url, headers=headers, timeout=PATIENCE_S
                ) as admin,
                client.consumer(name, "check", type=SubscriptionType.SHARED) as check,
            ):
                async with client.producer(f"{name}-DLQ") as dead:
                    await dead.send(b"x", properties={"REAL_TOPIC": name})
                (await admin.post(path, json={})).raise_for_status()
                message = await check.receive(PATIENCE_S)
                assert (message.data, dict(message.properties)) == (b"x", {"REDRIVES": "1"})
                async with asyncio.timeout(PATIENCE_S):
                    while True:
                        progress = (await admin.get(path)).json()
                        if progress["state"] != "running":
                            break
                        await asyncio.sleep(POLL_S)
                assert (progress["state"], progress["moved"]) == ("finished", 1), progress
        finally:
            closed.close()
