"""Transactional clients of the simulation: movers, and readers of the moved messages.

A mover does what official clients do: it finds its coordinators by look-ups, adds topics and its
subscription to a transaction, sends, acks, and ends it. An END_TXN without an answer is repeated on
another connection. Some transactions are aborted, some are left to their timeout, and some are
committed several at once. `txn_history` has the rules.
"""

import asyncio
import contextlib
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.client import PASSING, Refused, Wire
from tests.sim.plan import TopicPlan
from tests.sim.txn_attachments import PERMITS, Subscriber, TargetProducer, ask
from tests.sim.txn_history import Attempt, Item, TxnHistory
from tests.sim.workload import BACKOFF_S, EXCLUSIVE, FAILOVER

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.metadata.operations import Change
from magnetar.transactions.records import PREFIX, decode_head
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

if TYPE_CHECKING:
    from tests.sim.world import World

ASSIGN: Final = "persistent://pulsar/system/transaction_coordinator_assign"
SOURCE: Final = "persistent://public/default/moved"
TARGETS: Final = ("persistent://public/default/to0", "persistent://public/default/to1")
MOVE: Final = "move"
READ: Final = "read"
AUDIT: Final = "audit"
LATE: Final = "late"
COORDINATORS: Final = (0, 1, 2)
RECEIPT_S_MAX: Final = 8.0
PATIENCE_S: Final = (0.03, 0.3, RECEIPT_S_MAX, RECEIPT_S_MAX, RECEIPT_S_MAX)
"""How long a mover waits for its sends and acks before it aborts."""
LATE_CHANCE: Final = 0.15
IDLE_S: Final = 0.5
KEPT_S_MIN: Final = 400
"""Outcomes that are kept for longer are kept for the whole run."""
ERRORS: Final = (Refused, *PASSING)

RETRIED: Final = (pb.ServerError.TransactionCoordinatorNotFound, pb.ServerError.ServiceNotReady)
OVER: Final = pb.ServerError.InvalidTxnStatus


class Reader(Subscriber):
    """Reads a target; acks messages only on the subscription `READ`."""

    def __init__(
        self, world: "World", history: TxnHistory, topic: str, subscription: str, kind: int
    ) -> None:
        super().__init__(world.client_of_its_own(), topic, subscription, kind)
        self.rng = world.new_rng()
        self.seen: list[tuple[tuple[int, int], bytes]] = []
        """What this session got."""
        self._history = history
        self._of = history.reader(topic, subscription)
        self._acking: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        while True:
            self.gone.clear()
            self.seen = []
            try:
                await self.attach()
                if self.subscription == AUDIT:
                    self._history.kept_from.setdefault(self.topic, self._history.now())
                await self.gone.wait()
            except ERRORS:
                pass
            self.leave()
            await asyncio.sleep(self.rng.uniform(*BACKOFF_S))

    def received(self, position: tuple[int, int], payloads: dict[int, bytes], size: int) -> None:
        history = self._history
        if self.kind == EXCLUSIVE and self.seen and position <= self.seen[-1][0]:
            history.violated(f"{self._of.name}: {position} came after {self.seen[-1][0]}")
        for payload in payloads.values():
            self.seen.append((position, payload))
            number, _, text = payload.decode().partition("|")
            if number == "plain":
                history.plain_delivered(self.topic, self._of, text)
                history.acks_hold(self._of, position, self.subscribed_at)
            else:
                ledger_id, entry_id, index = map(int, text.split(":"))
                output = (self.topic, int(number), (ledger_id, entry_id, index))
                history.delivered(self._of, output, position, self.subscribed_at)
        if self.subscription == READ and self.wire is not None:
            task = asyncio.get_running_loop().create_task(self._ack(self.wire, position))
            self._acking.add(task)
            task.add_done_callback(self._acking.discard)

    async def _ack(self, wire: Wire, position: tuple[int, int]) -> None:
        command = pb.CommandAck(consumer_id=self.number, ack_type=pb.CommandAck.Individual)
        command.message_id.add(ledgerId=position[0], entryId=position[1])
        with contextlib.suppress(*ERRORS):
            await ask(wire, CommandType.ACK, command)
            self._of.acked.setdefault(position, self._history.now())


