"""How far subscriptions are behind, over all brokers: what autoscalers go by."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rest_cluster import RestCluster

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.compaction.records import CompactionRequest, request_key
from magnetar.core.names import parse_topic
from magnetar.documents.backlog import (
    TIME_TO_DRAIN_S_MAX,
    WORST_SHOWN_MAX,
    BrokerDrain,
    SubscriptionDrain,
    time_to_drain_s,
)
from magnetar.documents.due_jobs import DueJobs, DueTopic
from magnetar.metadata.records import encode

RATES = st.floats(0, 1e9)


@given(st.integers(1, 10**12), RATES, RATES)
def test_a_backlog_drains_in_the_predicted_time(backlog: int, into: float, out: float) -> None:
    told = time_to_drain_s(backlog, into, out)
    assert 0 < told <= TIME_TO_DRAIN_S_MAX
    if told < TIME_TO_DRAIN_S_MAX:
        assert backlog + told * into == pytest.approx(told * out, rel=1e-3)


def test_nothing_takes_no_time_whatever_comes_in() -> None:
    assert time_to_drain_s(0, 100.0, 0.0) == 0.0


@given(st.lists(st.integers(1, 10**6), max_size=60))
def test_the_worst_of_all_are_kept(sizes: list[int]) -> None:
    whole = BrokerDrain(["none"])
    for number, size in enumerate(sizes):
        one = SubscriptionDrain(size, 1, f"t{number}", "s", 0.0, 0.0, wanted=True)
        whole = whole.plus(BrokerDrain([f"b{number}"], backlog_bytes=size, worst=[one]))
    assert whole.backlog_bytes == sum(sizes)
    assert [one.backlog_bytes for one in whole.worst] == sorted(sizes)[::-1][:WORST_SHOWN_MAX]


@pytest.fixture
async def cluster() -> AsyncIterator[RestCluster]:
    made = RestCluster()
    await made.start(2)
    yield made
    await made.stop()


async def appended(topic: PersistentTopic, data: bytes) -> None:
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    topic.managed_ledger.append([data], lambda *told: done.set_result(told))
    await asyncio.wait_for(done, 20)


async def test_any_broker_answers_for_all(cluster: RestCluster) -> None:
    first, second = cluster.members
    await first.done("PUT", "~/persistent/public/default/p/partitions", 8)
    await first.done("PUT", "~/persistent/public/default/p/subscription/behind")
    for number in range(8):
        name = parse_topic(f"persistent://public/default/p-partition-{number}")
        topic = await cluster.owner(name).service.topics.get_or_open(name, create=False)
        assert isinstance(topic, PersistentTopic)
        for _ in range(number):
            await appended(topic, b"x" * 100)
    answers = [(await each.done("GET", "~/magnetar/drain")).json() for each in (first, second)]
    for found in answers:
        assert found["topics"] == 8
        assert found["subscriptionsBehind"] == 7
        assert found["backlogEntries"] == sum(range(8))
        assert [one["backlogEntries"] for one in found["worst"]] == list(range(7, 0, -1))
        # Nobody is connected: there is a backlog, and no broker could do anything about it.
        assert found["wantedBytes"] == 0
        assert found["timeToDrainSeconds"] == 0.0
    assert sorted(answers[0]["brokers"]) == sorted(answers[1]["brokers"])
    assert len(answers[0]["brokers"]) == 2


async def test_any_broker_names_the_topics_that_wait_for_a_job(cluster: RestCluster) -> None:
    first, second = cluster.members
    name = parse_topic("persistent://public/default/large")
    await first.done("PUT", "~/persistent/public/default/large")
    owner = cluster.owner(name)
    await cluster.store.put(request_key(ledger_name(name)), encode(CompactionRequest(1)))
    due = DueTopic(str(name), "too large", 1 << 40)
    owner.service.compactor.left[str(name)] = due
    answers = [(await each.done("GET", "~/magnetar/jobs")).json() for each in (first, second)]
    for found in answers:
        assert msgspec.convert(found, DueJobs) == DueJobs(compact=(due,))
