"""Planted bugs above the ledgers: owners, cursors, rollover, dispatch."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from tests.sim.bugs.bug import Bug, plant
from tests.sim.bugs.leaning import (
    ages,
    delays,
    faults,
    many_rollovers,
    many_shared,
    quorum,
    together,
    topics,
)

from magnetar.broker.dispatch.multiple import MultipleConsumersDispatcher
from magnetar.broker.subscription import persistent
from magnetar.core.steady_clock import SteadyClock
from magnetar.ledger.replicated_writer import ReplicatedWriter
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.record import ManagedLedgerRecord, managed_ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession, SessionState
from magnetar.metadata.store import Put


def acks_before_they_are_durable() -> None:
    def at_once(self: Cursor, on_durable: Callable[[Any], None]) -> None:
        asyncio.get_running_loop().call_soon(on_durable, None)

    plant(Cursor, "when_durable", at_once)


def a_lost_lease_is_believed() -> None:
    plant(MetadataSession, "_suspend", lambda *_: None)
    plant(MetadataSession, "valid", property(lambda self: self._state is not SessionState.CLOSED))


def a_record_is_written_by_two() -> None:
    def put(self: LedgerList, record: ManagedLedgerRecord) -> Put:
        return Put(managed_ledger_key(self.name), encode(record))

    plant(LedgerList, "_put", put)
    plant(LedgerList, "locked", lambda _: asyncio.Lock())


def receipts_after_the_first_copy() -> None:
    made = ReplicatedWriter.__init__

    def hasty(self: ReplicatedWriter, *args: Any) -> None:
        made(self, *args)
        self._ack_quorum = 1

    plant(ReplicatedWriter, "__init__", hasty)


def ages_go_by_the_wall_clock() -> None:
    plant(SteadyClock, "_counted_ms", lambda self: self._clock.now_ms())


def nothing_is_redelivered() -> None:
    def forget(self: MultipleConsumersDispatcher, consumer: Any) -> None:
        self.consumers.remove(consumer)
        self.unacked -= consumer.unacked
        consumer.pending.clear()
        if not self.consumers:
            self._emptied()
        self._joined()

    plant(MultipleConsumersDispatcher, "remove_consumer", forget)


def acks_of_unknown_entries_get_receipts() -> None:
    plant(persistent, "check_stored", lambda *_: None)


BUGS: Final = (
    Bug(
        "ack receipt before it is durable",
        "An ack is answered from memory: after a crash the message comes again.",
        acks_before_they_are_durable,
        1,
        together(topics(), faults("kill broker", count=6)),
    ),
    Bug(
        "a lost lease is believed",
        "A broker goes on serving though it could not renew its lease.",
        a_lost_lease_is_believed,
        29,
        together(topics(), faults("pause broker", "cut off metadata", count=8, for_s=7.0)),
    ),
    Bug(
        "rollover races a create",
        "A rollover enters its new ledger into the topic's record while a trim writes what it has "
        "read before: one of the two is overwritten (apache/pulsar#12221).",
        a_record_is_written_by_two,
        566,
        together(topics(), many_rollovers(), faults("kill broker", "slow network", count=9)),
    ),
    Bug(
        "receipt after the first copy",
        "Receipts go out before the ack quorum has the entry.",
        receipts_after_the_first_copy,
        17,
        together(
            quorum(2, 2, 2),
            faults("wipe bookie", "slow disk", "kill broker", "pause bookie", count=9),
        ),
    ),
    Bug(
        "ages go by the wall clock",
        "A time server goes mad, or a suspended machine comes back: all that is kept for a time "
        "expires at once.",
        ages_go_by_the_wall_clock,
        1,
        together(topics(), ages(), faults("clock jump", count=8)),
    ),
    Bug(
        "nothing is redelivered",
        "What a consumer of a shared subscription held when it went is not given to the others.",
        nothing_is_redelivered,
        5,
        together(topics(), faults("resets", count=4)),
    ),
    Bug(
        "an ack of an unknown entry gets a receipt",
        "A broker has lost its topic without knowing it, and gets an ack with a message id of its "
        "successor. The cursor ignores it, and the client gets a receipt.",
        acks_of_unknown_entries_get_receipts,
        22,
        together(
            topics(),
            many_shared(),
            delays(early_acks=0.9),
            faults("expire lease", "slow network", "outlive lease", "cut one way", count=14),
        ),
    ),
)
