"""Why one message is not delivered: what happened to it, who has it, what holds its key back."""

from typing import Any

from magnetar.broker.subscription.spec import KeySharedMode, KeySharedSpec, SubType
from magnetar.core.ids import Position
from magnetar.managed_ledger.managed_ledger import ManagedLedger

from .explained import attach, client_of, explain, first, follow
from .support import Admin, append, entry


async def keyed(admin: Admin, key: str, number: int = 0) -> Position:
    return await append(await admin.topic(), entry(b"x", number, partition_key=key))


async def test_already_acknowledged(admin: Admin) -> None:
    consumer = await attach(admin, "s")
    position, _ = await admin.publish([b"1", b"2"])
    topic = await admin.topic()
    topic.subscriptions["s"].ack_one(consumer, *position)
    found = await first(admin, "s", position)
    assert found.code == "already_acknowledged"
    assert found.evidence["producer"] == "p"
    await follow(admin, found)
    await client_of(await attach(admin, "s", name="d")).got(2)


async def test_created_behind_the_message(admin: Admin) -> None:
    early, _ = await admin.publish([b"1", b"2"])
    await admin.done("PUT", "~/persistent/t1/n1/a/subscription/s")
    consumer = await attach(admin, "s")
    (late,) = await admin.publish([b"3"])
    topic = await admin.topic()
    await client_of(consumer).got(1)
    topic.subscriptions["s"].ack_one(consumer, *late)
    found = await first(admin, "s", early)
    assert found.code == "wrong_initial_position"
    assert found.since is not None
    assert (await first(admin, "s", late)).code == "already_acknowledged"
    await follow(admin, found)
    await client_of(await attach(admin, "s", name="d")).got(3)


async def test_expired_by_the_ttl(admin: Admin) -> None:
    await admin.done("POST", "~/namespaces/t1/n1/messageTTL", 1)
    await attach(admin, "s", permits=0)
    (position,) = await admin.publish([b"1"])
    (await admin.topic()).subscriptions["s"].expire_up_to(position)
    found = await first(admin, "s", position)
    assert found.code == "expired"
    assert found.evidence["policy"] == "message_ttl"
    assert found.evidence["value"] == "1"
    assert found.since is not None


async def test_evicted_skipped_and_passed_by_a_seek(admin: Admin) -> None:
    await attach(admin, "s", permits=0)
    one, two, three = await admin.publish([b"1", b"2", b"3"])
    subscription = (await admin.topic()).subscriptions["s"]
    subscription.evict_up_to(one)
    await subscription.skip(1)
    await subscription.seek(Position(three.ledger_id, three.entry_id + 1))
    codes = [(await first(admin, "s", each)).code for each in (one, two, three)]
    assert codes == ["evicted_by_quota", "skipped", "skipped"]
    assert "seek" in (await first(admin, "s", three)).summary


async def test_in_flight_names_holder_time_and_redeliveries(admin: Admin) -> None:
    consumer = await attach(admin, "s", name="holder")
    (position,) = await admin.publish([b"1"])
    topic = await admin.topic()
    subscription = topic.subscriptions["s"]
    subscription.redeliver(consumer, [position])
    await client_of(consumer).got(2)
    found = await first(admin, "s", position)
    assert found.code == "in_flight"
    assert found.evidence["consumer"] == "holder"
    assert found.evidence["redelivery_count"] == 1
    assert found.evidence["delivered_before"] is not None
    await follow(admin, found)
    await client_of(await attach(admin, "s", name="d")).got(1)


async def test_the_time_of_a_delivery_is_known_to_a_rate_period(admin: Admin) -> None:
    consumer = await attach(admin, "s", SubType.Exclusive, name="holder")
    subscription = (await admin.topic()).subscriptions["s"]
    await admin.publish([b"1"])
    await client_of(consumer).got(1)
    subscription.update_rates()
    (position,) = await admin.publish([b"2"])
    await client_of(consumer).got(2)
    subscription.update_rates()
    found = await first(admin, "s", position)
    assert found.code == "in_flight"
    assert found.since == found.evidence["delivered_after"]
    assert found.evidence["delivered_before"] is not None


async def test_a_message_behind_others(admin: Admin) -> None:
    await attach(admin, "s", permits=1, name="slow")
    _, _, third = await admin.publish([b"1", b"2", b"3"])
    answer = await explain(admin, "s", third)
    assert [each.code for each in answer.findings] == ["no_permits", "after_cursor"]
    assert answer.findings[1].evidence["entries_ahead"] == 2


