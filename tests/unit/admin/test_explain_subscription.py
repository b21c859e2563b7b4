"""Each reason why a subscription delivers nothing: its code, the culprit, and the next step."""

import asyncio
from typing import cast

import pytest

from magnetar.broker.subscription.spec import SubType
from magnetar.core.clock import SystemClock
from magnetar.documents.explain import utc
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire.events import SendRun

from .explained import Client, attach, client_of, explain, first, follow
from .support import Admin, Peer, append, entry

CAP = "maxUnackedMessagesOnConsumer"


async def test_no_consumer(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/a/subscription/s")
    await admin.publish([b"1", b"2"])
    found = await first(admin, "s")
    assert found.code == "no_consumer"
    assert found.evidence["backlog"] == 2
    assert "pulsar-client consume -s s" in found.next_step.command
    await attach(admin, "s")
    assert (await first(admin, "s")).code != "no_consumer"


async def test_no_permits_names_the_consumer_and_since_when(admin: Admin) -> None:
    consumer = await attach(admin, "s", permits=1, name="slow")
    await admin.publish([b"1", b"2", b"3"])
    found = await first(admin, "s")
    assert found.code == "no_permits"
    assert "slow" in found.summary
    assert found.since is not None
    (evidence,) = cast("list[dict[str, object]]", found.evidence["consumers"])
    assert evidence["consumer"] == "slow"
    assert evidence["permits"] == 0
    topic = await admin.topic()
    topic.subscriptions["s"].flow(consumer, 10)
    assert (await first(admin, "s")).code == "in_flight"


async def test_unacked_cap_of_a_consumer_and_its_override(admin: Admin) -> None:
    await admin.done("POST", f"~/namespaces/t1/n1/{CAP.replace('On', 'Per')}", 500)
    await admin.topic()
    await admin.done("POST", f"~/persistent/t1/n1/a/{CAP}", 2)
    await attach(admin, "s", name="hoarder")
    await admin.publish([b"1", b"2", b"3"])
    answer = await explain(admin, "s")
    found = answer.findings[0]
    assert found.code == "unacked_cap_consumer"
    assert "hoarder" in found.summary
    assert found.evidence["cap"] == 2
    assert found.evidence["level"] == "topic"
    assert found.since is not None
    hidden = next(each for each in answer.findings if each.code == "policy_overridden")
    assert hidden.evidence["namespace_value"] == "500"
    await follow(admin, found)
    assert (await first(admin, "s")).code == "in_flight"


async def test_unacked_cap_of_the_subscription(admin: Admin) -> None:
    await admin.topic()
    await admin.done("POST", "~/persistent/t1/n1/a/maxUnackedMessagesOnSubscription", 2)
    await attach(admin, "s", name="hoarder")
    await admin.publish([b"1", b"2", b"3"])
    found = await first(admin, "s")
    assert found.code == "unacked_cap_subscription"
    assert found.evidence["most_at"] == "hoarder"
    await follow(admin, found)
    assert (await first(admin, "s")).code == "in_flight"


async def test_a_connection_that_does_not_drain(admin: Admin) -> None:
    peer = Client()
    peer.writable = False
    await attach(admin, "s", name="stuck", peer=peer)
    await admin.publish([b"1"])
    found = await first(admin, "s")
    assert found.code == "slow_connection"
    assert "stuck" in found.summary


async def test_dispatch_rate_names_its_level(admin: Admin) -> None:
    rate = {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 3_600}
    await admin.done("POST", "~/namespaces/t1/n1/dispatchRate", rate)
    consumer = await attach(admin, "s")
    await admin.publish([b"1", b"2", b"3"])
    found = await first(admin, "s")
    assert found.code == "rate_limited"
    assert found.evidence["policy"] == "dispatch_rate"
    assert found.evidence["level"] == "namespace"
    assert "namespaces remove-dispatch-rate t1/n1" in found.next_step.command
    await follow(admin, found)
    await client_of(consumer).got(3)
    assert (await first(admin, "s")).code == "in_flight"


async def test_a_cap_and_a_rate_at_once_are_both_named(admin: Admin) -> None:
    await admin.topic()
    rate = {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 3_600}
    await admin.done("POST", "~/persistent/t1/n1/a/dispatchRate", rate)
    consumer = await attach(admin, "s")
    await admin.publish([b"1", b"2", b"3"])
    await client_of(consumer).got(1)
    await admin.done("POST", f"~/persistent/t1/n1/a/{CAP}", 1)
    answer = await explain(admin, "s")
    assert [each.code for each in answer.findings[:2]] == ["unacked_cap_consumer", "rate_limited"]
    await follow(admin, answer.findings[0])
    found = await first(admin, "s")
    assert found.code == "rate_limited"
    await follow(admin, found)
    await client_of(consumer).got(2)
    assert (await first(admin, "s")).code == "unacked_cap_consumer"


async def test_in_flight_names_the_holder(admin: Admin) -> None:
    consumer = await attach(admin, "s", name="holder")
    (position,) = await admin.publish([b"1"])
    found = await first(admin, "s")
    assert found.code == "in_flight"
    assert found.evidence["oldest_unacknowledged"] == str(position)
    await follow(admin, found)
    assert client_of(consumer).closed_consumers == [7]
    other = await attach(admin, "s", name="other")
    await client_of(other).got(1)


async def test_an_exclusive_consumer_holds_what_it_has_not_acknowledged(admin: Admin) -> None:
    await attach(admin, "s", SubType.Exclusive, name="only")
    await admin.publish([b"1", b"2"])
    found = await first(admin, "s")
    assert found.code == "in_flight"
    assert "only has not acknowledged 2" in found.summary


async def test_terminated_and_drained(admin: Admin) -> None:
    consumer = await attach(admin, "s")
    (position,) = await admin.publish([b"1"])
    topic = await admin.topic()
    topic.subscriptions["s"].ack_one(consumer, *position)
    await topic.terminate()
    found = await first(admin, "s")
    assert found.code == "terminated"
    assert found.evidence["terminated_at"] == str(position)


async def test_caught_up(admin: Admin) -> None:
    consumer = await attach(admin, "s")
    (position,) = await admin.publish([b"1"])
    topic = await admin.topic()
    topic.subscriptions["s"].ack_one(consumer, *position)
    assert (await first(admin, "s")).code == "caught_up"


async def test_created_behind_the_messages(admin: Admin) -> None:
    await admin.publish([b"1", b"2"])
    await admin.done("PUT", "~/persistent/t1/n1/a/subscription/s")
    found = await first(admin, "s")
    assert found.code == "wrong_initial_position"
    assert found.evidence["stored_entries_before"] == 2
    assert found.since is not None
    await follow(admin, found)
    await client_of(await attach(admin, "s")).got(2)


async def test_suspended_topic_is_moving(admin: Admin) -> None:
    await attach(admin, "s")
    topic = await admin.topic()
    topic.suspend()
    assert (await first(admin, "s")).code == "topic_moving"
    topic.resume()
    assert (await first(admin, "s")).code == "caught_up"


async def test_a_failover_subscription_hands_over(admin: Admin) -> None:
    await attach(admin, "s", SubType.Failover, name="a")
    await admin.publish([b"1"])
    assert (await first(admin, "s")).code == "switching_consumer"


async def test_messages_of_a_batch_share_an_entry(admin: Admin) -> None:
    await attach(admin, "s")
    topic = await admin.topic()
    position = await append(topic, entry(b"x", num_messages_in_batch=3))
    answer = await explain(admin, "s", f"{position}:2")
    assert answer.message_id == f"{position}:2"
    refused = await admin.call(
        "GET", f"~/persistent/t1/n1/a/subscription/s/explain?messageId={position}:3"
    )
    assert refused.status_code == 412
    assert "indexes count from 0" in refused.text


async def test_a_wrong_message_id_names_its_form(admin: Admin) -> None:
    await attach(admin, "s")
    for text in ("x", "1", "1:2:3:4:5", "-1:0", "1:"):
        refused = await admin.call(
            "GET", f"~/persistent/t1/n1/a/subscription/s/explain?messageId={text}"
        )
        assert refused.status_code == 412
        assert "ledger:entry" in refused.text


async def test_missing_topics_and_subscriptions(admin: Admin) -> None:
    missing = await admin.call("GET", "~/persistent/t1/n1/none/subscription/s/explain")
    assert missing.status_code == 404
    await admin.topic()
    missing = await admin.call("GET", "~/persistent/t1/n1/a/subscription/s/explain")
    assert missing.status_code == 404
    plain = await admin.call("GET", "~/non-persistent/t1/n1/a/subscription/s/explain")
    assert plain.status_code == 405


async def test_a_partitioned_topic_has_the_answers_of_its_partitions(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/p/partitions", 2)
    await attach(admin, "s", local="p-partition-0")
    await admin.done("PUT", "~/persistent/t1/n1/p-partition-1/subscription/s")
    await admin.publish([b"1"], "p-partition-1")
    answer = await explain(admin, "s", local="p")
    assert [each.code for each in answer.findings] == ["no_consumer", "caught_up"]
    assert answer.findings[0].partition.endswith("p-partition-1")
    assert len(answer.partitions) == 2
    refused = await admin.call("GET", "~/persistent/t1/n1/p/subscription/s/explain?messageId=1:0")
    assert refused.status_code == 412
    assert "partition" in refused.text


async def test_delayed_messages_say_until_when(admin: Admin) -> None:
    consumer = await attach(admin, "s")
    topic, producer = await admin.topic(), await admin.producer()
    at_ms = admin.service.clock.now_ms() + 3_600_000
    data = entry(b"late", 0, deliver_at_time=at_ms)
    run = SendRun(producer.producer_id, [0], [0], [1], [data], len(data), None, (at_ms,), (0,))
    gate = topic.gate_of(run)
    assert gate is not None
    assert isinstance(producer.sink, Peer)
    gate.publish(producer, run)
    async with asyncio.timeout(20):
        await producer.sink.receipted.wait()
    position = topic.managed_ledger.last_confirmed
    for found in (await first(admin, "s"), await first(admin, "s", position)):
        assert found.code == "delayed_until"
        assert utc(at_ms) in found.evidence.values()
    assert not client_of(consumer).delivered
    await follow(admin, found)
    await client_of(consumer).got(1)
    assert (await first(admin, "s")).code == "in_flight"


class SteppedClock(SystemClock):
    """Both clocks, advanced by a number of seconds."""

    ahead_s = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_s * 1000

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


async def test_a_stall_is_explained_counted_and_ended_by_the_next_step(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted mistake: an append wakes no dispatcher. Only a stall of the broker's own code
    leads to this answer, so a test has to plant one."""
    clock = SteppedClock()
    monkeypatch.setattr(admin.service.clock, "_clock", clock)
    with monkeypatch.context() as planted:
        planted.setattr(ManagedLedger, "add_append_listener", lambda *_: None)
        consumer = await attach(admin, "s")
        await admin.publish([b"1", b"2"])
        found = await first(admin, "s")
        assert found.code == "flowing", "it is too early to say more"
        clock.ahead_s = 5
        found = await first(admin, "s")
        assert (found.code, found.evidence["readable"]) == ("dispatch_stall", 2)
        assert client_of(consumer).delivered == []
        for stalls in (0, 1, 1):  # a suspect at first, then counted once
            admin.service.diagnosis.stalls.check(await admin.topic())
            page = (await admin.http.get("/metrics")).text
            assert f'\nmagnetar_dispatch_stalls_total{{cluster="standalone"}} {stalls}\n' in page
            assert f'stalled_subscriptions{{cluster="standalone"}} {stalls}\n' in page
    await follow(admin, found)
    again = await attach(admin, "s")
    await client_of(again).got(2)
    assert (await first(admin, "s")).code == "in_flight"
