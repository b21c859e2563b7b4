"""Access modes, names, epochs and fencing of a topic's producers: the cases, one by one."""

import asyncio

import pytest
from tests.unit.broker.producer_doubles import RecordingSink, new_producer

from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.core.errors import MetadataError, ProducerBusy, ProducerFenced, ServiceNotReady
from magnetar.core.tasks import TaskSet

SHARED = AccessMode.SHARED
EXCLUSIVE = AccessMode.EXCLUSIVE
WAIT = AccessMode.WAIT_FOR_EXCLUSIVE
FENCING = AccessMode.EXCLUSIVE_WITH_FENCING

READY, WAITING = "ready", "waiting"


class Epochs:
    """Stores a topic's epoch; if `held`, a write waits for the test."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.held: asyncio.Event | None = None
        self.error: Exception | None = None

    async def store(self, epoch: int) -> None:
        if self.held is not None:
            await self.held.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.stored.append(epoch)


@pytest.fixture
def epochs() -> Epochs:
    return Epochs()


@pytest.fixture
def registry(epochs: Epochs) -> ProducerRegistry:
    return ProducerRegistry("persistent://public/default/t", None, epochs.store, TaskSet("test"))


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


async def _leaves(registry: ProducerRegistry, producer: Producer) -> None:
    """Returns once waiting tasks have run, unless a write is held."""
    registry.remove(producer)
    await _turns()


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


HELD = {
    "nobody": (),
    "shared": (SHARED,),
    "exclusive": (EXCLUSIVE,),
    "fencing": (FENCING,),
    "first of those that wait": (WAIT,),
    "shared, and one waits": (SHARED, WAIT),
    "exclusive, and one waits": (EXCLUSIVE, WAIT),
}


@pytest.mark.parametrize(
    ("held", "shared", "exclusive", "wait"),
    [
        ("nobody", READY, READY, READY),
        ("shared", READY, ProducerFenced, WAITING),
        ("exclusive", ProducerBusy, ProducerFenced, WAITING),
        ("fencing", ProducerBusy, ProducerFenced, WAITING),
        ("first of those that wait", ProducerBusy, ProducerFenced, WAITING),
        ("shared, and one waits", ProducerBusy, ProducerFenced, WAITING),
        ("exclusive, and one waits", ProducerBusy, ProducerFenced, WAITING),
    ],
)
async def test_which_access_modes_exclude_each_other(
    registry: ProducerRegistry,
    sink: RecordingSink,
    held: str,
    shared: object,
    exclusive: object,
    wait: object,
) -> None:
    holders = [new_producer(sink, mode=mode) for mode in HELD[held]]
    for holder in holders:
        await registry.add(holder)
    for mode, wanted in ((SHARED, shared), (EXCLUSIVE, exclusive), (WAIT, wait)):
        newcomer = new_producer(sink, mode=mode)
        if isinstance(wanted, type):
            with pytest.raises(wanted):
                await registry.add(newcomer)
        else:
            await registry.add(newcomer)
            assert newcomer.ready == (wanted is READY)
            registry.remove(newcomer)
    fencing = new_producer(sink, mode=FENCING)
    await registry.add(fencing)
    assert fencing.ready
    assert list(registry) == [fencing]
    assert all(holder.closed for holder in holders)
    assert registry.waiting_count == 0
    assert set(sink.sent_away) == {holder for holder in holders if holder.ready}
    assert {producer for producer, _ in sink.refused} == {h for h in holders if not h.ready}
    assert all(isinstance(error, ProducerFenced) for _, error in sink.refused)


async def test_those_that_wait_get_their_turn_in_order(
    registry: ProducerRegistry, sink: RecordingSink, epochs: Epochs
) -> None:
    holder = new_producer(sink, mode=EXCLUSIVE)
    waiting = [new_producer(sink, mode=WAIT) for _ in range(4)]
    for producer in (holder, *waiting):
        await registry.add(producer)
    registry.remove(waiting[1])
    await _leaves(registry, holder)
    await _leaves(registry, waiting[0])
    assert sink.ready == [waiting[0], waiting[2]]
    assert epochs.stored == [0, 1, 2]
    assert waiting[2].topic_epoch == 2
    assert registry.waiting_count == 1


async def test_a_newcomer_does_not_pass_those_that_wait(
    registry: ProducerRegistry, sink: RecordingSink
) -> None:
    holder, first = new_producer(sink, mode=EXCLUSIVE), new_producer(sink, mode=WAIT)
    await registry.add(holder)
    await registry.add(first)
    registry.remove(holder)
    newcomer = new_producer(sink, mode=WAIT)
    await registry.add(newcomer)  # before the other's turn has come
    assert not newcomer.ready
    await asyncio.sleep(0)
    assert list(registry) == [first]


@pytest.mark.parametrize(("mode", "error"), [(SHARED, ProducerBusy), (EXCLUSIVE, ProducerFenced)])
async def test_a_newcomer_does_not_take_a_free_topic_from_those_that_wait(
    registry: ProducerRegistry, sink: RecordingSink, mode: AccessMode, error: type[Exception]
) -> None:
    holder, first = new_producer(sink, mode=EXCLUSIVE), new_producer(sink, mode=WAIT)
    await registry.add(holder)
    await registry.add(first)
    registry.remove(holder)
    with pytest.raises(error, match=f"existing exclusive producer: {first.name}"):
        await registry.add(new_producer(sink, mode=mode))
    await _turns()
    assert list(registry) == [first]


@pytest.mark.parametrize("why", ["fenced", "store failed", "closed meanwhile"])
async def test_if_the_first_waiter_fails_the_next_gets_access(
    registry: ProducerRegistry, sink: RecordingSink, epochs: Epochs, why: str
) -> None:
    holder = new_producer(sink, mode=EXCLUSIVE)
    first = new_producer(sink, mode=WAIT, topic_epoch=-5 if why == "fenced" else None)
    second = new_producer(sink, mode=WAIT)
    for producer in (holder, first, second):
        await registry.add(producer)
    if why == "store failed":
        epochs.error = MetadataError("no")
    if why == "closed meanwhile":
        epochs.held = asyncio.Event()
    await _leaves(registry, holder)
    if epochs.held is not None:
        registry.remove(first)
        epochs.held.set()
        await _turns()
    assert first.closed
    assert sink.ready == [second]
    assert list(registry) == [second]
    if why != "closed meanwhile":
        ((refused, error),) = sink.refused
        assert refused is first
        assert isinstance(error, ProducerFenced if why == "fenced" else MetadataError)


async def test_no_producer_waits_behind_a_failed_epoch_write(
    registry: ProducerRegistry, sink: RecordingSink, epochs: Epochs
) -> None:
    epochs.held = asyncio.Event()
    first, second = new_producer(sink, mode=EXCLUSIVE), new_producer(sink, mode=WAIT)
    adding = asyncio.create_task(registry.add(first))
    await asyncio.sleep(0)
    await registry.add(second)
    assert not second.ready
    epochs.error = MetadataError("no")
    epochs.held.set()
    with pytest.raises(MetadataError):
        await adding
    await _turns()
    assert sink.ready == [second]
    assert list(registry) == [second]


async def test_fencing_a_producer_whose_epoch_is_being_stored(
    registry: ProducerRegistry, sink: RecordingSink, epochs: Epochs
) -> None:
    epochs.held = asyncio.Event()
    first, second = new_producer(sink, mode=EXCLUSIVE), new_producer(sink, mode=FENCING)
    adding_first = asyncio.create_task(registry.add(first))
    await asyncio.sleep(0)
    adding_second = asyncio.create_task(registry.add(second))
    await asyncio.sleep(0)
    epochs.held.set()
    with pytest.raises(ProducerFenced):
        await adding_first
    await adding_second
    assert list(registry) == [second]
    assert not first.ready
    assert second.topic_epoch == 1  # above what the first may have stored


async def test_closing_all_while_an_epoch_is_stored(
    registry: ProducerRegistry, sink: RecordingSink, epochs: Epochs
) -> None:
    epochs.held = asyncio.Event()
    producer = new_producer(sink, mode=EXCLUSIVE)
    adding = asyncio.create_task(registry.add(producer))
    await asyncio.sleep(0)
    registry.close_all()
    epochs.held.set()
    with pytest.raises(ServiceNotReady):  # not fenced: it is to come back
        await adding
    assert list(registry) == []


async def test_a_fenced_producer_cannot_return(
    registry: ProducerRegistry, sink: RecordingSink
) -> None:
    first = new_producer(sink, mode=EXCLUSIVE)
    await registry.add(first)
    await registry.add(new_producer(sink, mode=FENCING))
    again = new_producer(sink, mode=FENCING, topic_epoch=first.topic_epoch)
    with pytest.raises(ProducerFenced, match=r"Current epoch: 1, Producer epoch: 0"):
        await registry.add(again)


async def test_a_producer_that_reconnects_keeps_its_epoch(
    registry: ProducerRegistry, sink: RecordingSink, epochs: Epochs
) -> None:
    producer = new_producer(sink, mode=EXCLUSIVE)
    await registry.add(producer)
    await _leaves(registry, producer)
    again = new_producer(sink, mode=EXCLUSIVE, topic_epoch=producer.topic_epoch)
    await registry.add(again)
    assert again.topic_epoch == 0
    assert epochs.stored == [0]


async def test_the_epoch_continues_from_the_stored_one(sink: RecordingSink, epochs: Epochs) -> None:
    registry = ProducerRegistry("t", 41, epochs.store, TaskSet("test"))
    producer = new_producer(sink, mode=EXCLUSIVE)
    await registry.add(producer)
    assert producer.topic_epoch == 42
    assert epochs.stored == [42]


async def test_an_epoch_that_was_not_stored_is_not_believed(
    registry: ProducerRegistry, sink: RecordingSink, epochs: Epochs
) -> None:
    epochs.error = MetadataError("no")
    with pytest.raises(MetadataError):
        await registry.add(new_producer(sink, mode=EXCLUSIVE, topic_epoch=7))
    await registry.add(new_producer(sink, mode=EXCLUSIVE, topic_epoch=7))
    assert epochs.stored == [7]


async def test_a_late_answer_of_an_earlier_epoch_takes_nothing_from_a_later_one(
    sink: RecordingSink,
) -> None:
    """The producer of the later epoch reconnects without another write, which might fail."""
    writes: dict[int, asyncio.Event] = {}
    asked: list[int] = []

    async def store(epoch: int) -> None:
        asked.append(epoch)
        await writes.setdefault(epoch, asyncio.Event()).wait()

    registry = ProducerRegistry("t", None, store, TaskSet("test"))
    first, second = new_producer(sink, mode=EXCLUSIVE), new_producer(sink, mode=FENCING)
    adding = [asyncio.create_task(registry.add(each)) for each in (first, second)]
    await _turns()
    for epoch in (1, 0):
        writes[epoch].set()
        await _turns()
    with pytest.raises(ProducerFenced):
        await adding[0]
    await adding[1]
    assert (asked, second.topic_epoch) == ([0, 1], 1)
    await _leaves(registry, second)
    await registry.add(new_producer(sink, mode=EXCLUSIVE, topic_epoch=1))
    assert asked == [0, 1]


# -- names


async def test_a_name_has_one_holder(registry: ProducerRegistry, sink: RecordingSink) -> None:
    await registry.add(new_producer(sink, "n"))
    with pytest.raises(ProducerBusy, match="'n' is already connected to topic 'persistent://"):
        await registry.add(new_producer(sink, "n"))
    with pytest.raises(ProducerFenced, match="existing shared producers"):  # as in Pulsar
        await registry.add(new_producer(sink, "n", mode=EXCLUSIVE))
    assert sink.pings == []  # the same connection is alive: it is talking to us


async def test_a_name_of_an_exclusive_producer_is_no_reason_to_try_again(
    registry: ProducerRegistry, sink: RecordingSink
) -> None:
    await registry.add(new_producer(sink, "n", mode=EXCLUSIVE))
    with pytest.raises(ProducerFenced, match="existing exclusive producer"):
        await registry.add(new_producer(sink, "n", mode=EXCLUSIVE))


@pytest.mark.parametrize("alive", [True, False])
async def test_a_name_held_over_another_connection(
    registry: ProducerRegistry, sink: RecordingSink, alive: bool
) -> None:
    other = RecordingSink()
    holder, newcomer = new_producer(other, "n"), new_producer(sink, "n")
    await registry.add(holder)
    adding = asyncio.create_task(registry.add(newcomer))
    await asyncio.sleep(0)
    other.pings[0].set_result(alive)
    if alive:
        with pytest.raises(ProducerBusy):
            await adding
        assert list(registry) == [holder]
    else:
        await adding
        assert list(registry) == [newcomer]
        assert holder.closed


async def test_two_producers_compete_for_the_name_of_a_dead_one(
    registry: ProducerRegistry, sink: RecordingSink
) -> None:
    dead, third = RecordingSink(), RecordingSink()
    await registry.add(new_producer(dead, "n"))
    first, second = new_producer(sink, "n"), new_producer(third, "n")
    adding = [asyncio.create_task(registry.add(producer)) for producer in (first, second)]
    await asyncio.sleep(0)
    for ping in dead.pings:
        ping.set_result(False)
    await adding[0]
    await asyncio.sleep(0)
    sink.pings[0].set_result(True)  # the second asks after the one that was faster
    with pytest.raises(ProducerBusy):
        await adding[1]
    assert list(registry) == [first]
    assert not first.closed


async def test_a_newer_life_of_the_same_producer_takes_its_name(
    registry: ProducerRegistry, sink: RecordingSink
) -> None:
    old = new_producer(sink, "n", producer_id=1, epoch=0)
    await registry.add(old)
    with pytest.raises(ProducerBusy):
        await registry.add(new_producer(sink, "n", producer_id=1, epoch=0))
    with pytest.raises(ProducerBusy):
        await registry.add(new_producer(sink, "n", producer_id=2, epoch=1))
    new = new_producer(sink, "n", producer_id=1, epoch=1)
    await registry.add(new)
    assert list(registry) == [new]
    assert old.closed


async def test_fencing_takes_the_name_too(registry: ProducerRegistry, sink: RecordingSink) -> None:
    holder = new_producer(RecordingSink(), "leader", FENCING)
    await registry.add(holder)
    newcomer = new_producer(sink, "leader", FENCING)
    await registry.add(newcomer)
    assert list(registry) == [newcomer]
    assert holder.closed


async def test_the_line_is_bounded(
    registry: ProducerRegistry, sink: RecordingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.topic.producers.WAITING_PRODUCERS_MAX", 2)
    await registry.add(new_producer(sink, mode=EXCLUSIVE))
    for _ in range(2):
        await registry.add(new_producer(sink, mode=WAIT))
    with pytest.raises(ProducerBusy):
        await registry.add(new_producer(sink, mode=WAIT))


async def test_closing_all_notifies_every_producer(
    registry: ProducerRegistry, sink: RecordingSink
) -> None:
    producers = [new_producer(sink, mode=mode) for mode in (SHARED, SHARED, WAIT)]
    for producer in producers:
        await registry.add(producer)
    registry.close_all()
    assert sink.sent_away == producers
    assert list(registry) == []
    assert registry.waiting_count == 0
    await registry.add(new_producer(sink, mode=EXCLUSIVE))


async def test_a_producer_on_its_way_rests_with_its_topic(
    registry: ProducerRegistry, sink: RecordingSink
) -> None:
    """The former holder turns out to be dead while the lease is in doubt."""
    dead = RecordingSink()
    await registry.add(new_producer(dead, "n"))
    coming = new_producer(sink, "n")
    adding = asyncio.create_task(registry.add(coming))
    await asyncio.sleep(0)
    registry.suspend()
    dead.pings[0].set_result(False)
    await adding
    assert not coming.ready
    assert coming.admitted, "its client is told that it may send: it is asked to send again"
    registry.resume()
    assert coming.ready


async def test_a_producer_that_becomes_exclusive_while_the_topic_rests_rests(
    registry: ProducerRegistry, sink: RecordingSink, epochs: Epochs
) -> None:
    epochs.held = asyncio.Event()
    coming = new_producer(sink, mode=EXCLUSIVE)
    adding = asyncio.create_task(registry.add(coming))
    await asyncio.sleep(0)
    registry.suspend()
    epochs.held.set()
    await adding
    assert (coming.ready, coming.admitted) == (False, True)
    coming.missed = True  # it sent something, which was not taken
    registry.resume()
    assert sink.sent_away == [coming]


async def test_waiting_producers_get_access_when_the_topic_resumes(
    registry: ProducerRegistry, sink: RecordingSink, epochs: Epochs
) -> None:
    holder, waiting = new_producer(sink, mode=EXCLUSIVE), new_producer(sink, mode=WAIT)
    await registry.add(holder)
    await registry.add(waiting)
    registry.suspend()
    await _leaves(registry, holder)
    assert epochs.stored == [0], "nothing is written while the lease is in doubt"
    assert not sink.ready
    assert not sink.refused
    registry.resume()
    await _turns()
    assert sink.ready == [waiting]
    assert waiting.ready


async def test_a_closing_producer_stays_closed_when_the_topic_resumes(
    registry: ProducerRegistry, sink: RecordingSink
) -> None:
    closing = new_producer(sink)
    await registry.add(closing)
    registry.suspend()
    closing.when_drained(lambda: None)
    registry.resume()
    assert not closing.ready
