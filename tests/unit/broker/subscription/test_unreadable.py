"""Entries that cannot be read: nothing stalls in silence, and nothing is skipped unasked."""

import asyncio

import pytest
from tests.support.memory_bookie import MemoryBookie

from magnetar.bookie.api import EntryCorrupt
from magnetar.broker.dispatch import reader
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import SubType
from magnetar.managed_ledger.settings import ManagedLedgerSettings


class DamagedBookie(MemoryBookie):
    """Some of its entries fail their checksum."""

    def __init__(self):
        super().__init__()
        self.damaged = set()
        self.reads = 0
        self.hang = None

    async def read_entries(self, ledger_id, first, last, *, bytes_max, fence=False):
        self.reads += 1
        if self.hang is not None:
            await self.hang.wait()
        good = [
            entry
            for entry in await super().read_entries(ledger_id, first, last, bytes_max=bytes_max)
            if (ledger_id, entry.entry_id) not in self.damaged
        ]
        if (ledger_id, first) in self.damaged:
            raise EntryCorrupt(f"entry {ledger_id}:{first} is corrupt", "log.1", 77)
        return [entry for index, entry in enumerate(good) if entry.entry_id == first + index]


@pytest.fixture
def bookie():
    return DamagedBookie()


@pytest.fixture
async def stored(open_rig, bookie):
    async for each in open_rig(ManagedLedgerSettings(cache_bytes_max=0), bookie):
        yield each


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(reader, "RETRY_MIN_S", 0.005)
    monkeypatch.setattr("magnetar.broker.dispatch.replay_reader.RETRY_MIN_S", 0.005)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - seen from outside, there is no event
            await asyncio.sleep(0.005)


async def subscribe(rig, sub_type, **limits):
    subscription = await rig.subscription(limits=SubscriptionLimits(**limits))
    consumer, sink = rig.consumer("a", sub_type)
    await subscription.add_consumer(consumer)
    subscription.flow(consumer, 100)
    return subscription, consumer, sink


@pytest.mark.parametrize("sub_type", SubType)
async def test_a_corrupt_entry_is_retried_and_shown(stored, bookie, sub_type):
    positions = await stored.publish_texts(6, keys=2)
    bookie.damaged.add(positions[3])
    subscription, consumer, sink = await subscribe(stored, sub_type)
    await until(lambda: bookie.reads >= 4)
    assert sink.texts == ["0", "1", "2"]
    failure = subscription.stats().read_failure
    assert failure.startswith(f"{positions[3][0]}:{positions[3][1]}: entry")
    assert subscription.cursor.backlog == 6
    bookie.damaged.clear()
    await until(lambda: len(sink.texts) == 6)
    assert sink.texts == [str(each) for each in range(6)]
    assert subscription.stats().read_failure is not failure
    subscription.remove_consumer(consumer)


@pytest.mark.parametrize("sub_type", SubType)
async def test_a_corrupt_entry_is_skipped_if_configured(stored, bookie, sub_type):
    positions = await stored.publish_texts(6, keys=2)
    bookie.damaged.update((positions[0], positions[3]))
    subscription, _, sink = await subscribe(stored, sub_type, skip_unreadable=True)
    await until(lambda: len(sink.texts) == 4)
    assert sink.texts == ["1", "2", "4", "5"]
    assert subscription.cursor.backlog == 4


@pytest.mark.parametrize("sub_type", [SubType.Shared, SubType.Key_Shared])
async def test_a_corrupt_replay_holds_up_only_what_must_wait(stored, bookie, sub_type):
    positions = await stored.publish_texts(6, keys=2)
    subscription, consumer, sink = await subscribe(stored, sub_type)
    await until(lambda: len(sink.texts) == 6)
    sink.take()
    bookie.damaged.add(positions[2])
    subscription.redeliver(consumer)
    others = ["0", "1", "3", "5"] if sub_type is SubType.Key_Shared else ["0", "1", "3", "4", "5"]
    await until(lambda: len(sink.texts) == len(others))
    assert sorted(sink.texts) == others
    stats = subscription.stats()
    assert "corrupt" in stats.read_failure
    assert stats.msg_in_replay == 6 - len(others)
    await stored.publish_texts(2, keys=2)
    await until(lambda: "7" in sink.texts)
    bookie.damaged.clear()
    await until(lambda: len(sink.texts) == 8)
    assert subscription.stats().msg_in_replay == 0


