"""Random joins, leaves, flows, acks, nacks, appends and skips, and what must hold after each.

Always: no consumer is overdrawn by more than one batch; what it holds is what the subscription
counts; nothing acknowledged is sent; an entry of a Shared type is outstanding at one consumer only,
and a key of Key_Shared too; a key's (or a single active consumer's) messages are first seen in
order. At the end, when everybody takes and acknowledges everything: nothing was lost, the backlog
is 0 and nothing waits.
"""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import SubType
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.wire.entry import parse_metadata, payload_of

BATCH_MAX = 4
PERMITS_AT_END = 1_000_000
LIMITS = SubscriptionLimits(
    max_unacked_per_consumer=14,
    max_unacked_per_subscription=30,
    failover_switch_delay_s=0.0,
    read_entries_min=2,
    read_entries_max=8,
    round_robin_entries_max=3,
    look_ahead_per_consumer=5,
    look_ahead_per_subscription=12,
)
pick = st.integers(min_value=0, max_value=1_000)


class DeliveryMachine(RuleBasedStateMachine):
    sub_type: ClassVar[SubType]
    open_rig: ClassVar[
        Callable[..., Any]
    ]  # set from the fixture's factory, see the end of the file

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.failures: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.failures.append(context))
        self.keys = {}
        self.sizes = {}
        self.acked = set()
        self.attached = []
        self.joined = 0
        self.first_seen = {}
        self.seen = set()
        self.skipped = set()

    @initialize(cached=st.booleans(), rollover=st.booleans())
    def begin(self, cached, rollover):
        ledger_settings = ManagedLedgerSettings(
            cache_bytes_max=64 << 20 if cached else 0,
            rollover_entries_max=7 if rollover else 50_000,
            rollover_ms_min=0 if rollover else 600_000,
        )
        self.opened = self.open_rig(ledger_settings)
        self.rig = self.run(anext(self.opened))
        self.subscription = self.run(self.rig.subscription(limits=LIMITS))

    def run(self, awaitable):
        result = self.loop.run_until_complete(awaitable)
        assert not self.failures, self.failures
        return result

    def settle(self):
        self.run(self.rig.settle())

    def call(self, function, *args):
        """Calls it on the loop, and waits until the loop is idle."""

        async def called():
            function(*args)
            await self.rig.settle()

        self.run(called())

    # -- what happens

    @rule(entries=st.lists(st.tuples(st.integers(0, 5), st.integers(1, BATCH_MAX)), max_size=12))
    def append(self, entries):
        if entries:
            made = [
                self.rig.make_entry(f"{size}", key=f"k{key}", batch=size if size > 1 else None)
                for key, size in entries
            ]
            positions = self.run(self.rig.publish(*made))
            for position, (key, size) in zip(positions, entries, strict=True):
                assert self.keys.setdefault(position, f"k{key}") == f"k{key}"
                assert self.sizes.setdefault(position, size) == size
            self.settle()

    @precondition(lambda self: self.sub_type is SubType.Shared)
    @rule(count=st.integers(2, 5))
    def append_chunked(self, count):
        uuid = f"u{len(self.keys)}"
        for index in range(count):
            entry = self.rig.make_entry("1", key=uuid, chunk=(uuid, index, count))
            (position,) = self.run(self.rig.publish(entry))
            assert self.keys.setdefault(position, uuid) == uuid
            assert self.sizes.setdefault(position, 1) == 1
            if index % 2:
                self.settle()
        self.settle()

    @precondition(lambda self: len(self.attached) < 4)
    @rule(priority=st.integers(0, 1), permits=st.integers(0, 20))
    def join(self, priority, permits):
        if self.sub_type is SubType.Exclusive and self.attached:
            return
        self.joined += 1
        member = Member(self, f"c{self.joined}", priority)
        self.run(self.subscription.add_consumer(member.consumer))
        self.attached.append(member)
        if permits:
            self.call(self.subscription.flow, member.consumer, permits)
        self.settle()

    @precondition(lambda self: self.attached)
    @rule(which=pick)
    def leave(self, which):
        member = self.attached.pop(which % len(self.attached))
        member.held.clear()
        member.gone = True
        self.call(self.subscription.remove_consumer, member.consumer)

    @precondition(lambda self: self.attached)
    @rule(which=pick, permits=st.integers(1, 30))
    def flow(self, which, permits):
        self.call(
            self.subscription.flow, self.attached[which % len(self.attached)].consumer, permits
        )

    @precondition(lambda self: self.attached)
    @rule(which=pick)
    def socket_fills_or_drains(self, which):
        member = self.attached[which % len(self.attached)]
        member.sink.writable = not member.sink.writable
        if member.sink.writable:
            self.call(self.subscription.on_writable, member.consumer)

    @precondition(lambda self: any(member.held for member in self.attached))
    @rule(which=pick, data=st.data())
    def ack(self, which, data):
        member = self.holder(which)
        chosen = data.draw(st.lists(st.sampled_from(list(member.held)), max_size=8, unique=True))
        self.acked.update(chosen)
        if len(chosen) == 1:
            member.held.pop(chosen[0])
            self.call(self.subscription.ack_one, member.consumer, *chosen[0])
        else:
            for position in chosen:
                member.held.pop(position)
            acks = [(*each, None, 0) for each in chosen]
            self.call(self.subscription.ack, member.consumer, acks)

    @precondition(lambda self: any(member.held for member in self.attached))
    @rule(which=pick, data=st.data())
    def ack_part(self, which, data):
        member = self.holder(which)
        position = data.draw(st.sampled_from(list(member.held)))
        size = self.sizes[position]
        left = data.draw(st.integers(0, (1 << size) - 1))
        member.held[position] &= left
        if not member.held[position]:
            del member.held[position]
            self.acked.add(position)
        self.call(self.subscription.ack, member.consumer, [(*position, left, size)])

    @precondition(lambda self: not self.sub_type.individual_only and self.attached)
    @rule(which=pick, data=st.data())
    def ack_cumulative(self, which, data):
        member = self.holder(which)
        if member.held:
            upto = data.draw(st.sampled_from(list(member.held)))
            self.forget_up_to(upto)
            self.call(self.subscription.ack, member.consumer, [(*upto, None, 0)], True)

    @precondition(lambda self: any(member.held for member in self.attached))
    @rule(which=pick, data=st.data(), everything=st.booleans())
    def nack(self, which, data, everything):
        member = self.holder(which)
        chosen = data.draw(st.lists(st.sampled_from(list(member.held)), max_size=8, unique=True))
        if everything or not self.sub_type.individual_only:
            if not self.sub_type.individual_only:
                member.rewound()
            member.held.clear()
            self.call(self.subscription.redeliver, member.consumer)
        else:
            for position in chosen:
                member.held.pop(position)
            self.call(self.subscription.redeliver, member.consumer, chosen)

    @rule(entries=st.integers(1, 6))
    def skip(self, entries):
        self.run(self.subscription.skip(entries))
        self.forget_up_to(self.subscription.cursor.mark_delete)
        self.settle()

    # -- the model

    def holder(self, which):
        holders = [member for member in self.attached if member.held] or self.attached
        return holders[which % len(holders)]

    def forget_up_to(self, upto):
        gone = {each for each in self.keys if each <= upto}
        self.acked |= gone
        self.skipped |= gone
        for member in self.attached:
            for position in [each for each in member.held if each <= upto]:
                del member.held[position]

    def received(self, member, delivery):
        position = (delivery.entry.ledger_id, delivery.entry.entry_id)
        assert position not in self.acked
        assert not member.gone
        # An entry may be delivered before its publisher gets the position.
        key = parse_metadata(delivery.entry.data).partition_key
        assert self.keys.setdefault(position, key) == key
        size = self.sizes.setdefault(position, int(payload_of(delivery.entry.data)))
        assert delivery.message_count == size
        everything = (1 << size) - 1
        if self.sub_type.individual_only:
            for other in self.attached:
                assert position not in other.held, "outstanding already"
        else:
            assert member.last < position, "out of order"
            member.last = position
        if position not in self.seen:
            self.seen.add(position)
            line = self.keys[position] if self.sub_type is SubType.Key_Shared else "all"
            if self.sub_type is not SubType.Shared:
                assert position > self.first_seen.get(line, (-1, -1)), "overtaken"
            self.first_seen[line] = position
        member.held[position] = everything if delivery.ack_set is None else delivery.ack_set

    # -- what must hold

    @invariant()
    def nobody_is_overdrawn(self):
        for member in self.attached:
            assert member.consumer.permits > -BATCH_MAX

    @invariant()
    def a_key_is_at_one_consumer(self):
        if self.sub_type is SubType.Key_Shared:
            holders: dict[object, set[object]] = {}
            for member in self.attached:
                for position in member.held:
                    holders.setdefault(self.keys[position], set()).add(member.consumer.name)
            assert all(len(names) == 1 for names in holders.values()), holders

    @invariant()
    def what_is_held_is_what_is_counted(self):
        if self.sub_type.individual_only and self.attached:
            counted = 0
            for member in self.attached:
                held = sum(left.bit_count() for left in member.held.values())
                assert member.consumer.unacked == held
                assert {each[:2] for each in member.consumer.pending_items()} == member.held.keys()
                counted += held
            assert self.subscription.dispatcher.unacked == counted
            assert counted < LIMITS.max_unacked_per_subscription + BATCH_MAX

    def teardown(self):
        try:
            if hasattr(self, "rig"):
                self.drain()
                self.subscription.end()
                self.run(anext(self.opened, None))
        finally:
            self.loop.close()

    def drain(self):
        self.settle()
        if not self.attached:
            self.join(0, 1)
        for member in self.attached:
            member.sink.writable = True
            self.call(self.subscription.flow, member.consumer, PERMITS_AT_END)
        for _ in range(len(self.keys) + 10):
            self.settle()
            for member in self.attached:
                for position in list(member.held):
                    self.acked.add(position)
                    del member.held[position]
                    self.call(self.subscription.ack_one, member.consumer, *position)
        self.settle()
        assert self.subscription.cursor.backlog == 0, self.subscription.state()
        assert self.seen | self.skipped >= self.keys.keys()
        stats = self.subscription.stats()
        assert (stats.msg_in_replay, stats.unacked_messages) == (0, 0)


