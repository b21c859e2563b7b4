"""Look-ups: one answer in time, by the owner or by the broker that will take the bundle."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.support.held_store import puts
from tests.unit.broker.ownership.stage import (
    FIRST,
    NAMESPACE,
    QUARTERS,
    TTL_S,
    Broker,
    Stage,
    in_virtual_time,
    settle,
    settled,
    topic_in,
)

from magnetar.broker.ownership.location import HERE, Located, NotOwned
from magnetar.broker.ownership.lookup import (
    LOOKUP_HOLD_S,
    RECHECK_S,
    SUSPENDED_HOLD_S,
    TRUSTED_S,
)
from magnetar.broker.ownership.ownership import fewest_bundles
from magnetar.broker.ownership.records import (
    BrokerRecord,
    BrokerState,
    OwnershipRecord,
    Urls,
    broker_key,
    ownership_key,
)
from magnetar.broker.ownership.rings import namespace_key
from magnetar.core.errors import ServiceNotReady, TopicNotFound
from magnetar.core.names import parse_topic
from magnetar.metadata.records import encode

TOPIC = topic_in(FIRST)


async def took(doing: Coroutine[Any, Any, Any]) -> tuple[float, Any]:
    """Returns the duration, and the result or the error."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        result = await doing
    except ServiceNotReady as error:
        result = str(error)
    return round(loop.time() - began, 3), result


def located(broker: Broker, *, redirect: bool = False) -> Located:
    return Located(broker.ownership.brokers.own, redirect=redirect)


@in_virtual_time
async def test_the_owner_answers_for_itself_and_the_others_name_it() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        assert await one.ownership.locate(TOPIC, authoritative=False) == HERE
        for authoritative in (False, True):
            found = await other.ownership.locate(TOPIC, authoritative=authoritative)
            assert found == located(one)
        assert stage.connections == ["a"], "the second answer comes from the first probe"


@in_virtual_time
async def test_a_free_bundle_goes_to_the_broker_with_the_fewest_and_is_taken_there() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(*QUARTERS[1:3])
        await other.take(QUARTERS[3])
        assert await one.ownership.locate(TOPIC, authoritative=False) == located(
            other, redirect=True
        )
        assert "0x00000000_0x40000000" not in await stage.store.owners()
        assert await other.ownership.locate(TOPIC, authoritative=False) == HERE
        assert other.owned() == {FIRST, QUARTERS[3]}


@in_virtual_time
async def test_a_broker_that_is_asked_with_authority_takes_the_bundle_itself() -> None:
    async with Stage() as stage:
        one, _ = await stage.pair()
        await one.take(*QUARTERS[1:])
        assert await one.ownership.locate(TOPIC, authoritative=True) == HERE
        assert one.owned() == set(QUARTERS)


@pytest.mark.parametrize("address", ["refuses", "silent"])
@in_virtual_time
async def test_no_client_is_sent_to_a_broker_that_is_not_there(address: Any) -> None:
    async with Stage() as stage:
        one, _ = await stage.pair()
        third = await stage.broker("c")
        await one.take(*QUARTERS[1:3])
        await third.take(QUARTERS[3])
        stage.addresses["b"] = address
        assert await one.ownership.locate(TOPIC, authoritative=False) == located(
            third, redirect=True
        )
        assert set(stage.connections) == {"b", "c"}


@in_virtual_time
async def test_a_broker_that_drains_takes_nothing_new_and_is_given_nothing() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await other.take(*QUARTERS[1:])
        await one.ownership.brokers.set_state(BrokerState.DRAINING)
        await settle()
        for authoritative in (False, True):
            found = await one.ownership.locate(TOPIC, authoritative=authoritative)
            assert found == located(other, redirect=True)
        assert await other.ownership.locate(TOPIC, authoritative=False) == HERE
        await other.stop()
        seconds, answer = await took(
            one.ownership.locate(topic_in(QUARTERS[1]), authoritative=True)
        )
        assert seconds == LOOKUP_HOLD_S
        assert "has no owner yet, please retry" in answer
        assert one.owned() == set()


