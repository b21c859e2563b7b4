"""The official client's producers, consumers and readers of one scenario, by their names."""

import contextlib
import datetime
import threading
import time
from typing import Any

import pulsar
from pulsar import schema

from . import messages

# A batch is sent by `flush`, or if its container is full.
UNTIL_FLUSH_MS = 600_000
# Time seeks need messages of different milliseconds.
BETWEEN_SENDS_S = 0.003
# For the answers to all messages of a batch, once it is flushed.
ANSWERS_S = 15.0
KINDS = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
POSITIONS = {
    "earliest": pulsar.InitialPosition.Earliest,
    "latest": pulsar.InitialPosition.Latest,
}
ENDS = {"earliest": pulsar.MessageId.earliest, "latest": pulsar.MessageId.latest}
STICKY = pulsar.KeySharedMode.Sticky


class Clients:
    """What a scenario has opened; names that it closed may be opened again."""

    def __init__(self, client: pulsar.Client, namespace: str, ids: messages.Ids) -> None:
        self._client, self._namespace, self._ids = client, namespace, ids
        self._producers: dict[str, pulsar.Producer] = {}
        self._consumers: dict[str, pulsar.Consumer | pulsar.Reader] = {}
        self._received: dict[str, list[pulsar.Message]] = {}

    def close_all(self) -> None:
        for each in (*self._consumers.values(), *self._producers.values()):
            with contextlib.suppress(pulsar.PulsarException):
                each.close()

    def topic(self, name: str) -> str:
        domain, _, local = name.rpartition(":")
        return f"{domain or 'persistent'}://{self._namespace}/{local}"

    def path(self, name: str) -> str:
        domain, _, rest = self.topic(name).partition("://")
        return f"{domain}/{rest}"

    def producer(self, on: str, topic: str, **options: Any) -> object:
        """Opens a producer with the name `on`."""
        kinds = {
            "compression_type": pulsar.CompressionType,
            "access_mode": pulsar.ProducerAccessMode,
            "message_routing_mode": pulsar.PartitionsRoutingMode,
            "batching_type": pulsar.BatchingType,
        }
        for option, kind in kinds.items():
            if option in options:
                options[option] = getattr(kind, options[option])
        if options.get("batching_enabled"):
            options.setdefault("batching_max_publish_delay_ms", UNTIL_FLUSH_MS)
        if "schema" in options:
            options["schema"] = _schema(options["schema"])
        name = options.pop("name", on)
        self._producers[on] = self._client.create_producer(
            self.topic(topic), producer_name=name, **options
        )
        return ["opened", self._producers[on].last_sequence_id()]

    def produce(self, on: str, messages: list[dict[str, Any]]) -> object:
        """Sends one after the other; returns their ids."""
        producer = self._producers[on]
        return [self._sent(producer, dict(each)) for each in messages]

    def _sent(self, producer: pulsar.Producer, fields: dict[str, Any]) -> object:
        payload, content = self._content(fields)
        time.sleep(BETWEEN_SENDS_S)
        self._ids.sent_at_ms[payload] = int(time.time() * 1000)
        try:
            found = producer.send(content, **fields)
        except pulsar.PulsarException as error:
            return {"error": type(error).__name__}
        self._ids.by_payload[payload] = found
        return self._ids.name(producer.topic(), found)

    def _content(self, fields: dict[str, Any]) -> tuple[str, Any]:
        payload = fields.pop("payload")
        if "after_ms" in fields:
            delay = datetime.timedelta(milliseconds=fields.pop("after_ms"))
            fields["deliver_after"] = delay
        if isinstance(payload, dict):
            return str(payload), payload
        content = payload.encode()
        if "size" in fields:
            content = content.ljust(fields.pop("size"), b".")
        return payload, content

    def produce_batch(self, on: str, messages: list[dict[str, Any]]) -> object:
        """Sends all at once, in the batches of the producer's container; returns their ids."""
        producer, done = self._producers[on], []
        answers = threading.Semaphore(0)
        time.sleep(BETWEEN_SENDS_S)
        for fields in messages:
            payload, content = self._content(fields := dict(fields))
            self._ids.sent_at_ms[payload] = int(time.time() * 1000)
            slot: list[Any] = [payload]
            done.append(slot)

            def sent(result: Any, found: Any, slot: list[Any] = slot) -> None:
                slot.extend((result, found))
                answers.release()

            producer.send_async(content, sent, **fields)
        producer.flush()
        # The client may return from the flush before it has called back for each message.
        deadline = time.monotonic() + ANSWERS_S
        for _ in done:
            if not answers.acquire(timeout=max(deadline - time.monotonic(), 0)):
                break
        return [self._batched(producer, *slot) for slot in done]

    def _batched(self, producer: pulsar.Producer, payload: str, *outcome: Any) -> object:
        if not outcome:
            return "no answer"
        result, found = outcome
        if result != pulsar.Result.Ok:
            return {"error": str(result)}
        found = pulsar.MessageId.wrap(found)
        self._ids.by_payload[payload] = found
        return self._ids.name(producer.topic(), found)

    def last_sequence_id(self, on: str) -> object:
        return self._producers[on].last_sequence_id()

    def consumer(self, on: str, topic: str, subscription: str, kind: str, **options: Any) -> object:
        """Subscribes with the consumer name `on`."""
        if "initial_position" in options:
            options["initial_position"] = POSITIONS[options["initial_position"]]
        if "dead_letter" in options:
            options["dead_letter_policy"] = pulsar.ConsumerDeadLetterPolicy(
                **{
                    name: self.topic(value) if name == "dead_letter_topic" else value
                    for name, value in options.pop("dead_letter").items()
                }
            )
        if "sticky" in options:
            ranges = [tuple(each) for each in options.pop("sticky")]
            options["key_shared_policy"] = pulsar.ConsumerKeySharedPolicy(STICKY, False, ranges)
        if options.pop("out_of_order", False):
            options["key_shared_policy"] = pulsar.ConsumerKeySharedPolicy(
                allow_out_of_order_delivery=True
            )
        if "schema" in options:
            options["schema"] = _schema(options["schema"])
        options.setdefault("negative_ack_redelivery_delay_ms", 100)
        self._consumers[on] = self._client.subscribe(
            self.topic(topic), subscription, KINDS[kind], consumer_name=on, **options
        )
        return "opened"

    def reader(self, on: str, topic: str, start: str, inclusive: bool = False) -> object:
        """Opens a reader at an end or at the message with the payload `start`."""
        self._consumers[on] = self._client.create_reader(
            self.topic(topic),
            ENDS.get(start) or self._ids.by_payload[start],
            reader_name=on,
            subscription_role_prefix=on,
            start_message_id_inclusive=inclusive,
        )
        return "opened"

    def compacted_reader(self, on: str, topic: str) -> object:
        self._consumers[on] = self._client.create_reader(
            self.topic(topic),
            pulsar.MessageId.earliest,
            reader_name=on,
            subscription_role_prefix=on,
            is_read_compacted=True,
        )
        return "opened"

    def forget_received(self, on: str) -> None:
        self._received[on] = []

    def receive_one(self, on: str, within_ms: int) -> list[object] | None:
        """Returns the next message as it is compared, or None."""
        consumer = self._consumers[on]
        try:
            if isinstance(consumer, pulsar.Reader):
                came = consumer.read_next(within_ms)
            else:
                came = consumer.receive(within_ms)
        except pulsar.Timeout:
            return None
        self._received[on].append(came)
        return messages.observed(came, self._ids)

    def ack(self, on: str, which: list[int]) -> object:
        """Acks by the places of messages in the last receive."""
        taken = self._received[on]
        acked = [index for index in which if index < len(taken)]
        for index in acked:
            self._consumers[on].acknowledge(taken[index])
        return len(acked)

    def ack_all(self, on: str) -> object:
        return self.ack(on, list(range(len(self._received[on]))))

    def ack_cumulative(self, on: str, which: int) -> object:
        taken = self._received[on]
        if taken:
            self._consumers[on].acknowledge_cumulative(taken[min(which, len(taken) - 1)])
        return bool(taken)

    def nack(self, on: str, which: list[int]) -> object:
        taken = self._received[on]
        for index in which:
            if index < len(taken):
                self._consumers[on].negative_acknowledge(taken[index])
        return "sent"

    def redeliver(self, on: str) -> object:
        self._consumers[on].redeliver_unacknowledged_messages()
        return "sent"

    def seek(self, on: str, to: Any) -> object:
        """Seeks to an end, a message by its payload, or a time in milliseconds."""
        target = to if isinstance(to, int) else ENDS.get(to) or self._ids.by_payload[to]
        self._consumers[on].seek(target)
        return "sought"

    def last_id(self, on: str) -> object:
        consumer = self._consumers[on]
        return self._ids.name(
            consumer.topic(), pulsar.MessageId.wrap(consumer.get_last_message_id())
        )

    def has_more(self, on: str) -> object:
        return self._consumers[on].has_message_available()

    def unsubscribe(self, on: str) -> object:
        self._consumers[on].unsubscribe()
        return "unsubscribed"

    def close(self, on: str) -> object:
        (self._consumers.pop(on, None) or self._producers.pop(on)).close()
        return "closed"


def _schema(definition: list[Any]) -> Any:
    """Makes a schema of `[KIND, {field: TYPE}]`, or of `[KIND]` for a primitive one."""
    kind, fields = definition[0], definition[1] if len(definition) > 1 else None
    if fields is None:
        return {"string": schema.StringSchema, "bytes": schema.BytesSchema}[kind]()
    record = type("R", (schema.Record,), {name: _field(each) for name, each in fields.items()})
    return {"json": schema.JsonSchema, "avro": schema.AvroSchema}[kind](record)


def _field(text: str) -> Any:
    """Makes a field of `TYPE`, `TYPE?` if optional, `TYPE=DEFAULT` with a default."""
    kinds = {"int": schema.Integer, "string": schema.String, "double": schema.Double}
    name, _, default = text.partition("=")
    optional = name.endswith("?")
    kind = kinds[name.rstrip("?")]
    if default:
        return kind(default=int(default) if kind is schema.Integer else default, required=True)
    return kind() if optional else kind(required=True)
