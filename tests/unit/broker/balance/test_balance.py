"""The balancer over a metadata store: one leader, orders carried out, and a log of why."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from magnetar.broker.balance.decision_log import LOG_ROUNDS, DecisionLog
from magnetar.broker.balance.model import (
    LEADER_KEY,
    LOG_PREFIX,
    ORDERS_PREFIX,
    REPORTS_PREFIX,
    Move,
    Nothing,
    Order,
    Round,
    decode_report,
    order_key,
)
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.catalog.resources import Resources
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import NamespaceName
from magnetar.metadata.records import encode
from magnetar.metadata.store import BadRevision, Check
from magnetar.settings.balance import BalanceSettings

from .cluster import SETTINGS, Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    await made.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for what the store shows."""
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - the store is asked
            await asyncio.sleep(0.01)


def leaders(cluster: Cluster) -> list[str]:
    return [name for name, each in cluster.brokers.items() if each.balance.leadership.leading]


async def test_one_leads_and_another_follows_when_it_goes(cluster: Cluster) -> None:
    for name in ("b0", "b1", "b2"):
        await cluster.add(name, interval_s=60.0)
    await cluster.until(lambda: len(leaders(cluster)) == 1)
    first = leaders(cluster)[0]
    for each in cluster.brokers.values():
        view = await each.balance.leadership.read()
        assert view is not None
        assert (view.broker_id, view.service_url) == (first, f"http://{first}:8080")
    await cluster.brokers[first].stop()
    await cluster.until(lambda: len(leaders(cluster)) == 1)
    assert leaders(cluster) != [first]


async def test_a_dead_leaders_lease_ends_and_its_writes_are_refused(cluster: Cluster) -> None:
    first = await cluster.add("b0", interval_s=60.0)
    await cluster.until(lambda: leaders(cluster) == ["b0"])
    check = first.balance.leadership.check()
    await cluster.add("b1", interval_s=60.0)
    await first.die()
    await cluster.until(lambda: leaders(cluster) == ["b1"])
    with pytest.raises(BadRevision):
        await cluster.store.transact([check])
    assert not first.balance.leadership.leading
    with pytest.raises(ServiceNotReady):
        first.balance.leadership.check()


async def test_the_leader_of_a_lost_key_stands_again(cluster: Cluster) -> None:
    await cluster.add("b0", interval_s=60.0)
    await cluster.until(lambda: leaders(cluster) == ["b0"])
    before = cluster.brokers["b0"].balance.leadership.check()
    await cluster.store.delete(LEADER_KEY)

    def again() -> bool:
        leadership = cluster.brokers["b0"].balance.leadership
        return leadership.leading and leadership.check() != before

    await cluster.until(again)


async def test_bundles_move_off_a_busy_broker_and_the_log_says_why(cluster: Cluster) -> None:
    for number in range(8):
        name = f"t/n/0x{number:08x}_0x{number + 1:08x}"
        cluster.owners[name], cluster.loads[name] = "b0", 0.08
    await cluster.add("b0")
    await cluster.add("b1")
    await cluster.until(lambda: len(cluster.done) >= 3)
    await cluster.until(lambda: cluster.brokers["b1"].load() >= 0.24)
    lead = leaders(cluster)[0]
    rounds = await cluster.brokers[lead].balance.balancer.decisions.rounds()
    moves = [each for made in rounds for each in made.decisions if isinstance(each, Move)]
    assert {(move.source, move.target) for move in moves} == {("b0", "b1")}
    assert "of a core" in moves[0].why
    assert moves[0].numbers["source_load"] > moves[0].numbers["target_load"]
    assert len({bundle for _, bundle, _ in cluster.done}) == len(cluster.done), "each moved once"

    async def no_orders() -> bool:
        return not await cluster.store.list(ORDERS_PREFIX)

    await until(no_orders)
    rounds = await cluster.brokers[lead].balance.balancer.decisions.rounds()
    assert any("done" in text for made in rounds for text in made.results)


async def test_a_hot_bundle_is_split_by_its_owner(cluster: Cluster) -> None:
    settings = BalanceSettings(
        shedding_rounds=1,
        split_rounds=1,
        load_report_interval_min_ms=100,
        bundle_message_rate_max=1_000,
    )
    resources = Resources(cluster.store)
    await resources.create_tenant("t", {})
    await resources.create_namespace(NamespaceName("t", "n"), default_policies("c"))
    name = "t/n/0x00000000_0x40000000"
    cluster.owners[name], cluster.loads[name] = "b1", 0.08
    await cluster.add("b0", settings)
    await cluster.add("b1", settings)
    await cluster.until(lambda: bool(cluster.done))
    assert cluster.done[0] == ("split", name, "range_equally_divide")


async def test_an_order_that_fails_is_reported_and_withdrawn(cluster: Cluster) -> None:
    for number in range(4):
        cluster.owners[f"t/n/{number}"], cluster.loads[f"t/n/{number}"] = "b0", 0.1
    (await cluster.add("b0")).refuses = True
    await cluster.add("b1")
    log = DecisionLog(cluster.store)

    async def told() -> bool:
        return any("not now" in text for made in await log.rounds() for text in made.results)

    await until(told)
    assert not cluster.done


