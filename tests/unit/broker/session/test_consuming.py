"""The commands of a consumer, and their effects on its subscription."""

from typing import Any

import pytest
from tests.unit.broker.lifecycle.world import World
from tests.unit.broker.session.stage import TOPIC, client_of, loaded
from tests.unit.ledger.stage import publish

from magnetar.broker.session.consumers import rfc3339
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MetadataError, ServerError
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.entry import build_entry

SUBSCRIBE, SUCCESS, ERROR = CommandType.SUBSCRIBE, CommandType.SUCCESS, CommandType.ERROR
Subscribe = pb.CommandSubscribe
NOWHERE = 2**64 - 1


async def publish_batch(w: World, topic: PersistentTopic, messages: int) -> Position:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=w.clock.now_ms(), compression=pb.NONE
    )
    metadata.num_messages_in_batch = messages
    return Position(*await publish(topic.managed_ledger, build_entry(metadata, b"batch")))


# -- messages, permits and acks


async def test_messages_are_bounded_by_permits_and_end_with_the_consumer() -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.consumes(initialPosition=Subscribe.Earliest)
        await client.world.publish(topic, 5)
        await client.quiet()
        assert client.kinds() == []
        client.say(CommandType.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=2))
        await client.quiet()
        assert client.kinds() == ["MESSAGE"] * 2
        close = pb.CommandCloseConsumer(consumer_id=1, request_id=2)
        await client.ask(CommandType.CLOSE_CONSUMER, close, SUCCESS)
        client.say(CommandType.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=2))
        await client.quiet()
        assert client.kinds() == []
        assert topic.subscriptions["s"].consumers == []
        assert client.session.link._framers == {}


async def test_a_socket_that_drains_gets_what_waited_for_it() -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.consumes(permits=10)
        client.socket.writable = False
        await client.world.publish(topic, 3)
        await client.quiet()
        assert client.kinds() == []
        client.socket.writable = True
        client.session.drained()
        await client.quiet()
        assert client.kinds() == ["MESSAGE"] * 3


def ack(*places: Position, cumulative: bool = False, **fields: Any) -> pb.CommandAck:
    kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    command = pb.CommandAck(consumer_id=1, ack_type=kind, **fields)
    for place in places:
        command.message_id.add(ledgerId=place.ledger_id, entryId=place.entry_id)
    return command


async def test_acks_of_many_messages_take_each_and_are_answered_if_that_is_asked() -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.consumes(permits=10, initialPosition=Subscribe.Earliest)
        places = await client.world.publish(topic, 5)
        await client.quiet()
        client.told()
        client.say(CommandType.ACK, ack(places[0], places[3]))
        await client.quiet()
        assert client.kinds() == []
        cursor = topic.subscriptions["s"].cursor
        assert [cursor.is_acked(*each) for each in places] == [True, False, False, True, False]
        answer = await client.ask(
            CommandType.ACK, ack(places[1], request_id=8), CommandType.ACK_RESPONSE
        )
        assert (answer.consumer_id, answer.request_id, answer.HasField("error")) == (1, 8, False)
        # Of a shared subscription, none acknowledges what others hold.
        refused = await client.ask(
            CommandType.ACK,
            ack(places[4], cumulative=True, request_id=9),
            CommandType.ACK_RESPONSE,
        )
        assert (refused.request_id, refused.error) == (9, ServerError.NOT_ALLOWED_ERROR)
        assert cursor.mark_delete == places[1]


@pytest.mark.parametrize("field", ["txnid_least_bits", "txnid_most_bits"])
async def test_an_ack_in_a_transaction_acknowledges_nothing_and_says_so(field: str) -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.consumes(permits=10, initialPosition=Subscribe.Earliest)
        (place,) = await client.world.publish(topic)
        command = ack(place, request_id=8)
        setattr(command, field, 1)
        answer = await client.ask(CommandType.ACK, command, CommandType.ACK_RESPONSE)
        assert (answer.request_id, answer.error) == (8, ServerError.NOT_ALLOWED_ERROR)
        assert topic.subscriptions["s"].cursor.backlog == 1


async def test_an_ack_of_no_consumer_is_answered_only_if_that_is_asked() -> None:
    async with client_of() as client:
        client.say(CommandType.ACK, ack(Position(1, 1), Position(1, 2)))
        assert client.told() == []
        refused = await client.ask(
            CommandType.ACK, ack(Position(1, 1), request_id=4), CommandType.ACK_RESPONSE
        )
        assert (refused.consumer_id, refused.request_id) == (1, 4)
        assert (refused.error, refused.message) == (
            ServerError.CONSUMER_NOT_FOUND,
            "Consumer not found",
        )