async def test_never_stored_and_trimmed(admin: Admin) -> None:
    await attach(admin, "s")
    (position,) = await admin.publish([b"1"])
    unknown = Position(position.ledger_id, position.entry_id + 9)
    assert (await first(admin, "s", unknown)).code == "not_stored"
    topic = await admin.topic()
    await topic.subscriptions["s"].clear_backlog()
    await admin.service.topics.unload(topic.name)
    await attach(admin, "s")
    await admin.publish([b"2"])
    ledger: ManagedLedger = (await admin.topic()).managed_ledger
    ledger.set_retention(0, 0)
    await ledger.trim()
    found = await first(admin, "s", position)
    assert found.code == "trimmed"
    assert found.evidence["policy"] == "retention"


async def test_encrypted_messages_say_with_which_keys(admin: Admin) -> None:
    await attach(admin, "s", name="keyless")
    keys = [{"key": "team", "value": b"secret"}]
    position = await append(await admin.topic(), entry(b"x", encryption_keys=keys))
    answer = await explain(admin, "s", position)
    assert [each.code for each in answer.findings] == ["in_flight", "encrypted"]
    assert answer.findings[1].evidence["keys"] == ["team"]


async def test_a_draining_hash_names_its_former_owner(admin: Admin) -> None:
    first_consumer = await attach(admin, "s", SubType.Key_Shared, name="old")
    positions = {key: await keyed(admin, key) for key in map(str, range(20))}
    await client_of(first_consumer).got(20)
    await attach(admin, "s", SubType.Key_Shared, name="new")
    dispatcher: Any = (await admin.topic()).subscriptions["s"].dispatcher
    moved = next(
        key for key, at in positions.items()
        if first_consumer.held(*at) & 0xFFFF in dispatcher.draining
    )  # fmt: skip
    position = await keyed(admin, moved, 99)
    for asked in (position, None):
        found = await first(admin, "s", asked)
        assert found.code == "hash_draining"
        assert found.evidence["holder"] == "old"
        assert found.evidence["owner"] == "new"
        assert found.evidence["held_entries"] == 1
        assert found.since is not None
    subscription = (await admin.topic()).subscriptions["s"]
    subscription.ack_one(first_consumer, *positions[moved])
    assert (await first(admin, "s", position)).code == "in_flight"


async def test_a_key_held_by_a_consumer_without_permits(admin: Admin) -> None:
    low = KeySharedSpec(KeySharedMode.STICKY, ((0, 32_767),))
    high = KeySharedSpec(KeySharedMode.STICKY, ((32_768, 65_535),))
    await attach(admin, "s", SubType.Key_Shared, name="low", key_shared=low, permits=0)
    await attach(admin, "s", SubType.Key_Shared, name="high", key_shared=high)
    dispatcher: Any = (await admin.topic()).subscriptions["s"].dispatcher
    selector = dispatcher.selector
    key = next(
        key for key in map(str, range(100)) if selector.hash_of(key.encode()) <= 32_767
    )  # fmt: skip
    position = await keyed(admin, key)
    for asked in (position, None):
        found = await first(admin, "s", asked)
        assert found.code == "key_held"
        assert found.evidence["owner"] == "low"
        assert found.evidence["permits"] == 0
        assert found.since is not None


async def test_a_consumer_without_a_name_has_its_address(admin: Admin) -> None:
    consumer = await attach(admin, "s", SubType.Key_Shared, permits=1, name="")
    delivered, waiting = await keyed(admin, "k"), await keyed(admin, "k", 1)
    found = await first(admin, "s", delivered)
    assert found.code == "in_flight"
    assert f"{consumer.sink.address}#7" in found.summary
    assert (await first(admin, "s", waiting)).code == "key_held"


async def test_a_key_without_an_owner(admin: Admin) -> None:
    low = KeySharedSpec(KeySharedMode.STICKY, ((0, 32_767),))
    await attach(admin, "s", SubType.Key_Shared, name="low", key_shared=low)
    dispatcher: Any = (await admin.topic()).subscriptions["s"].dispatcher
    key = next(
        key for key in map(str, range(100)) if dispatcher.selector.hash_of(key.encode()) > 32_767
    )  # fmt: skip
    position = await keyed(admin, key)
    assert (await first(admin, "s", position)).code == "no_owner_of_key"
