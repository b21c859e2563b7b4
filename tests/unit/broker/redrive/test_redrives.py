"""Which letters a redrive finds, why others stay, and when none may start; none is moved here."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.unit.broker.lifecycle.world import World
from tests.unit.broker.session.stage import Client, client_of
from tests.unit.ledger.stage import publish

from magnetar.broker.redrive import jobs
from magnetar.broker.redrive.dead_letters import DeadLetters
from magnetar.broker.redrive.job import Redrive
from magnetar.broker.redrive.letters import Skip
from magnetar.broker.redrive.mover import Addressed, GroupTimeout, Mover
from magnetar.broker.redrive.progress import Order, Progress, Rights, State
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import (
    AuthorizationError,
    Conflict,
    NotFound,
    PreconditionFailed,
    TooManyRequests,
)
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.policies.selector import parse
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import build_batch
from magnetar.wire.entry import build_entry

ORIGIN = "persistent://public/default/t"
LETTERS = "t-s-DLQ"
TURNS_MAX = 5_000
ALL = Order(None, None, None, None, dry_run=True)
ON = {"transactions": True}


def letter(origin: str | None = ORIGIN, batch: int = 0, **properties: str) -> bytes:
    if origin is not None:
        properties["REAL_TOPIC"] = origin
    pairs = [pb.KeyValue(key=key, value=value) for key, value in properties.items()]
    head = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    if not batch:
        head.properties.extend(pairs)
        return build_entry(head, b"x")
    head.num_messages_in_batch = batch
    single = (pb.SingleMessageMetadata(properties=pairs), b"x")
    return build_entry(head, build_batch([single] * batch))


async def buried(w: World, *entries: bytes) -> tuple[PersistentTopic, list[Position]]:
    """The dead letter topic with its letters, and the topic that they come from."""
    await w.topic("t", "s")
    topic = await w.topic(LETTERS, "dlq")
    return topic, [Position(*await publish(topic.managed_ledger, entry)) for entry in entries]


async def scanned(
    w: World, topic: PersistentTopic, order: Order = ALL, rights: Rights | None = None
) -> Progress:
    job = Redrive(
        topic,
        DeadLetters(topic.subscriptions["dlq"], w.clock),
        order,
        rights,
        w.service.redrives.targets,
        w.clock,
    )
    await job.run(None)
    assert (job.progress.state, job.progress.error) == (State.FINISHED, "")
    return job.progress


def counts(progress: Progress) -> tuple[int, int, dict[Skip, int]]:
    return progress.examined, progress.matched, {k: n for k, n in progress.skipped.items() if n}


async def test_letters_that_cannot_be_moved_stay_with_a_reason() -> None:
    async with client_of() as client:
        topic, places = await buried(
            client.world,
            letter(),
            letter(None),
            letter("a://b"),
            letter(f"{ORIGIN}2"),
            letter("non-persistent://public/default/t"),
            letter(f"persistent://public/default/{LETTERS}"),
            b"no entry",
        )
        progress = await scanned(client.world, topic)
        assert counts(progress) == (
            *(7, 7),
            {
                Skip.NO_ORIGIN: 2,
                Skip.TARGET_MISSING: 2,
                Skip.TARGET_IS_SOURCE: 1,
                Skip.UNREADABLE: 1,
            },
        )
        assert progress.last_position == str(places[-1])
        to = (await client.world.topic("t")).name
        progress = await scanned(client.world, topic, Order(to, None, None, None, dry_run=True))
        assert counts(progress) == (7, 7, {Skip.UNREADABLE: 1})


async def test_only_unacked_messages_of_batches_are_examined() -> None:
    async with client_of() as client:
        topic, places = await buried(client.world, letter(), letter(batch=4), letter(batch=2))
        cursor = topic.subscriptions["dlq"].cursor
        cursor.ack(*places[0])
        cursor.ack_batch(*places[1], 0b1010, 4)
        assert counts(await scanned(client.world, topic)) == (4, 4, {})


async def test_aborted_messages_are_not_examined() -> None:
    from pyroaring import BitMap

    async with client_of() as client:
        topic, places = await buried(client.world, letter(), letter())
        aborted = {places[0].ledger_id: BitMap([places[0].entry_id])}
        await topic.managed_ledger.abort_entries(aborted)
        assert counts(await scanned(client.world, topic)) == (1, 1, {})


@pytest.mark.parametrize(("limit", "found"), [(None, 3), (3, 3), (2, 2), (1, 1)])
async def test_a_filter_and_a_limit(limit: int | None, found: int) -> None:
    async with client_of() as client:
        topic, _ = await buried(
            client.world, letter(a="1"), letter(a="2"), letter(None, a="1"), letter(a="1", batch=2)
        )
        order = Order(None, parse("a = '1'"), None, limit, dry_run=True)
        progress = await scanned(client.world, topic, order)
        movable = progress.matched - progress.skipped.total()
        assert movable == found


async def test_letters_that_were_moved_before_can_be_left_out() -> None:
    async with client_of() as client:
        topic, _ = await buried(client.world, letter(), letter(REDRIVES="1"))
        order = Order(None, parse("REDRIVES IS NULL"), None, None, dry_run=True)
        assert counts(await scanned(client.world, topic, order)) == (2, 1, {})


async def test_letters_that_a_consumer_holds_stay() -> None:
    async with client_of() as client:
        topic, _ = await buried(client.world, letter(), letter(), letter())
        await client.consumes(topic=topic.full_name, subscription="dlq", permits=2)
        for _ in range(2):
            await client.hears(pb.BaseCommand.MESSAGE)
        assert counts(await scanned(client.world, topic)) == (3, 3, {Skip.HELD: 2})


class OneTopic:
    """A role that may produce to one topic."""

    def __init__(self, allowed: str) -> None:
        self.allowed = allowed

    async def check_source(self) -> None:
        raise AuthorizationError("revoked")

    async def produce(self, target: TopicName) -> bool:
        return str(target) == self.allowed


async def test_letters_of_topics_without_the_right_to_produce_stay() -> None:
    async with client_of() as client:
        await client.world.topic("other")
        topic, _ = await buried(client.world, letter(), letter("persistent://public/default/other"))
        progress = await scanned(client.world, topic, ALL, OneTopic(ORIGIN))
        assert counts(progress) == (2, 2, {Skip.NO_RIGHT: 1})


# -- start and stop


async def started(client: Client, topic: PersistentTopic, order: Order = ALL) -> Progress:
    return await client.world.service.redrives.start(topic, "dlq", order, None)


async def ended(progress: Progress) -> None:
    for _ in range(TURNS_MAX):
        if progress.ended:
            return
        await asyncio.sleep(0)
    raise AssertionError("the redrive does not end")


async def test_a_redrive_needs_transactions() -> None:
    async with client_of() as client:
        topic, _ = await buried(client.world, letter())
        with pytest.raises(PreconditionFailed, match="transactionCoordinatorEnabled"):
            await started(client, topic)


async def test_one_redrive_runs_on_a_subscription() -> None:
    async with client_of(**ON) as client:
        redrives = client.world.service.redrives
        topic, _ = await buried(client.world, letter())
        with pytest.raises(NotFound):
            redrives.progress(topic.full_name, "dlq")
        first = await started(client, topic)
        with pytest.raises(Conflict, match="is running"):
            await started(client, topic)
        await ended(first)
        second = await started(client, topic)
        second.stop()
        await ended(second)
        assert second.state is State.STOPPED
        assert redrives.progress(topic.full_name, "dlq") is second
        assert redrives.progress(topic.full_name, "dlq", second.id) is second
        with pytest.raises(NotFound, match=first.id):
            redrives.progress(topic.full_name, "dlq", first.id)


async def test_a_broker_runs_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "RUNNING_MAX", 1)
    monkeypatch.setattr(jobs, "KEPT_MAX", 1)
    async with client_of(**ON) as client:
        redrives = client.world.service.redrives
        topic, _ = await buried(client.world, letter())
        other = await client.world.topic("u-DLQ", "dlq")
        first = await started(client, topic)
        with pytest.raises(TooManyRequests):
            await started(client, other)
        await ended(first)
        await started(client, other)
        with pytest.raises(NotFound):
            redrives.progress(topic.full_name, "dlq")


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover])
async def test_an_exclusive_consumer_may_hold_any_letter(kind: Any) -> None:
    async with client_of(**ON) as client:
        topic, _ = await buried(client.world, letter())
        await client.consumes(topic=topic.full_name, subscription="dlq", subType=kind)
        with pytest.raises(Conflict, match=pb.CommandSubscribe.SubType.Name(kind)):
            await started(client, topic)


async def test_a_redrive_ends_with_its_topic() -> None:
    async with client_of(**ON) as client:
        topic, _ = await buried(client.world, letter())
        progress = await started(client, topic)
        topic.subscriptions["dlq"].end()
        await ended(progress)
        assert progress.state is State.FAILED
        assert "Start the redrive again" in progress.error
        assert progress.resumable


# -- groups that are too large for their target


class SlowTargets:
    """Moves at most so many letters in the time of a group, as targets with a publish rate do."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.moved: list[Position] = []
        self.groups: list[int] = []

    async def move(self, group: Sequence[Addressed]) -> tuple[int, Counter[Skip]]:
        self.groups.append(len(group))
        if len(group) > self._most:
            raise GroupTimeout(f"{len(group)} messages were not moved")
        self.moved += [item.letter.position for item in group]
        return len(group), Counter()

    async def close(self) -> None: ...