@pytest.mark.parametrize("parts_count", [True, False])
async def test_a_part_of_a_batch_is_acknowledged_only_where_the_broker_counts_parts(
    parts_count: bool,
) -> None:
    async with client_of(batch_index_acks=parts_count) as client:
        topic = await loaded(client.world)
        await client.consumes(permits=10, initialPosition=Subscribe.Earliest)
        place = await publish_batch(client.world, topic, 4)
        await client.quiet()
        consumer = client.session.consumers[1].consumer
        part, last = ack(place), ack(place)
        part.message_id[0].ack_set.append(0b1010)
        part.message_id[0].batch_size = 4
        last.message_id[0].ack_set.append(0)
        last.message_id[0].batch_size = 4
        client.say(CommandType.ACK, part)
        assert (consumer.unacked, topic.subscriptions["s"].cursor.backlog) == (
            2 if parts_count else 4,
            1,
        )
        client.say(CommandType.ACK, last)
        assert (consumer.unacked, topic.subscriptions["s"].cursor.backlog) == (0, 0)


@pytest.mark.parametrize("parts_count", [True, False])
async def test_a_cumulative_ack_within_a_batch_acknowledges_all_before_it(
    parts_count: bool,
) -> None:
    async with client_of(batch_index_acks=parts_count) as client:
        topic = await loaded(client.world)
        await client.consumes(
            permits=20, initialPosition=Subscribe.Earliest, subType=Subscribe.Exclusive
        )
        before = await client.world.publish(topic, 2)
        place = await publish_batch(client.world, topic, 4)
        await client.quiet()
        within = ack(place, cumulative=True)
        within.message_id[0].ack_set.append(0b1100)
        client.say(CommandType.ACK, within)
        cursor = topic.subscriptions["s"].cursor
        assert cursor.mark_delete == before[1]
        assert cursor.remaining_batch(*place) == (0b1100 if parts_count else None)
        client.say(CommandType.ACK, ack(place, cumulative=True))
        assert cursor.mark_delete == place


@pytest.mark.parametrize(
    ("which", "epoch", "again"), [((), None, 3), ((1,), 4, 1), ((0, 2), None, 2)]
)
async def test_redelivery_covers_the_given_positions_or_all(
    which: tuple[int, ...], epoch: int | None, again: int
) -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.consumes(permits=20, initialPosition=Subscribe.Earliest)
        places = await client.world.publish(topic, 3)
        await client.quiet()
        assert client.kinds() == ["MESSAGE"] * 3
        command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
        for number in which:
            place = places[number]
            command.message_ids.add(ledgerId=place.ledger_id, entryId=place.entry_id)
        if epoch is not None:
            command.consumer_epoch = epoch
        client.say(CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES, command)
        await client.quiet()
        told: list[Any] = [each.message for each in client.told()]
        assert [each.redelivery_count for each in told] == [1] * again
        expected = [places[number] for number in which] or places
        assert [each.message_id.entryId for each in told] == [each.entry_id for each in expected]
        assert client.session.consumers[1].consumer.epoch == epoch
        command.consumer_id = 5
        client.say(CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES, command)
        await client.quiet()
        assert client.told() == []


# -- the end of a subscription


def unsubscribe(**fields: Any) -> pb.CommandUnsubscribe:
    return pb.CommandUnsubscribe(consumer_id=1, request_id=6, **fields)


async def test_one_of_many_consumers_deletes_the_subscription_only_by_force() -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.consumes(1)
        await client.consumes(2)
        error = await client.ask(CommandType.UNSUBSCRIBE, unsubscribe(), ERROR)
        assert (error.request_id, error.error) == (6, ServerError.METADATA_ERROR)
        await client.quiet()
        assert client.told() == [], "it goes on as it was"
        assert len(topic.subscriptions["s"].consumers) == 2
        await client.ask(CommandType.UNSUBSCRIBE, unsubscribe(force=True), SUCCESS)
        assert topic.subscriptions == {}
        assert 1 not in client.session.consumers
        assert 1 not in client.session.link._framers