@pytest.mark.parametrize("sub_type", [SubType.Shared, SubType.Key_Shared])
async def test_a_corrupt_replay_is_skipped_if_configured(stored, bookie, sub_type):
    positions = await stored.publish_texts(6, keys=2)
    subscription, consumer, sink = await subscribe(stored, sub_type, skip_unreadable=True)
    await until(lambda: len(sink.texts) == 6)
    sink.take()
    bookie.damaged.add(positions[2])
    subscription.redeliver(consumer)
    await until(lambda: len(sink.texts) == 5)
    assert sorted(sink.texts) == ["0", "1", "3", "4", "5"]
    assert (subscription.stats().msg_in_replay, subscription.cursor.backlog) == (0, 5)


async def test_a_failed_read_is_dropped_once_it_is_acked_or_all_consumers_leave(stored, bookie):
    positions = await stored.publish_texts(3)
    subscription, consumer, sink = await subscribe(stored, SubType.Shared)
    await until(lambda: len(sink.texts) == 3)
    bookie.damaged.update(positions)
    subscription.redeliver(consumer)
    await until(lambda: len(subscription.dispatcher.replays.failures) == 3)
    subscription.ack_one(consumer, *positions[1])
    assert subscription.stats().msg_in_replay == 2
    subscription.remove_consumer(consumer)
    assert subscription.stats().msg_in_replay == 0
    assert subscription.dispatcher.replays.failures == {}


async def test_later_chunks_wait_for_one_that_cannot_be_read(stored, bookie, make_entry):
    subscription, first, sink = await subscribe(stored, SubType.Shared)
    first.permits = 0
    subscription.flow(first, 1)
    chunks = [make_entry(str(index), chunk=("x", index, 4)) for index in range(4)]
    positions = await stored.publish(*chunks[:2])
    await until(lambda: sink.texts == ["0"])
    other, other_sink = stored.consumer("b", SubType.Shared)
    await subscription.add_consumer(other)
    subscription.flow(other, 100)
    await until(lambda: subscription.stats().msg_in_replay == 1)
    bookie.damaged.add(positions[1])
    subscription.flow(first, 100)
    await until(lambda: subscription.dispatcher.replays.failures)
    await stored.publish(*chunks[2:], make_entry("p"))
    await until(lambda: "p" in sink.texts + other_sink.texts)
    assert "2" not in sink.texts + other_sink.texts
    bookie.damaged.clear()
    await until(lambda: "3" in sink.texts)
    assert [text for text in sink.texts if text != "p"] == ["0", "1", "2", "3"]


async def test_a_read_that_hangs_ends_with_its_consumer(stored, bookie):
    await stored.publish_texts(3)
    bookie.hang = asyncio.Event()
    subscription, consumer, sink = await subscribe(stored, SubType.Exclusive)
    await until(lambda: bookie.reads)
    subscription.remove_consumer(consumer)
    await until(lambda: len(stored.tasks) == 0)
    bookie.hang = None
    _, sink = await stored.attach(subscription, "b", SubType.Exclusive)
    assert sink.texts == ["0", "1", "2"]


@pytest.mark.parametrize("sub_type", SubType)
async def test_a_read_that_fails_for_an_unforeseen_reason_is_retried(
    stored, bookie, sub_type, monkeypatch
):
    await stored.publish_texts(3)
    read, failures = bookie.read_entries, [RuntimeError("a mistake"), KeyError("another")]

    async def mistaken(*args, **kwargs):
        if failures:
            raise failures.pop()
        return await read(*args, **kwargs)

    monkeypatch.setattr(bookie, "read_entries", mistaken)
    subscription, consumer, sink = await subscribe(stored, sub_type)
    await until(lambda: len(sink.texts) == 3)
    assert not failures
    sink.take()
    failures.append(RuntimeError("when it is sent again"))
    subscription.redeliver(consumer)
    await until(lambda: len(sink.texts) == 3)
    assert sorted(sink.texts) == ["0", "1", "2"]
