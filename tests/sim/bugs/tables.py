"""Planted bugs of broker-side compaction and of redrives."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.sim.bugs.bug import Bug, plant
from tests.sim.bugs.leaning import apart, faults, letters, table, together, topics, transactions

from magnetar.broker.cold.compaction import Compaction
from magnetar.broker.redrive import mover
from magnetar.broker.redrive.dead_letters import DeadLetters
from magnetar.broker.redrive.letters import Letter
from magnetar.broker.redrive.mover import Mover
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.jobs.compaction import first_pass, swap
from magnetar.transactions.model import TxnId


def the_horizon_is_ahead() -> None:
    commit = swap.commit

    async def ahead(store: Any, attempt: Any, horizon: Position, *given: Any, **more: Any) -> Any:
        further = Position(horizon.ledger_id, horizon.entry_id + 2)
        return await commit(store, attempt, further, *given, **more)

    plant(swap, "commit", ahead)


def tombstones_are_skipped() -> None:
    module: Any = first_pass
    keyed = module.keyed_messages

    def alive(parsed: Any) -> Any:
        found = keyed(parsed)
        return found if found is None else [message for message in found if message.alive]

    plant(first_pass, "keyed_messages", alive)


def logs_are_trimmed_before_they_are_compacted() -> None:
    async def no_limit(*_given: Any) -> Position | None:
        return None

    plant(Compaction, "trim_limit", no_limit)


class Plain:
    """A producer whose messages are of no transaction."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def send(self, *given: Any, transaction: object, **more: Any) -> Any:
        return self._producer.send(*given, **more)


def letters_are_sent_at_once() -> None:
    send = Mover._send

    async def at_once(
        self: Mover, transaction: Any, items: Sequence[Any], producers: Mapping[Any, Any]
    ) -> Any:
        plain: Any = {lane: Plain(producer) for lane, producer in producers.items()}
        return await send(self, transaction, items, plain)

    plant(Mover, "_send", at_once)


def letters_are_acked_at_once() -> None:
    def ack_one(self: DeadLetters, txn: TxnId, letter: Letter) -> MagnetarError | None:
        self.subscription.cursor.ack(*letter.position)
        return None

    plant(DeadLetters, "_ack_one", ack_one)


def repeated_letters_are_committed() -> None:
    plant(mover, "_reconnects", lambda _: 0)


MOVES: Final = faults("unload", "kill broker", count=4)

BUGS: Final = (
    Bug(
        "a horizon is ahead of what was compacted",
        "The horizon is read after the log: readers skip values that no artifact has.",
        the_horizon_is_ahead,
        0,
        together(topics(), table()),
    ),
    Bug(
        "a compaction skips tombstones",
        "A message without a value is left out before it could replace one: deleted keys return.",
        tombstones_are_skipped,
        0,
        together(topics(), table(tombstone_chance=0.5)),
    ),
    Bug(
        "a log is trimmed before it is compacted",
        "Retention does not ask how far a topic is compacted, and values that no artifact has go.",
        logs_are_trimmed_before_they_are_compacted,
        0,
        together(topics(), MOVES, table(check_s=0.0, request_s=8.0, keys=20)),
    ),
    Bug(
        "a redrive sends its letters at once",
        "The acks are in a transaction, the letters are not: an abort moves them twice.",
        letters_are_sent_at_once,
        0,
        together(topics(), MOVES, transactions(), letters()),
    ),
    Bug(
        "a redrive acks its letters at once",
        "The letters are in a transaction, the acks are not: an abort loses them.",
        letters_are_acked_at_once,
        1,
        together(topics(), apart(), MOVES, transactions(), letters()),
    ),
    Bug(
        "a redrive commits what its producer has repeated",
        "The owner of the origin dies after it has stored letters, before the receipts: the "
        "producer repeats them at the next owner, and the transaction has them twice.",
        repeated_letters_are_committed,
        37,
        together(topics(), apart(), MOVES, transactions(), letters()),
    ),
)