async def test_orders_from_before_the_start_are_not_carried_out(cluster: Cluster) -> None:
    name = "t/n/0x00000000_0x40000000"
    cluster.owners[name] = "b0"
    order = Order(kind="unload", bundle=name, issued_ms=1, destination="b1")
    await cluster.store.put(order_key("b0", name), encode(order))
    await cluster.add("b0", interval_s=60.0)

    async def answered() -> bool:
        record = await cluster.store.get(order_key("b0", name))
        return record is None or b"earlier process" in record.value

    await until(answered)
    assert not cluster.done


async def test_orders_for_the_dead_are_removed(cluster: Cluster) -> None:
    order = Order(kind="unload", bundle="t/n/x", issued_ms=1, destination="b1")
    await cluster.store.put(order_key("gone", "t/n/x"), encode(order))
    await cluster.store.put(order_key("gone", "t/n/y"), b"no order")
    await cluster.add("b0")

    async def no_orders() -> bool:
        return not await cluster.store.list(ORDERS_PREFIX)

    await until(no_orders)


async def test_a_report_is_written_when_it_changed_and_goes_with_the_broker(
    cluster: Cluster,
) -> None:
    broker = await cluster.add("b0", interval_s=60.0)
    key = REPORTS_PREFIX + "b0"

    async def written() -> bool:
        return await cluster.store.get(key) is not None

    await until(written)
    record = await cluster.store.get(key)
    assert record is not None
    for _ in range(3):
        await broker.balance.reporter.report()
    same = await cluster.store.get(key)
    assert same is not None
    assert same.revision == record.revision, "nothing changed"
    cluster.owners["t/n/x"], cluster.loads["t/n/x"] = "b0", 0.3
    await broker.balance.reporter.report()
    changed = await cluster.store.get(key)
    assert changed is not None
    assert changed.revision > record.revision
    await broker.stop()
    assert await cluster.store.get(key) is None


async def test_reports_continue_after_the_process_could_not_read_its_figures(
    cluster: Cluster,
) -> None:
    broker = await cluster.add("b0")
    broker.process.failures_left = 2
    await cluster.until(lambda: broker.process.failures_left == 0)
    cluster.owners["t/n/x"], cluster.loads["t/n/x"] = "b0", 0.3

    async def reported() -> bool:
        record = await cluster.store.get(REPORTS_PREFIX + "b0")
        return record is not None and decode_report("", record.value).cpu == 0.3

    await until(reported)


async def test_balancing_continues_after_a_record_that_makes_no_sense(cluster: Cluster) -> None:
    """One hot bundle is of a namespace without bundles, which nothing of ours writes."""
    settings = BalanceSettings(
        shedding_rounds=1,
        split_rounds=1,
        load_report_interval_min_ms=100,
        bundle_message_rate_max=1_000,
    )
    resources = Resources(cluster.store)
    await resources.create_tenant("t", {})
    await resources.create_namespace(NamespaceName("t", "n"), {})
    name = "t/n/0x00000000_0x40000000"
    cluster.owners[name], cluster.loads[name] = "b0", 0.08
    broker = await cluster.add("b0", settings)
    await cluster.until(lambda: bool(broker.balance.reports.all()))
    with pytest.raises(KeyError):
        await broker.balance.balancer.round()
    await resources.update_policies(NamespaceName("t", "n"), lambda _: default_policies("c"))
    await cluster.until(lambda: bool(cluster.done))
    assert cluster.done[0] == ("split", name, "range_equally_divide")


async def test_the_log_is_a_ring_and_repeats_nothing(cluster: Cluster) -> None:
    log = DecisionLog(cluster.store)
    await log.begin()
    check = Check("/nothing", 0)
    for number in range(LOG_ROUNDS + 10):
        made = Round(
            sequence=0, at_ms=number, leader="b0", loads={}, decisions=(Nothing(f"{number}"),)
        )
        assert await log.append(made, check)
        assert not await log.append(made, check)
    assert len(await cluster.store.list(LOG_PREFIX)) == LOG_ROUNDS
    rounds = await log.rounds()
    assert [each.at_ms for each in rounds] == list(range(10, LOG_ROUNDS + 10))
    other = DecisionLog(cluster.store)
    await other.begin()
    await other.append(
        Round(sequence=0, at_ms=9, leader="b1", loads={}, decisions=(Nothing("x"),)), check
    )
    assert (await other.rounds())[-1].sequence == LOG_ROUNDS + 11


async def test_a_dry_run_says_what_would_be_done_and_does_nothing(cluster: Cluster) -> None:
    for number in range(4):
        cluster.owners[f"t/n/{number}"], cluster.loads[f"t/n/{number}"] = "b0", 0.15
    quiet = BalanceSettings(load_balancer=False, load_report_interval_min_ms=100)
    await cluster.add("b0", quiet)
    second = await cluster.add("b1", quiet)
    await cluster.until(lambda: len(second.balance.reports.all()) == 2)
    decisions = await second.balance.balancer.dry_run()
    assert any(isinstance(each, Move) and each.target == "b1" for each in decisions)
    assert not cluster.done
    assert not await cluster.store.list(LOG_PREFIX)
    assert SETTINGS.load_balancer