@pytest.mark.parametrize(("most", "groups"), [(3, [10, 5, 2, 3, 5, 2, 3]), (5, [10, 5, 5])])
async def test_a_group_that_is_too_large_is_moved_in_parts(most: int, groups: list[int]) -> None:
    async with client_of(**ON) as client:
        topic, places = await buried(client.world, *[letter() for _ in range(10)])
        targets = SlowTargets(most)
        progress = await redriven(client, topic, targets)
        assert (progress.state, progress.moved, progress.error) == (State.FINISHED, 10, "")
        assert targets.moved == places
        assert targets.groups == groups


async def test_a_redrive_fails_if_its_targets_take_no_message() -> None:
    async with client_of(**ON) as client:
        topic, _ = await buried(client.world, *[letter() for _ in range(2)])
        progress = await redriven(client, topic, SlowTargets(0))
        assert (progress.state, progress.moved) == (State.FAILED, 0)
        assert progress.error == "1 messages were not moved"
        assert progress.resumable


async def redriven(client: Client, topic: PersistentTopic, targets: SlowTargets) -> Progress:
    world = client.world
    letters = DeadLetters(topic.subscriptions["dlq"], world.clock)
    order = Order(None, None, None, None, dry_run=False)
    job = Redrive(topic, letters, order, None, world.service.redrives.targets, world.clock)
    await job.run(cast("Mover", targets))
    return job.progress
