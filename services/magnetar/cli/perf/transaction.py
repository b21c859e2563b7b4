"""`magnetar perf transaction`: transactions that acknowledge and send messages."""

import argparse
import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from magnetar.cli.messages import connection
from magnetar.cli.messages.errors import FAILED, UsageFailed
from magnetar.cli.messages.pacing import Pacer
from magnetar.cli.perf import flags, lines
from magnetar.cli.perf.histogram import Histogram
from magnetar.cli.perf.meter import Meter, latency_document
from magnetar.cli.perf.tasks import until_over

if TYPE_CHECKING:
    from magnetar.client.client import Client
    from magnetar.client.consumer.consumer import Consumer
    from magnetar.client.message import Message
    from magnetar.client.producer.producer import Producer
    from magnetar.client.transaction.transaction import Transaction

    Taken = list[tuple[Consumer[Any], Message[Any]]]

PAYLOAD: Final = bytes(1024)
"""What transactions send, as in pulsar-perf."""
FAILURE_PAUSE_S: Final = 0.1
"""After a transaction that could not begin, so that a broker without them is not flooded."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of pulsar-perf transaction."""
    flags.add_common(parser, topics=False)
    flags.add_subscriptions(parser, position="Earliest", kind="Shared")
    add = parser.add_argument
    add("--topics-c", action="append", metavar="TOPIC", help="to consume (test-consume)")
    add("--topics-p", action="append", metavar="TOPIC", help="to produce (test-produce)")
    add("-threads", "--num-test-threads", type=int, default=1, metavar="N", help="at a time (1)")
    add(
        *("-nmc", "--numMessage-perTransaction-consume"), dest="consumed", type=int, default=1,
        metavar="N", help="messages of each consumer that a transaction acknowledges (1)",
    )  # fmt: skip
    add(
        *("-nmp", "--numMessage-perTransaction-produce"), dest="produced", type=int, default=1,
        metavar="N", help="messages that a transaction sends to each topic (1)",
    )  # fmt: skip
    add("-ntxn", "--number-txn", type=int, default=0, metavar="N", help="end after N")
    add("-txnRate", dest="txn_rate", type=float, default=0.0, metavar="N", help="at most N/s")
    add("-tto", "--txn-timeout", type=float, default=5.0, metavar="S", help="(5)")
    add("-abort", action="store_true", help="abort transactions")
    add("--txn-disable", action="store_true", help="the same without transactions")
    add("-np", "--partitions", type=int, default=0, metavar="N", help="create topics with N")
    add("-au", "--admin-url", metavar="URL", help="the admin REST, for --partitions")


@dataclass
class Outcomes:
    """Counts of a run."""

    opened: int = 0
    not_opened: int = 0
    ended: int = 0
    not_ended: int = 0
    acks_failed: int = 0
    sends_failed: int = 0
    acks: int = 0
    sends: int = 0
    send_latencies: Histogram = field(default_factory=Histogram)
    ack_latencies: Histogram = field(default_factory=Histogram)
    recent_sends: Histogram = field(default_factory=Histogram)
    """Latencies since the last line of the log."""
    recent_acks: Histogram = field(default_factory=Histogram)

    def roll(self) -> tuple[Histogram, Histogram]:
        """Returns the recent latencies of sends and acks, and adds them to those of the run."""
        recent = self.recent_sends, self.recent_acks
        self.send_latencies.add(self.recent_sends)
        self.ack_latencies.add(self.recent_acks)
        self.recent_sends, self.recent_acks = Histogram(), Histogram()
        return recent


async def work(args: argparse.Namespace) -> int:
    """Runs transactions until the end of the run; returns the exit code."""
    from magnetar.cli.perf.produce import create_partitions

    if args.num_test_threads < 1 or args.consumed < 0 or args.produced < 0:
        raise UsageFailed("-threads is at least 1, -nmc and -nmp at least 0")
    if args.txn_disable and args.abort:
        raise UsageFailed("-abort needs transactions: leave --txn-disable out")
    to_consume = args.topics_c or ["test-consume"]
    to_produce = args.topics_p or ["test-produce"]
    await asyncio.to_thread(create_partitions, args, [*to_consume, *to_produce])
    meter = Meter(limit=args.number_txn, duration_s=args.test_time, as_json=args.json)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            connection.client_of(args, **flags.client_keywords(args))
        )
        run = _Run(args, client, meter)
        for _ in range(args.num_test_threads):
            run.lanes.append(await _lane(args, client, stack, to_consume, to_produce))
        await run.measure()
    return _total(args, run.outcomes, meter)


async def _lane(
    args: argparse.Namespace,
    client: "Client",
    stack: AsyncExitStack,
    to_consume: list[str],
    to_produce: list[str],
) -> "tuple[list[Consumer[Any]], list[Producer[Any]]]":
    from magnetar.client.options import InitialPosition, SubscriptionType

    consumers = [
        await stack.enter_async_context(
            client.consumer(
                topic,
                name,
                type=SubscriptionType[args.subscription_type.upper()],
                initial_position=InitialPosition[args.subscription_position.upper()],
                receiver_queue_size=args.receiver_queue_size,
                replicate_subscription=args.replicated,
                ack_receipt=True,
            )
        )
        for topic in to_consume
        for name in flags.subscriptions_of(args)
    ]
    producers = [
        await stack.enter_async_context(client.producer(topic, send_timeout_s=0.0))
        for topic in to_produce
    ]
    return consumers, producers