@in_virtual_time
async def test_a_missing_namespace_is_said_at_once() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        name = parse_topic("persistent://public/nosuch/t")
        with pytest.raises(TopicNotFound, match="Namespace not found: public/nosuch"):
            await one.ownership.locate(name, authoritative=False)


# -- owners that cannot be reached


@in_virtual_time
async def test_the_lease_of_an_owner_that_refuses_connections_is_ended_on_the_spot() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await other.take(FIRST)
        await other.die()
        stage.addresses["b"] = "refuses"
        seconds, found = await took(one.ownership.locate(TOPIC, authoritative=False))
        assert found == HERE
        assert seconds < TTL_S / 4
        assert await stage.store.get(broker_key(other.id)) is None
        assert one.owned() == {FIRST}


@in_virtual_time
async def test_an_owner_that_cannot_be_reached_keeps_its_lease_and_is_named_after_the_hold() -> (
    None
):
    """Clients may reach it; only the expiry of its lease decides."""
    async with Stage() as stage:
        one, other = await stage.pair()
        await other.take(FIRST)
        stage.addresses["b"] = "silent"
        seconds, found = await took(one.ownership.locate(TOPIC, authoritative=True))
        assert found == located(other)
        assert LOOKUP_HOLD_S <= seconds <= LOOKUP_HOLD_S + 1
        assert one.owned() == set()
        # From then on look-ups trust it for a while, so that not every one waits as long.
        seconds, found = await took(one.ownership.locate(TOPIC, authoritative=False))
        assert (seconds, found) == (0, located(other))
        await asyncio.sleep(TRUSTED_S)
        seconds, found = await took(one.ownership.locate(TOPIC, authoritative=False))
        assert seconds >= LOOKUP_HOLD_S
        assert found == located(other)


@in_virtual_time
async def test_a_broker_is_believed_under_one_lease_only() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await other.take(FIRST)
        stage.addresses["b"] = "silent"
        await one.ownership.locate(TOPIC, authoritative=False)
        await other.lose_lease()
        await asyncio.sleep(TTL_S)
        await other.take(FIRST)
        seconds, found = await took(one.ownership.locate(TOPIC, authoritative=False))
        assert seconds >= LOOKUP_HOLD_S
        assert found == located(other)


@in_virtual_time
async def test_a_broker_that_got_another_lease_after_its_own_was_ended_is_no_dead_one() -> None:
    """The address that it gives is wrong: its lease is all that says whether it lives."""
    async with Stage() as stage:
        one, other = await stage.pair()
        await other.take(FIRST)
        stage.addresses["b"] = "refuses"
        assert await one.ownership.locate(TOPIC, authoritative=False) == HERE
        await asyncio.sleep(TTL_S)
        await other.take(QUARTERS[1])
        stage.connections.clear()
        name = topic_in(QUARTERS[1])
        assert await one.ownership.locate(name, authoritative=False) == located(other)
        assert stage.connections == []
        assert await stage.store.get(broker_key(other.id)) is not None


@in_virtual_time
async def test_the_lease_of_a_successor_is_not_ended_for_its_former_process() -> None:
    """The registration changes between the refusal and the end of the lease."""
    async with Stage() as stage:
        one, other = await stage.pair()
        await other.take(FIRST)
        stage.addresses["b"] = "refuses"
        one.view.running.clear()
        await other.lose_lease()
        await asyncio.sleep(TTL_S / 2)
        asking = asyncio.ensure_future(one.ownership.locate(TOPIC, authoritative=False))
        await asyncio.sleep(1)
        assert await stage.store.get(broker_key(other.id)) is not None
        one.view.running.set()
        assert await asking == HERE


# -- bundles between owners