class Member:
    """A consumer as its client sees it."""

    def __init__(self, machine, name, priority):
        self.consumer, self.sink = machine.rig.consumer(name, machine.sub_type, priority=priority)
        self.machine = machine
        self.held = {}
        self.gone = False
        self.last = (-1, -1)
        self.sink.on_deliver = self.on_deliver
        self.sink.on_active = self.rewound

    def rewound(self):
        """What comes from here on starts behind mark-delete again."""
        self.last = (-1, -1)

    def on_deliver(self, deliveries):
        for delivery in deliveries:
            self.machine.received(self, delivery)


def machine_test(sub_type):
    """One test case of the machine, for one subscription type."""

    # A failure is made small before it is shown, which takes its time.
    @pytest.mark.timeout(300)
    def test(open_rig):
        case = type(
            f"{sub_type.name}Machine",
            (DeliveryMachine,),
            {"sub_type": sub_type, "open_rig": staticmethod(open_rig)},
        ).TestCase  # type: ignore[attr-defined]  # Hypothesis adds it to every machine
        case.settings = settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        case().runTest()

    return test


test_exclusive = machine_test(SubType.Exclusive)
test_failover = machine_test(SubType.Failover)
test_shared = machine_test(SubType.Shared)
test_key_shared = machine_test(SubType.Key_Shared)