def _total(args: argparse.Namespace, outcomes: Outcomes, meter: Meter) -> int:
    enabled = not args.txn_disable
    outcomes.roll()
    meter.total(
        lines.total_transactions(
            meter.messages,
            meter.messages / meter.elapsed_s,
            (outcomes.opened, outcomes.not_opened, outcomes.ended, outcomes.not_ended),
            (outcomes.acks_failed, outcomes.sends_failed, outcomes.acks, outcomes.sends),
            enabled=enabled,
        ),
        lines.total_latency(outcomes.ack_latencies, "Messages ack aggregated"),
        lines.total_latency(outcomes.send_latencies, "Messages send aggregated"),
        opened=outcomes.opened,
        notOpened=outcomes.not_opened,
        ended=outcomes.ended,
        notEnded=outcomes.not_ended,
        acks=outcomes.acks,
        acksFailed=outcomes.acks_failed,
        sends=outcomes.sends,
        sendsFailed=outcomes.sends_failed,
        ackLatencyMs=latency_document(outcomes.ack_latencies),
        sendLatencyMs=latency_document(outcomes.send_latencies),
    )
    failures = (
        outcomes.not_opened + outcomes.not_ended + outcomes.acks_failed + outcomes.sends_failed
    )
    return FAILED if failures else 0


class _Run:
    """Runs one transaction after the other in each lane."""

    def __init__(self, args: argparse.Namespace, client: "Client", meter: Meter) -> None:
        self._args = args
        self._client = client
        self._meter = meter
        self._pacer = Pacer(args.txn_rate) if args.txn_rate else None
        self._begun = 0
        self.outcomes = Outcomes()
        self.lanes: list[tuple[list[Consumer[Any]], list[Producer[Any]]]] = []

    async def measure(self) -> None:
        """Returns when the run is over or a signal has ended it."""
        await until_over(
            [self._loop(*lane) for lane in self.lanes],
            self._meter.report(self._args.interval, self._line),
            duration_s=self._args.test_time,
        )

    def _line(self, total: int, rate: float, *_: object) -> str:
        sends, acks = self.outcomes.roll()
        return lines.transactions(total, rate, sends, acks, enabled=not self._args.txn_disable)

    async def _loop(
        self, consumers: "list[Consumer[Any]]", producers: "list[Producer[Any]]"
    ) -> None:
        limit = self._args.number_txn
        while not (limit and self._begun >= limit):
            self._begun += 1
            if self._pacer is not None:
                await self._pacer.wait()
            # Before the transaction begins, so that it does not time out while topics are empty.
            messages = [
                (consumer, await consumer.receive())
                for consumer in consumers
                for _ in range(self._args.consumed)
            ]
            started = time.monotonic()
            if await self._one(messages, producers):
                self._meter.done(0, round((time.monotonic() - started) * 1e6))

    async def _one(self, messages: "Taken", producers: "list[Producer[Any]]") -> bool:
        """Runs a transaction, or its work without one; returns whether it has ended as wanted."""
        from magnetar.client.errors import ClientError

        if self._args.txn_disable:
            return await self._body(messages, producers, None)
        try:
            transaction = await self._client.transaction(self._args.txn_timeout)
        except ClientError as error:
            self.outcomes.not_opened += 1
            self._meter.failures += 1
            self._meter.print(f"Failed to new transaction with exception: {error}")
            await asyncio.sleep(FAILURE_PAUSE_S)
            return False
        self.outcomes.opened += 1
        try:
            done = await self._body(messages, producers, transaction)
            if self._args.abort or not done:
                await transaction.abort()
            else:
                await transaction.commit()
        except ClientError as error:
            self.outcomes.not_ended += 1
            self._meter.failures += 1
            self._meter.print(f"Transaction failed: {error}")
            return False
        self.outcomes.ended += 1
        return done

    async def _body(
        self,
        messages: "Taken",
        producers: "list[Producer[Any]]",
        transaction: "Transaction | None",
    ) -> bool:
        from magnetar.client.errors import ClientError

        outcomes = self.outcomes
        for consumer, message in messages:
            started = time.monotonic()
            try:
                await consumer.ack(message, transaction=transaction)
            except ClientError:
                outcomes.acks_failed += 1
                return False
            outcomes.acks += 1
            outcomes.recent_acks.record(round((time.monotonic() - started) * 1e6))
        for producer in producers:
            for _ in range(self._args.produced):
                started = time.monotonic()
                try:
                    await producer.send(PAYLOAD, transaction=transaction)
                except ClientError:
                    outcomes.sends_failed += 1
                    return False
                outcomes.sends += 1
                outcomes.recent_sends.record(round((time.monotonic() - started) * 1e6))
        return True