@in_virtual_time
async def test_a_look_up_of_a_bundle_that_moves_is_answered_when_it_has_its_new_owner() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(FIRST, other.id))
        await settle()
        asking = asyncio.ensure_future(one.ownership.locate(TOPIC, authoritative=True))
        await asyncio.sleep(3 * RECHECK_S + 0.1)
        assert not asking.done()
        one.topics.closing.set()
        await moving
        assert await settled(asking)
        assert asking.result() == located(other)


@in_virtual_time
async def test_a_look_up_is_held_no_longer_than_its_bound() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await stage.store.own(FIRST, OwnershipRecord("gone:8080", 99, 99))
        await settle()
        seconds, answer = await took(one.ownership.locate(TOPIC, authoritative=False))
        assert seconds == LOOKUP_HOLD_S
        assert answer == f"Bundle {FIRST} has no owner yet, please retry"


@in_virtual_time
async def test_a_record_of_a_former_process_is_not_that_of_its_successor() -> None:
    """The id is that of a living broker, the start is not."""
    async with Stage() as stage:
        one, other = await stage.pair()
        former = OwnershipRecord(other.id, other.record.start + 7, 99)
        await stage.store.own(FIRST, former)
        await settle()
        seconds, answer = await took(one.ownership.locate(TOPIC, authoritative=False))
        assert seconds == LOOKUP_HOLD_S
        assert "has no owner yet" in answer


@in_virtual_time
async def test_the_end_of_a_claim_is_news_for_all_who_wait() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await stage.store.own(FIRST, OwnershipRecord("gone:8080", 99, 99))
        await settle()
        asking = [
            asyncio.ensure_future(one.ownership.locate(TOPIC, authoritative=authoritative))
            for authoritative in (False, True, False)
        ]
        assert not await settled(asking[0])
        await stage.store.delete(ownership_key(FIRST))
        assert all([await settled(each) for each in asking])
        assert {each.result() for each in asking} == {HERE}


@in_virtual_time
async def test_a_new_owner_that_registers_is_news() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        owner = BrokerRecord("n:8080", 50, "n", 6650, Urls("pulsar://n", "http://n"), lease_id=7)
        await stage.store.own(FIRST, OwnershipRecord.of(owner))
        await settle()
        asking = asyncio.ensure_future(one.ownership.locate(TOPIC, authoritative=False))
        assert not await settled(asking)
        await stage.store.put(broker_key(owner.broker_id), encode(owner))
        assert await settled(asking)
        assert asking.result() == Located(owner)


@in_virtual_time
async def test_a_bundle_that_its_namespace_lost_is_not_searched_for_ever() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await stage.store.own(FIRST, OwnershipRecord("gone:8080", 99, 99))
        await settle()
        seconds, _ = await took(one.ownership.locate(TOPIC, authoritative=False))
        assert seconds == LOOKUP_HOLD_S
        await stage.store.delete(namespace_key(NAMESPACE))
        await settle()
        with pytest.raises(TopicNotFound):
            await one.ownership.locate(TOPIC, authoritative=False)


@in_virtual_time
async def test_many_who_look_up_one_bundle_share_one_search_and_one_claim() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        held = stage.store.hold(puts(ownership_key(FIRST)))
        asking = [
            asyncio.ensure_future(one.ownership.locate(TOPIC, authoritative=False))
            for _ in range(20)
        ]
        await held.reached.wait()
        asking[0].cancel()
        await settle()
        held.go.set()
        assert set(await asyncio.gather(*asking[1:])) == {HERE}
        assert asking[0].cancelled()


@in_virtual_time
async def test_look_ups_end_with_the_broker() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await stage.store.own(FIRST, OwnershipRecord("gone:8080", 99, 99))
        await settle()
        asking = asyncio.ensure_future(took(one.ownership.locate(TOPIC, authoritative=False)))
        await settle()
        await one.ownership.stop()
        assert (await asking)[1] == "The broker is shutting down, please retry"
        assert (await took(one.ownership.locate(TOPIC, authoritative=False)))[1] == (
            "The broker is shutting down, please retry"
        )