async def test_a_detached_consumer_is_closed_after_the_error_of_its_unsubscribe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.consumes()

        async def fails(_name: str) -> None:
            raise MetadataError("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(type(topic.managed_ledger), "delete_cursor", lambda _, name: fails(name))
            client.say(CommandType.UNSUBSCRIBE, unsubscribe())
            await client.quiet()
        assert client.kinds()[-2:] == ["ERROR", "CLOSE_CONSUMER"]
        await client.consumes()
        await client.ask(CommandType.UNSUBSCRIBE, unsubscribe(), SUCCESS)
        assert topic.subscriptions == {}


# -- seeks and questions


async def test_a_seek_goes_to_a_message_or_into_a_batch_or_to_a_time() -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.consumes()
        begun_ms = client.world.clock.now_ms()
        places = await client.world.publish(topic, 4, every_ms=1_000)
        batch = await publish_batch(client.world, topic, 4)
        cursor = topic.subscriptions["s"].cursor

        async def seek(**fields: Any) -> Any:
            await client.consumes()
            command = pb.CommandSeek(consumer_id=1, request_id=7, **fields)
            answer = await client.ask(CommandType.SEEK, command, SUCCESS)
            assert answer.request_id == 7

        at = pb.MessageIdData(ledgerId=places[2].ledger_id, entryId=places[2].entry_id)
        await seek(message_id=at)
        assert cursor.backlog == 3
        await seek(message_publish_time=begun_ms + 1_000)
        assert cursor.backlog == 4
        within = pb.MessageIdData(
            ledgerId=batch.ledger_id, entryId=batch.entry_id, ack_set=[0b1100], batch_size=4
        )
        await seek(message_id=within)
        assert (cursor.backlog, cursor.remaining_batch(*batch)) == (1, 0b1100)
        await seek(message_id=pb.MessageIdData(ledgerId=NOWHERE, entryId=NOWHERE))
        assert cursor.backlog == 5
        neither = pb.CommandSeek(consumer_id=1, request_id=8)
        error = await client.ask(CommandType.SEEK, neither, ERROR)
        assert (error.request_id, error.error) == (8, ServerError.METADATA_ERROR)


async def test_the_last_message_is_named_with_its_batch_and_partition_and_the_mark() -> None:
    async with client_of() as client:
        name = parse_topic(TOPIC)
        await client.world.service.topics.create_partitioned(name, 4, {})
        topic = await client.world.topic("t-partition-3", "s")
        await client.consumes(topic=f"{TOPIC}-partition-3")
        ask = pb.CommandGetLastMessageId(consumer_id=1, request_id=7)
        kinds = (CommandType.GET_LAST_MESSAGE_ID, ask, CommandType.GET_LAST_MESSAGE_ID_RESPONSE)
        empty = await client.ask(*kinds)
        last = empty.last_message_id
        assert (last.ledgerId, last.entryId, last.partition) == (NOWHERE, NOWHERE, 3)
        places = await client.world.publish(topic, 2)
        answer = await client.ask(*kinds)
        last, mark = answer.last_message_id, answer.consumer_mark_delete_position
        assert (answer.request_id, last.entryId, last.batch_index) == (7, places[1].entry_id, -1)
        assert (last.ledgerId, last.partition) == (places[1].ledger_id, 3)
        client.say(CommandType.ACK, ack(places[0]))
        batch = await publish_batch(client.world, topic, 4)
        answer = await client.ask(*kinds)
        last, mark = answer.last_message_id, answer.consumer_mark_delete_position
        assert (last.entryId, last.batch_index) == (batch.entry_id, 3)
        assert (mark.ledgerId, mark.entryId) == places[0]


async def test_a_consumers_numbers_are_its_own() -> None:
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.consumes(permits=5, initialPosition=Subscribe.Earliest, consumer_name="c")
        places = await client.world.publish(topic, 3)
        await client.quiet()
        client.world.clock.advance(10_000)
        client.say(CommandType.ACK, ack(places[0], places[1]))
        ask = pb.CommandConsumerStats(consumer_id=1, request_id=7)
        kinds = (CommandType.CONSUMER_STATS, ask, CommandType.CONSUMER_STATS_RESPONSE)
        found = await client.ask(*kinds)
        assert (found.request_id, found.consumerName, found.type) == (7, "c", "Shared")
        assert (found.availablePermits, found.unackedMessages, found.msgBacklog) == (2, 1, 1)
        assert not found.blockedConsumerOnUnackedMsgs
        assert found.address == "/127.0.0.1:40712"
        elapsed_s = 12
        assert found.msgRateOut == pytest.approx(3 / elapsed_s)
        assert found.messageAckRate == pytest.approx(2 / elapsed_s)
        assert found.msgThroughputOut > found.msgRateOut
        assert found.msgRateRedeliver == 0
        consumer = client.session.consumers[1].consumer
        redeliver = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
        client.say(CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliver)
        client.world.clock.advance(4_000)
        found = await client.ask(*kinds)
        assert (found.msgRateRedeliver, found.msgRateOut) == (0.25, 0.25)
        assert found.connectedSince == rfc3339(consumer.connected_since_ms)
        consumer.blocked = True
        assert (await client.ask(*kinds)).blockedConsumerOnUnackedMsgs
        consumer.permits = -3
        assert (await client.ask(*kinds)).availablePermits == 0
        ask.consumer_id = 6
        found = await client.ask(*kinds)
        assert (found.request_id, found.error_code) == (7, ServerError.CONSUMER_NOT_FOUND)
        assert found.error_message == "Consumer 6 not found"


async def test_a_consumer_without_storage_has_numbers_too() -> None:
    async with client_of() as client:
        await client.consumes(topic="non-persistent://public/default/n")
        ask = pb.CommandConsumerStats(consumer_id=1, request_id=7)
        found = await client.ask(
            CommandType.CONSUMER_STATS, ask, CommandType.CONSUMER_STATS_RESPONSE
        )
        assert (found.type, found.msgBacklog) == ("Shared", 0)
        assert not found.HasField("error_code")
