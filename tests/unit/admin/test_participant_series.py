"""The series of topics and subscriptions that take part in transactions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.unit.admin.test_metrics import Series, scrape
from tests.unit.broker.topic.test_txn_acks import attached
from tests.unit.broker.topic.txn_stage import T1, T2, T3, TxnStage, txn_stage

from magnetar.admin.metrics.page import MetricsPage
from magnetar.broker.subscription.spec import SubType
from magnetar.transactions.model import Outcome


@asynccontextmanager
async def after_transactions(*, topic_metrics: bool) -> AsyncIterator[tuple[TxnStage, Series]]:
    """Two topics: of the first's transactions one is open, one committed, one aborted."""
    async with txn_stage(topic_metrics=topic_metrics) as t:
        topic, plain = await t.topic(), await t.topic("plain")
        acks = await attached(t, topic, SubType.Shared)
        await attached(t, plain, SubType.Shared)
        await t.sent(plain, None, "x")
        positions = await t.s.publish(topic, "a", "b")
        for txn in (T1, T2, T3):
            t.records.open(txn, topic)
            await t.sent(topic, txn, "y")
        for txn, position, outcome in zip(
            (T1, T2), positions, (Outcome.COMMIT, Outcome.ABORT), strict=True
        ):
            assert await acks.ack(txn, position) is None
            await acks.end(txn, outcome)
            await topic.transactions.end_transaction(txn, outcome)
        assert topic.transactional
        assert not plain.transactional
        yield t, await scrape(MetricsPage(t.s.service))


def transactional(series: Series) -> Series:
    return {key: value for key, value in series.items() if key[0].startswith("pulsar_txn_t")}


async def test_only_who_takes_part_has_series() -> None:
    async with after_transactions(topic_metrics=True) as (t, series):
        where = (
            f'cluster="{t.s.service.cluster}",namespace="public/default",'
            'topic="persistent://public/default/t"'
        )
        acks = f'{where},subscription="s",status="succeed"}}'
        assert transactional(series) == {
            ("pulsar_txn_tb_active_total", f"{where}}}"): 1,
            ("pulsar_txn_tb_committed_total", f"{where}}}"): 1,
            ("pulsar_txn_tb_aborted_total", f"{where}}}"): 1,
            ("pulsar_txn_tp_committed_count_total", acks): 1,
            ("pulsar_txn_tp_aborted_count_total", acks): 1,
        }


async def test_without_topic_metrics_they_are_sums_of_namespaces() -> None:
    async with after_transactions(topic_metrics=False) as (t, before):
        other = await t.topic("other")
        t.records.open(T1, other)
        await t.sent(other, T1, "z")
        series = await scrape(MetricsPage(t.s.service))
        where = f'cluster="{t.s.service.cluster}",namespace="public/default"'
        assert before["pulsar_txn_tb_active_total", f"{where}}}"] == 1
        assert transactional(series) == {
            ("pulsar_txn_tb_active_total", f"{where}}}"): 2,
            ("pulsar_txn_tb_committed_total", f"{where}}}"): 1,
            ("pulsar_txn_tb_aborted_total", f"{where}}}"): 1,
            ("pulsar_txn_tp_committed_count_total", f'{where},status="succeed"}}'): 1,
            ("pulsar_txn_tp_aborted_count_total", f'{where},status="succeed"}}'): 1,
        }
