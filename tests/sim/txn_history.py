"""What transactional clients saw, and the rules that it must obey.

A *mover* takes messages of a source topic and, in one transaction, sends an output for each of them
to every target topic and acks it. An *attempt* is one transaction of a mover. The rules:

- read committed: an output is delivered only if its mover has sent the commit, and never if the
  transaction was aborted;
- atomicity: the outputs of a committed attempt reach every reader of every target; of an attempt
  whose outcome the client does not know, all outputs or none do;
- a joint commit commits all of its attempts or none;
- once only: every message of the source is moved by exactly one committed attempt;
- while outcomes are kept, END_TXN finds its transaction on a connection that has not asked before;
- a message that an open transaction has acked comes to no consumer that attaches later;
- an output has one position; an ack in a committed transaction holds for every later consumer.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Position = tuple[int, int]
Item = tuple[int, int, int]
"""A message of the source: ledger, entry, index in its batch."""
Output = tuple[str, int, Item]
"""A message in a target: topic, attempt, and the item that it was made from."""


@dataclass(slots=True)
class Attempt:
    """One transaction of a mover."""

    number: int
    txn: tuple[int, int]
    begun_at: float
    items: set[Item] = field(default_factory=set)
    """The messages of the source that it acks."""
    outputs: set[Output] = field(default_factory=set)
    """Those with a receipt."""
    acked_at: float = -1.0
    """When the answer to its ack came."""
    end_sent: bool = False
    commit_sent: bool = False
    committed: bool | None = None
    """None: the client does not know."""
    refused: bool = False
    """Its commit was refused: topics may hear of the abort a little later."""
    ended_at: float = -1.0
    epoch: int = 0
    """That of its coordinator, when it was begun."""
    group: "list[Attempt]" = field(default_factory=list)
    """Those that are committed with it, itself included; empty if it ends alone."""

    @property
    def name(self) -> str:
        return f"attempt {self.number} {self.txn}"


@dataclass(slots=True)
class ReaderHistory:
    """What one subscription of a target got."""

    name: str
    delivered: dict[Output, int] = field(default_factory=lambda: defaultdict(int))
    plain: set[str] = field(default_factory=set)
    acked: dict[Position, float] = field(default_factory=dict)
    """When the receipt of an ack came."""


class TxnHistory:
    """The attempts of a run, and the deliveries of their messages."""

    def __init__(self, now: Callable[[], float], violated: Callable[[str], None]) -> None:
        self.now, self.violated = now, violated
        self.attempts: list[Attempt] = []
        self.readers: dict[tuple[str, str], ReaderHistory] = {}
        self.plain: dict[str, set[str]] = defaultdict(set)
        """By target: messages outside of transactions that have a receipt."""
        self._at: dict[Output, Position] = {}
        self._first_at: dict[tuple[str, object], float] = {}
        """When a message of a target was first delivered: an output, or the text of a plain one."""
        self.kept_from: dict[str, float] = {}
        """When the subscription existed that acks nothing, by target: what was delivered before may
        have been acked and trimmed."""
        self.epochs: dict[int, int] = {}
        """Of the coordinators."""
        self.pending_s = 0.0
        """A transaction is certainly open for so long, unless its client ends it, or its
        coordinator moves: the clocks of brokers differ by more than a timeout."""
        self.outcomes_kept = False
        """Whether every outcome is kept until the end, so that no transaction may be unknown."""

    def begin(self, txn: tuple[int, int], asked_at: float) -> Attempt:
        """A mover has begun a transaction, which it asked for at `asked_at`."""
        for earlier in self.attempts:
            if earlier.txn == txn:
                self.violated(f"transaction {txn} was begun twice")
        attempt = Attempt(len(self.attempts), txn, asked_at, epoch=self.epochs.get(txn[0], 0))
        self.attempts.append(attempt)
        return attempt

    def reader(self, topic: str, subscription: str) -> ReaderHistory:
        """The history of a subscription of a target."""
        name = f"{topic}/{subscription}"
        return self.readers.setdefault((topic, subscription), ReaderHistory(name))

    def ended(self, attempt: Attempt, *, committed: bool) -> None:
        """The coordinator has answered."""
        if attempt.committed is not None and attempt.committed is not committed:
            self.violated(f"{attempt.name} has ended twice, with opposite outcomes")
        if committed and not attempt.commit_sent:
            self.violated(f"{attempt.name} was committed, and nobody has asked for that")
        attempt.committed, attempt.ended_at = committed, self.now()
        if not committed:
            for output in self._at:
                if output[1] == attempt.number:
                    self.violated(f"{attempt.name} was aborted, and {output} was delivered")

    def delivered(
        self, reader: ReaderHistory, output: Output, position: Position, subscribed_at: float
    ) -> None:
        """A reader got an output."""
        attempt = self.attempts[output[1]]
        if attempt.committed is False:
            self.violated(f"{reader.name}: {output} came, {attempt.name} was aborted")
        elif not attempt.commit_sent:
            self.violated(f"{reader.name}: {output} came before the commit of {attempt.name}")
        if self._at.setdefault(output, position) != position:
            self.violated(f"{reader.name}: {output} is at {self._at[output]} and at {position}")
        self.acks_hold(reader, position, subscribed_at)
        self._first_at.setdefault((output[0], output), self.now())
        reader.delivered[output] += 1

    def plain_delivered(self, topic: str, reader: ReaderHistory, text: str) -> None:
        """A reader got a message outside of transactions."""
        self._first_at.setdefault((topic, text), self.now())
        reader.plain.add(text)

    def may_be_trimmed(self, topic: str, message: object) -> bool:
        """Whether a message of a target was delivered before anything kept it."""
        first_at = self._first_at.get((topic, message))
        return first_at is not None and first_at < self.kept_from.get(topic, 0.0)

    def acks_hold(self, reader: ReaderHistory, position: Position, subscribed_at: float) -> None:
        """An ack with a receipt holds for every later consumer."""
        acked_at = reader.acked.get(position)
        if acked_at is not None and acked_at < subscribed_at:
            self.violated(
                f"{reader.name}: {position} came again at a consumer of {subscribed_at:.3f}, "
                f"its ack was receipted at {acked_at:.3f}"
            )

    def taken(self, items: Iterable[Item], subscribed_at: float) -> None:
        """A mover got messages of the source."""
        wanted = set(items)
        for attempt in self.attempts:
            still_open = (
                not attempt.end_sent
                and self.now() < attempt.begun_at + self.pending_s
                and self.epochs.get(attempt.txn[0], 0) == attempt.epoch
            )
            if still_open and 0 <= attempt.acked_at < subscribed_at:
                for item in wanted & attempt.items:
                    self.violated(f"{item} came to a mover, while {attempt.name} has acked it")
            if attempt.committed and attempt.ended_at < subscribed_at:
                for item in wanted & attempt.items:
                    self.violated(
                        f"{item} came again at a mover of {subscribed_at:.3f}, {attempt.name} "
                        f"acked it and was committed at {attempt.ended_at:.3f}"
                    )

    # -- asked once all is done

    def took_effect(self, attempt: Attempt) -> bool:
        """Whether the attempt was committed, as far as anybody can know."""
        group = attempt.group or [attempt]
        for one in (attempt, *group):
            if one.committed is not None:
                return one.committed
        return attempt.commit_sent and any(
            output in self._at for one in group for output in one.outputs
        )

    def missing(self, items: Iterable[Item]) -> str:
        """What has still to come, of all messages of the source; nothing if all is done."""
        moved = {
            item for attempt in self.attempts if self.took_effect(attempt) for item in attempt.items
        }
        for item in items:
            if item not in moved:
                return f"{item} was not moved"
        for attempt in self.attempts:
            if not self.took_effect(attempt):
                continue
            for (topic, _), reader in self.readers.items():
                for output in attempt.outputs:
                    if output[0] != topic or output in reader.delivered:
                        continue
                    if not self.may_be_trimmed(topic, output):
                        return f"{reader.name}: {output} of {attempt.name} has not come"
        for (topic, _), reader in self.readers.items():
            lacks = {
                text
                for text in self.plain[topic] - reader.plain
                if not self.may_be_trimmed(topic, text)
            }
            if lacks:
                return f"{reader.name}: the plain message {min(lacks)} has not come"
        return ""

    def check(self) -> None:
        """The rules that can only be held to at the end."""
        for attempt in self.attempts:
            known = {one.committed for one in attempt.group} - {None}
            if len(known) > 1 and attempt is attempt.group[0]:
                outcomes = {one.name: one.committed for one in attempt.group}
                self.violated(f"a joint commit has committed some: {outcomes}")
        by_item: dict[Item, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            if self.took_effect(attempt):
                for item in attempt.items:
                    by_item[item].append(attempt)
        for item, attempts in by_item.items():
            if len(attempts) > 1:
                self.violated(f"{item} was moved by {[one.name for one in attempts]}")
