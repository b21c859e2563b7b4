"""What must hold of accounts after transfers in transactions. Pure: decides over what was read.

An order moves an amount from one account to another: its transaction has a debit, a credit and the
ack of the order. Workers may try an order several times, and may not learn an outcome. Still, the
accounts show each order once, to readers and to subscriptions. A commit without an answer may have
either outcome, so only the topics tell whether it counts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

BALANCE_AT_START: Final = 1_000_000
NAMED_MAX: Final = 5
"""Contradictions of one rule that are listed; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Order:
    """A transfer, as the topic of orders has it."""

    number: int
    source: int
    target: int
    amount: int

    @classmethod
    def parse(cls, text: str) -> "Order":
        """Return the order of a message's text; raises ValueError."""
        return cls(*map(int, text.split(" ")))


@dataclass(frozen=True, slots=True)
class Entry:
    """A debit or a credit in an account's topic."""

    place: str
    """`ledger:entry`."""
    order: int
    kind: str
    amount: int

    @classmethod
    def parse(cls, place: str, text: str) -> "Entry":
        """Return the entry of a message's text; raises ValueError."""
        order, kind, amount = text.split(" ")
        if kind not in {"debit", "credit"}:
            raise ValueError(f"{text!r} is no debit and no credit")
        return cls(place, int(order), kind, int(amount))


@dataclass(slots=True)
class Books:
    """Everything that the clients saw."""

    accounts: int
    receipts: dict[int, Order] = field(default_factory=dict)
    """Orders whose producer got the receipt, by number."""
    orders: list[Order] = field(default_factory=list)
    """The topic of orders, read at the end."""
    entries: dict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    """Each account's topic, read at the end."""
    audited: dict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    """Deliveries to the subscription of each account's topic, while the faults were done."""
    commits: list[int] = field(default_factory=list)
    """Orders whose commit succeeded, as the workers saw it."""
    commit_times_ms: list[int] = field(default_factory=list)
    unknown: int = 0
    """Commits without an answer."""
    aborted: int = 0
    """Aborts on purpose."""
    failures: Counter[str] = field(default_factory=Counter)
    """Errors that clients retried, by stage and class."""

    def read(self, lines: Iterable[str]) -> None:
        """Add the observations of a client process; raises ValueError for an unknown line."""
        for line in lines:
            kind, _, rest = line.partition(" ")
            if kind == "O":
                order = Order.parse(rest)
                self.receipts[order.number] = order
            elif kind == "A":
                account, place, text = rest.split(" ", 2)
                self.audited[int(account)].append(Entry.parse(place, text))
            elif kind == "C":
                number, time_ms = rest.split(" ")
                self.commits.append(int(number))
                self.commit_times_ms.append(int(time_ms))
            elif kind == "X":
                self.aborted += 1
            elif kind == "U":
                self.unknown += 1
            elif kind == "E":
                self.failures[" ".join(rest.split(" ", 2)[:2])] += 1
            elif kind not in {"S", "D", "F"}:
                raise ValueError(f"unknown observation {line!r}")

    def contradictions(self) -> list[str]:
        """Return what contradicts the guarantees; empty if all hold."""
        found: list[str] = []
        for rule in (
            self._orders_once,
            self._applied_once,
            self._committed_twice,
            self._sum,
            self._audit,
        ):
            of_rule = list(rule())
            found += of_rule[:NAMED_MAX]
            if len(of_rule) > NAMED_MAX:
                found.append(f"{of_rule[0]}: and {len(of_rule) - NAMED_MAX} more of this kind")
        return found

    def _orders_once(self) -> Iterator[str]:
        stored = Counter(order.number for order in self.orders)
        contents = set(self.orders)
        for number, times in stored.items():
            if times > 1:
                yield f"order {number} is stored {times} times"
        for number, order in self.receipts.items():
            if number not in stored:
                yield f"order {number} has a receipt and is not stored"
            elif order not in contents:
                yield f"order {number} is stored with another content"

    def _applied_once(self) -> Iterator[str]:
        """Every stored order is one debit and one credit, and nothing else is there."""
        places: dict[tuple[int, int, str, int], int] = Counter(
            (entry.order, account, entry.kind, entry.amount)
            for account, entries in self.entries.items()
            for entry in entries
        )
        committed = set(self.commits)
        for order in dict.fromkeys(self.orders):
            for kind, account in (("debit", order.source), ("credit", order.target)):
                times = places.pop((order.number, account, kind, order.amount), 0)
                if times != 1:
                    known = "its commit succeeded" if order.number in committed else "no commit"
                    yield f"order {order.number}: {times} {kind}s in account {account} ({known})"
        for (number, account, kind, amount), times in places.items():
            yield f"account {account}: {times} {kind}s of {amount} of order {number}, not ordered"

    def _committed_twice(self) -> Iterator[str]:
        for number, times in Counter(self.commits).items():
            if times > 1:
                yield f"order {number}: {times} transactions with its ack committed"

    def _sum(self) -> Iterator[str]:
        balances = [BALANCE_AT_START] * self.accounts
        for account, entries in self.entries.items():
            for entry in entries:
                balances[account] += entry.amount if entry.kind == "credit" else -entry.amount
        if sum(balances) != BALANCE_AT_START * self.accounts:
            missing = BALANCE_AT_START * self.accounts - sum(balances)
            yield f"the sum of all accounts is off by {-missing}"

    def _audit(self) -> Iterator[str]:
        """The subscription got exactly what the reader finds, first deliveries in order."""
        for account in range(self.accounts):
            stored = self.entries[account]
            first = list(dict.fromkeys(self.audited[account]))
            for entry in set(first) - set(stored):
                yield f"account {account}: delivered and not committed: {entry}"
            for entry in set(stored) - set(first):
                yield f"account {account}: committed and never delivered: {entry}"
            if set(first) == set(stored) and first != stored:
                yield f"account {account}: delivered in another order than stored"