class Mover(Subscriber):
    """Moves messages from the source to the targets in transactions."""

    def __init__(self, world: "World", history: TxnHistory, number: int) -> None:
        client, permits = world.client_of_its_own(), world.rng.choice((3, PERMITS))
        super().__init__(client, SOURCE, MOVE, world.plan.txn.source_kind, permits)
        self.world, self.plan, self.history = world, world.plan.txn, history
        self.rng: Random = world.new_rng()
        self.queue: dict[Item, int] = {}
        """What is to be moved, with the size of its batch."""
        self._arrived = asyncio.Event()
        self._cumulative = self.kind == EXCLUSIVE and self.plan.cumulative
        self._newest = (-1, -1)
        self._rewound = False
        """Whether this session got earlier messages again: the broker does this when a transaction
        of an earlier session, which had acked them cumulatively, is aborted."""
        self._producers = [
            TargetProducer(self._client, topic, f"mover{number}") for topic in TARGETS
        ]
        self._plain = 0
        self._number = number

    async def run(self) -> None:
        while True:
            self.queue.clear()
            self.gone.clear()
            self._newest, self._rewound = (-1, -1), False
            try:
                await self.attach()
                for producer in self._producers:
                    await producer.attach()
                while self.wire is not None:
                    await self._move()
            except ERRORS:
                pass
            self.leave()
            for producer in self._producers:
                producer.leave()
            await asyncio.sleep(self.rng.uniform(*BACKOFF_S))

    def received(self, position: tuple[int, int], payloads: dict[int, bytes], size: int) -> None:
        items = {(*position, index): size for index in payloads}
        self.history.taken(items, self.subscribed_at)
        self._rewound = self._rewound or position <= self._newest
        self._newest = max(self._newest, position)
        self.queue.update(items)
        self._arrived.set()

    async def _move(self) -> None:
        """One transaction, or a rest."""
        rng, calm = self.rng, self.world.habits.calm
        if not self.queue:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_S):
                    await self._arrived.wait()
            return
        if rng.random() < self.plan.plain_chance:
            await self._send_plain()
        items = dict(list(self.queue.items())[: rng.choice((1, 1, 2, 5, 20))])
        for item in items:
            del self.queue[item]
        shares = self._shares(items)
        attempts = await self._begin(len(shares))
        try:
            async with asyncio.timeout(RECEIPT_S_MAX if calm else rng.choice(PATIENCE_S)):
                for attempt, share in zip(attempts, shares, strict=True):
                    await self._fill(attempt, share)
        except ERRORS:
            await self._abort(attempts)
            raise
        fate = 1.0 if calm else rng.random()
        if fate < self.plan.leave_chance:
            return  # its timeout ends it
        commit = fate >= self.plan.leave_chance + self.plan.abort_chance
        await asyncio.sleep(rng.expovariate(1.0) * self.plan.pace_s)
        if self._cumulative and self._rewound:
            # Its ack would also cover the earlier messages, which it has not moved.
            await self._abort(attempts)
            raise ConnectionError("the messages come again, from an earlier one on")
        if commit:
            await self._end(attempts[0], commit=True)
        else:
            await self._abort(attempts)
        attempt = rng.choice(attempts) if len(attempts) > 1 else attempts[0]
        over = attempt.committed is not None and not attempt.refused
        if over and rng.random() < LATE_CHANCE:
            await self._send_late(attempt)
        if attempt.committed is not True and self._cumulative:
            raise ConnectionError("the messages come again, from the first one on")

    async def _send_plain(self) -> None:
        producer = self.rng.choice(self._producers)
        text = f"{self._number}:{self._plain}"
        self._plain += 1
        async with asyncio.timeout(RECEIPT_S_MAX):
            await producer.send(f"plain|{text}".encode(), None)
        self.history.plain[producer.topic].add(text)

    async def _send_late(self, attempt: Attempt) -> None:
        """Sends a message of an ended transaction, which must be refused."""
        producer = self.rng.choice(self._producers)
        try:
            async with asyncio.timeout(RECEIPT_S_MAX):
                await producer.send(b"late|", attempt.txn)
        except Refused:
            return
        self.history.violated(f"{producer.topic} took a message of {attempt.name} after its end")

    def _shares(self, items: dict[Item, int]) -> list[dict[Item, int]]:
        """The items of each transaction: one, unless several are to be committed at once."""
        if self._cumulative or not self.plan.joint_chance:
            return [items]
        if self.rng.random() >= self.plan.joint_chance:
            return [items]
        count = self.rng.choice((2, 3))
        shares: list[dict[Item, int]] = [{} for _ in range(count)]
        entries: dict[tuple[int, int], int] = {}
        for item, size in items.items():
            shares[entries.setdefault(item[:2], len(entries)) % count][item] = size
        return [share for share in shares if share]

    async def _begin(self, count: int) -> list[Attempt]:
        """Begins transactions of one coordinator; returns the newest first, which leads."""
        coordinator = self.rng.choice(COORDINATORS)
        attempts: list[Attempt] = []
        try:
            for _ in range(count):
                attempts.append(await self._begin_one(coordinator))
        except ERRORS:
            await self._abort(attempts)
            raise
        attempts.reverse()  # so that the others may time out before it
        if count > 1:
            for attempt in attempts:
                attempt.group = attempts
        return attempts

    async def _begin_one(self, coordinator: int) -> Attempt:
        command = pb.CommandNewTxn(
            tc_id=coordinator, txn_ttl_millis=round(self.plan.timeout_s * 1000)
        )
        wire = await self._coordinator(coordinator)
        asked_at = self.history.now()  # the timeout counts from the request
        answer = await wire.request(CommandType.NEW_TXN, command)
        if answer.txnid_most_bits != coordinator:  # Java's client would wait for another answer
            self.history.violated(f"NEW_TXN at coordinator {coordinator} got the answer {answer}")
        if answer.HasField("error"):
            raise Refused(answer.error, answer.message)
        txn = answer.txnid_most_bits, answer.txnid_least_bits
        return self.history.begin(txn, asked_at)

    async def _coordinator(self, coordinator: int) -> Wire:
        wire = await self._client.broker_of(f"{ASSIGN}-partition-{coordinator}")
        command = pb.CommandTcClientConnectRequest(tc_id=coordinator)
        await ask(wire, CommandType.TC_CLIENT_CONNECT_REQUEST, command)
        return wire

    async def _fill(self, attempt: Attempt, items: dict[Item, int]) -> None:
        """Sends and acks, in either order or concurrently."""
        way = self.rng.random()
        if way < 0.4:
            await self._send(attempt, items)
            await self._ack(attempt, items)
        elif way < 0.7:
            await self._ack(attempt, items)
            await self._send(attempt, items)
        else:
            done = await asyncio.gather(
                self._send(attempt, items), self._ack(attempt, items), return_exceptions=True
            )
            for error in done:
                if error is not None:
                    raise error

    async def _send(self, attempt: Attempt, items: dict[Item, int]) -> None:
        wire = await self._coordinator(attempt.txn[0])
        command = pb.CommandAddPartitionToTxn(partitions=TARGETS, **_ids(attempt))
        await ask(wire, CommandType.ADD_PARTITION_TO_TXN, command)
        sent = []
        for item in items:
            for producer in self._producers:
                output = (producer.topic, attempt.number, item)
                text = f"{attempt.number}|{':'.join(map(str, item))}"
                sent.append((output, producer.send(text.encode(), attempt.txn)))
        receipts = await asyncio.gather(*(done for _, done in sent), return_exceptions=True)
        for (output, _), error in zip(sent, receipts, strict=True):
            if error is None:
                attempt.outputs.add(output)
        for error in receipts:
            if error is not None:
                raise error

    async def _ack(self, attempt: Attempt, items: dict[Item, int]) -> None:
        wire = await self._coordinator(attempt.txn[0])
        used = pb.Subscription(topic=SOURCE, subscription=MOVE)
        command = pb.CommandAddSubscriptionToTxn(subscription=[used], **_ids(attempt))
        await ask(wire, CommandType.ADD_SUBSCRIPTION_TO_TXN, command)
        if self.wire is None:
            raise ConnectionError("connection lost")
        by_entry: dict[tuple[int, int], tuple[int, int]] = {}
        for (ledger_id, entry_id, index), size in items.items():
            left, _ = by_entry.get((ledger_id, entry_id), ((1 << size) - 1, size))
            by_entry[ledger_id, entry_id] = left & ~(1 << index), size
        kind = pb.CommandAck.Individual
        if self._cumulative:
            kind, last = pb.CommandAck.Cumulative, max(by_entry)
            first = min(item[2] for item in items if item[:2] == last)
            left, size = by_entry[last]
            by_entry = {last: (left & ~((1 << first) - 1), size)}
        ack = pb.CommandAck(consumer_id=self.number, ack_type=kind, **_ids(attempt))
        for (ledger_id, entry_id), (left, size) in by_entry.items():
            id_ = ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
            if size > 1:
                id_.ack_set.extend(_words(left) or [0])
                id_.batch_size = size  # as Java's client does
        await ask(self.wire, CommandType.ACK, ack)
        attempt.items.update(items)
        attempt.acked_at = self.history.now()

    async def _abort(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            await self._end(attempt, commit=False)

    async def _end(self, attempt: Attempt, *, commit: bool) -> None:
        """Ends the transaction; repeats the request until it is answered.

        A commit also commits the others of its group.
        """
        ended = attempt.group or [attempt] if commit else [attempt]
        joined = [one.txn[1] for one in ended[1:]]
        for one in ended:
            one.commit_sent = one.commit_sent or commit
            one.end_sent = True
        action = pb.TxnAction.COMMIT if commit else pb.TxnAction.ABORT
        asked: set[Wire] = set()
        while True:
            try:
                wire = await self._coordinator(attempt.txn[0])
                is_first = wire not in asked
                asked.add(wire)
                command = pb.CommandEndTxn(
                    txn_action=action, joined_least_bits=joined, **_ids(attempt)
                )
                cut_s = self.world.habits.cut_s(self.rng)
                await ask(wire, CommandType.END_TXN, command, cut_s=cut_s)
            except Refused as refused:
                if refused.code in (OVER, pb.ServerError.TransactionNotFound) and joined:
                    # One of them has ended, so none is committed; the others are still open.
                    await self._abort(ended)
                    return
                if refused.code == OVER:
                    attempt.refused = True
                    self.history.ended(attempt, committed=not commit)
                    return
                if refused.code == pb.ServerError.TransactionNotFound:
                    if is_first and self.history.outcomes_kept:
                        self.history.violated(f"the end of {attempt.name}: {refused}")
                    return
                if refused.code not in RETRIED:
                    self.history.violated(f"the end of {attempt.name}: {refused}")
                    return
            except PASSING:
                pass
            else:
                for one in ended:
                    self.history.ended(one, committed=commit)
                if commit and any(one.items for one in ended):
                    self.world.habits.on_ack_receipt(SOURCE)
                return
            await asyncio.sleep(self.rng.uniform(*BACKOFF_S))


class Transactions:
    """The transactional clients of one run."""

    def __init__(self, world: "World") -> None:
        self.world, self.plan = world, world.plan.txn
        self.history = TxnHistory(world.loop.time, world.history.violated)
        if not any("clock" in fault.kind for fault in world.plan.faults):
            self.history.pending_s = self.plan.timeout_s / 2
            self.history.outcomes_kept = self.plan.retention_s > KEPT_S_MIN
        self.readers: list[Reader] = []
        self.movers: list[Mover] = []
        world.metadata.watching.on_change.append(self._changed)

    def _changed(self, change: Change) -> None:
        """Follows the epochs of coordinators."""
        coordinator = change.key.removeprefix(PREFIX)
        if change.after is not None and change.key.startswith(PREFIX) and coordinator.isdecimal():
            head = decode_head(change.key, change.after.value)
            self.history.epochs[int(coordinator)] = head.epoch

    async def start(self) -> None:
        """Begins once the coordinators and the source's subscription exist."""
        world, rng = self.world, self.world.rng
        setup = Mover(world, self.history, -1)
        await rng.choice(world.clients).start(self._prepare(setup), "transactions")
        kind = self.plan.source_kind
        for number in range(1 if kind == EXCLUSIVE else 2):
            self.movers.append(mover := Mover(world, self.history, number))
            rng.choice(world.clients).start(mover.run(), f"mover {number}")
        for topic in TARGETS:
            kind = self.plan.reader_kind
            count = 1 if kind in (EXCLUSIVE, FAILOVER) else 2
            readers = [Reader(world, self.history, topic, READ, kind) for _ in range(count)]
            readers.append(Reader(world, self.history, topic, AUDIT, EXCLUSIVE))
            for reader in readers:
                self._read(reader)
        plan = TopicPlan(
            name=SOURCE,
            subscriptions=(),
            audited=False,
            producers=1,
            messages=self.plan.messages,
            pace_s=max(world.plan.fault_phase_s, 6.0) / self.plan.messages,
            size_bytes=20,
        )
        world.produce(plan, "source", rng)

    def _read(self, reader: Reader) -> None:
        self.readers.append(reader)
        self.world.rng.choice(self.world.clients).start(reader.run(), f"reader {reader.topic}")

    def look_again(self) -> None:
        """New subscriptions read the targets from their first message on."""
        for topic in TARGETS:
            self._read(Reader(self.world, self.history, topic, LATE, EXCLUSIVE))

    async def _prepare(self, setup: Mover) -> None:
        """Makes the assign topic, and the subscription before the first message of the source."""
        while True:
            try:
                client = setup._client
                wire = await client.wire(client.services[0])
                command = pb.CommandPartitionedTopicMetadata(topic=ASSIGN)
                answer = await wire.request(CommandType.PARTITIONED_METADATA, command)
                if answer.partitions:
                    await setup.attach()
                    setup.leave()
                    return
            except ERRORS:
                pass
            await asyncio.sleep(0.3)

    def topics(self) -> tuple[str, ...]:
        """The topics besides that of a producer of the workload."""
        return TARGETS

    def _items(self) -> list[Item]:
        """Every message of the source with a receipt."""
        topic = self.world.history.topics.get(SOURCE)
        sent = () if topic is None else topic.sent.values()
        return [(*one.receipt, one.index) for one in sent if one.receipt is not None]

    def missing(self) -> str:
        """What is not done yet; nothing once all is."""
        lack = self.history.missing(self._items())
        for reader in self.readers:
            if not lack and reader.wire is None:
                lack = f"{reader.topic}/{reader.subscription} has no reader"
            if not lack and reader.subscription != READ:
                lack = self._unread(reader)
        return lack or self._unfinished()

    def _unread(self, reader: Reader) -> str:
        """What the present session of an audit has not got, or should not have."""
        history = self.history
        got = {payload for _, payload in reader.seen}
        for attempt in history.attempts:
            for topic, number, item in attempt.outputs if history.took_effect(attempt) else ():
                payload = f"{number}|{':'.join(map(str, item))}".encode()
                if history.may_be_trimmed(topic, (topic, number, item)):
                    continue
                if topic == reader.topic and payload not in got:
                    return f"{reader.topic}: the audit lacks {payload!r} of {attempt.name}"
        return ""

    def _unfinished(self) -> str:
        """What brokers still hold: nothing, once all transactions have ended."""
        for node in self.world.brokers:
            for topic in node.service.topics if node.alive and node.service is not None else ():
                if not isinstance(topic, PersistentTopic) or not topic.serving:
                    continue
                if topic.full_name not in (SOURCE, *TARGETS):
                    continue
                where = f"{topic.full_name} on {node.name}"
                if topic.managed_ledger.horizon is not None:
                    return f"{where} is held back at {topic.managed_ledger.horizon}"
                if topic.transactional and len(topic.transactions.buffer):
                    return f"{where} has {len(topic.transactions.buffer)} open transactions"
                for name, subscription in topic.subscriptions.items():
                    if name in (MOVE, READ):
                        if subscription.cursor.pending is not None:
                            return f"{where}/{name} has pending acks"
                        if subscription.backlog:
                            return f"{where}/{name} has a backlog of {subscription.backlog}"
        return ""

    def check(self) -> None:
        """The rules that are held to at the end."""
        self.history.check()
        counts = self.world.watching.counts
        for attempt in self.history.attempts:
            outcome = {True: "committed", False: "aborted", None: "unknown"}[attempt.committed]
            counts[f"a transaction was {outcome}"] += 1
            if attempt.group and attempt is attempt.group[0]:
                counts[f"a joint commit was {outcome}"] += 1


def _ids(attempt: Attempt) -> dict[str, Any]:
    return {"txnid_most_bits": attempt.txn[0], "txnid_least_bits": attempt.txn[1]}


def _words(bits: int) -> list[int]:
    words = []
    while bits:
        word = bits & (1 << 64) - 1
        words.append(word - (1 << 64) if word >> 63 else word)
        bits >>= 64
    return words