# -- a broker whose own lease is in doubt


@in_virtual_time
async def test_a_broker_without_its_lease_sends_look_ups_elsewhere_after_a_moment() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        one.view.renewing = False
        await asyncio.sleep(TTL_S)
        assert not one.ownership.serving
        assert not one.ownership.owns(TOPIC)
        seconds, answer = await took(one.ownership.locate(TOPIC, authoritative=True))
        assert SUSPENDED_HOLD_S <= seconds <= SUSPENDED_HOLD_S + RECHECK_S
        assert answer == "The broker has lost touch with the metadata store, please retry"
        with pytest.raises(ServiceNotReady, match="lost touch with the metadata store"):
            await one.ownership.require(TOPIC)


@in_virtual_time
async def test_a_lease_that_comes_back_is_news() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        one.view.renewing = False
        await asyncio.sleep(TTL_S - 0.3)
        one.view.leases[-1].keep(60)
        await asyncio.sleep(0.4)
        asking = asyncio.ensure_future(one.ownership.locate(TOPIC, authoritative=False))
        assert not await settled(asking)
        one.view.renewing = True
        await asyncio.sleep(0.3)
        assert asking.done()
        assert asking.result() == HERE
        assert one.topics.asked == [("suspend", None), ("resume", None)]


@in_virtual_time
async def test_a_store_that_is_away_for_a_moment_fails_no_look_up() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        one.view.cut_off = True
        asking = asyncio.ensure_future(one.ownership.locate(TOPIC, authoritative=False))
        assert not await settled(asking)
        one.view.cut_off = False
        assert await asking == HERE


# -- what a client that came here is answered


@in_virtual_time
async def test_a_topic_is_required_where_it_is_owned() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        await one.ownership.require(TOPIC)
        with pytest.raises(ServiceNotReady, match="not served by this instance:b:8080"):
            await other.ownership.require(TOPIC)


@in_virtual_time
async def test_a_bundle_that_was_just_handed_over_is_served_before_the_watch_tells() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        one.view.running.clear()
        await stage.store.own(FIRST, one.record)
        await one.ownership.require(TOPIC)
        assert one.owned() == {FIRST}


@in_virtual_time
async def test_rest_is_sent_to_the_owner_and_with_authority_to_the_one_that_is_to_take_it() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        await one.ownership.require_owned(TOPIC)
        with pytest.raises(NotOwned) as sent:
            await other.ownership.require_owned(TOPIC)
        assert (sent.value.broker.broker_id, sent.value.authoritative) == (one.id, False)
        assert (sent.value.http_status, sent.value.http_url) == (307, "http://a:8080")
        with pytest.raises(NotOwned) as sent:
            await one.ownership.require_owned(topic_in(QUARTERS[1]))
        assert (sent.value.broker.broker_id, sent.value.authoritative) == (other.id, True)
        await one.ownership.require_owned(topic_in(QUARTERS[1]), authoritative=True)
        assert one.owned() == set(QUARTERS[:2])


def test_the_fewest_bundles_first_then_this_broker_then_by_id() -> None:
    def chosen(owned: dict[str, int], own: str = "b", ids: str = "abc") -> str | None:
        brokers = [BrokerRecord(each, 1, each, 1, Urls("", "")) for each in ids]
        return fewest_bundles(FIRST, brokers, owned, own)

    assert chosen({}) == "b"
    assert chosen({}, "z") == "a"
    assert chosen({}, "z", "cb") == "b"
    assert chosen({"b": 1}) == "a"
    assert chosen({"a": 2, "b": 3, "c": 1}) == "c"
    assert chosen({"a": 1, "b": 1, "c": 1}) == "b"
    assert chosen({}, "b", "") is None
