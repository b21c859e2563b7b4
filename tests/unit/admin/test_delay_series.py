"""The series of topics with delayed messages."""

import pytest
from tests.unit.admin.test_metrics import Series, scrape
from tests.unit.broker.topic.delay_stage import delay_stage, delays_of, schedule_of
from tests.unit.ledger.stage import turns

from magnetar.admin.metrics.page import MetricsPage

OPERATIONS = "pulsar_delayed_message_index_bucket_op_count"


def of_delays(series: Series) -> Series:
    return {key: value for key, value in series.items() if "_delayed_message_index_" in key[0]}


@pytest.mark.parametrize("by_topic", [True, False])
async def test_topics_with_delayed_messages_have_series(by_topic: bool) -> None:
    async with delay_stage(delayed_delivery_memory_messages=1_000, topic_metrics=by_topic) as s:
        page = MetricsPage(s.s.service)
        plain, topic = await s.topic("plain"), await s.topic()
        await s.send(plain, ("now", 0))
        assert of_delays(await scrape(page)) == {}
        await s.send(topic, *((f"{n}", 60_000 + n * 10) for n in range(1_000)))
        await turns(300)
        await s.send(topic, ("last", 60_000))
        series = of_delays(await scrape(page))
        where = f'{{cluster="{s.s.service.cluster}",namespace="public/default"'
        where += f',topic="{topic.full_name}"}}' if by_topic else "}"
        done = where[:-1]
        size = series.pop(("pulsar_delayed_message_index_size_bytes", where.strip("{")))
        assert size == delays_of(topic).memory_bytes > 0
        where, done = where.strip("{"), done.strip("{")
        assert series == {
            ("pulsar_delayed_message_index_bucket_total", where): 2,
            ("pulsar_delayed_message_index_loaded", where): schedule_of(topic).loaded,
            (OPERATIONS, f'{done},state="all",type="create"}}'): 1,
            (OPERATIONS, f'{done},state="succeed",type="create"}}'): 1,
        }


async def test_reads_of_a_run_are_counted() -> None:
    async with delay_stage(delayed_delivery_memory_messages=1_000) as s:
        topic = await s.topic()
        await s.send(topic, *((f"{n}", 60_000 + n * 10) for n in range(1_000)))
        await turns(300)
        topic = await s.reopened(topic, crash=True)
        counts = {row[:2]: row[2] for row in delays_of(topic).operations.counts()}
        assert counts["succeed", "load"] == counts["all", "load"] == 2, "the head, the first page"
        assert ("failed", "load") not in counts
