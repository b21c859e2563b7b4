"""Listeners of a namespace: what this broker announces, and what other brokers create."""

import asyncio

import pytest
from tests.unit.ledger.stage import NAME, Stage, turns

from magnetar.broker.topic.news import TopicNews
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.record import MANAGED_LEDGERS_PREFIX

NAMESPACE = NamespaceName("public", "default")
TOPIC = parse_topic("persistent://public/default/topic")
IN_MEMORY = parse_topic("non-persistent://public/default/topic")
WITHIN_S = 20.0


class Heard:
    """The changes that a listener was notified of."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, bool]] = []
        self._more = asyncio.Event()

    def __call__(self, topic: TopicName, exists: bool) -> None:
        self.changes.append((str(topic), exists))
        self._more.set()

    async def until(self, topic: TopicName, exists: bool) -> None:
        """Waits for this change; others, and repeated ones, may come before it."""
        async with asyncio.timeout(WITHIN_S):
            while (str(topic), exists) not in self.changes:
                self._more.clear()
                await self._more.wait()


async def test_a_broker_without_a_cluster_announces_its_own_topics() -> None:
    tasks = TaskSet("test")
    news, heard, elsewhere = TopicNews(tasks), Heard(), Heard()
    news.add(NAMESPACE, heard)
    news.add(NamespaceName("public", "other"), elsewhere)
    assert (len(news), len(tasks)) == (2, 0)
    for exists in (True, False):
        news.announce(TOPIC, exists=exists)
        news.announce(IN_MEMORY, exists=exists)
    expected = [(str(each), exists) for exists in (True, False) for each in (TOPIC, IN_MEMORY)]
    assert heard.changes == expected
    assert elsewhere.changes == []
    news.remove(NAMESPACE, heard)
    news.announce(TOPIC, exists=True)
    assert (heard.changes, len(news)) == (expected, 1)


async def test_in_a_cluster_the_store_announces_the_topics_of_all_brokers() -> None:
    stage, tasks = Stage(), TaskSet("test")
    news, first, second = TopicNews(tasks, stage.store), Heard(), Heard()
    news.add(NAMESPACE, first)
    news.add(NAMESPACE, second)
    assert len(tasks) == 1, "one task follows a namespace for all of its listeners"
    news.announce(TOPIC, exists=True)  # the store will
    news.announce(IN_MEMORY, exists=True)  # it has no record
    assert first.changes == [(str(IN_MEMORY), True)]
    factory = stage.factory()
    await factory.open(NAME)
    for heard in (first, second):
        assert heard.changes[0] == (str(IN_MEMORY), True)
        await heard.until(TOPIC, True)
    news.remove(NAMESPACE, second)
    await factory.delete(NAME)
    await first.until(TOPIC, False)
    assert (str(TOPIC), False) not in second.changes
    news.remove(NAMESPACE, first)
    await turns()
    assert (len(news), len(tasks)) == (0, 0)
    await tasks.stop()


async def test_a_record_that_cannot_be_read_hides_no_other_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage, tasks = Stage(), TaskSet("test")
    damaged = f"{MANAGED_LEDGERS_PREFIX}{NAMESPACE}/persistent/damaged"
    await stage.store.put(damaged, b"{")
    news, heard = TopicNews(tasks, stage.store), Heard()
    news.add(NAMESPACE, heard)
    factory = stage.factory()
    await factory.open(NAME)
    await heard.until(TOPIC, True)
    await stage.store.put(damaged, b"[]")
    await factory.delete(NAME)
    await heard.until(TOPIC, False)
    assert {topic for topic, _ in heard.changes} == {str(TOPIC)}
    assert "topic ignored" in caplog.messages
    await tasks.stop()
