"""Topics whose owner changes, and changes back, while they are being opened."""

import asyncio

import pytest
from tests.integration.cluster.test_takeover import NAME, attached, lose, publish, read_all
from tests.support.brokers import TOPIC, WITHIN_S, bundle_of, find, running_cluster

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.core.errors import MagnetarError
from magnetar.managed_ledger.record import cursors_prefix
from magnetar.metadata.store import Record


async def test_a_topic_is_not_served_as_it_was_before_another_owned_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner read it, lost it, and got it back before it had been opened: what the other owner
    took meanwhile would not be delivered to anybody until something is published."""
    async with running_cluster() as cluster:
        owner = await find(cluster)
        client = await attached(owner)
        await publish(client, await client.producer(TOPIC), b"a")
        await client.close()
        await owner.service.topics.unload(NAME)

        paused, go_on = asyncio.Event(), asyncio.Event()
        read = owner.view.list

        async def listed(prefix: str) -> list[Record]:
            if prefix == cursors_prefix(ledger_name(NAME)):
                paused.set()
                await go_on.wait()
            return await read(prefix)

        monkeypatch.setattr(owner.view, "list", listed)
        opening = asyncio.ensure_future(owner.service.topics.get_or_open(NAME, create=False))
        await paused.wait()
        new = await lose(cluster, owner)
        client = await new.client()
        await publish(client, await client.producer(TOPIC), b"b")
        owner.go_on()
        async with asyncio.timeout(WITHIN_S):
            while owner.ownership.owns(NAME) or not owner.ownership.serving:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await cluster.everybody_sees(2)
            await new.ownership.unload(bundle_of(new), owner.broker_id)
            while not owner.ownership.owns(NAME):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        go_on.set()
        await asyncio.wait([opening])
        assert isinstance(opening.exception(), MagnetarError | None)
        assert await read_all(owner) == [b"a", b"b"]
