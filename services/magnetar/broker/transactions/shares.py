"""How much the open transactions of a coordinator, and those of one role, may take.

Their records are in memory and in the metadata store. A role gets ROLE_SHARE of each maximum, so
that no client keeps all others out. The refusals are TransactionCoordinatorNotFound, on which
clients retry.
"""

from collections import Counter
from typing import Final

from magnetar.core.errors import TransactionCoordinatorNotFound
from magnetar.transactions.model import TransactionRecord

OPEN_MAX: Final = 100_000
"""Maximum number of open transactions of a coordinator; a setting may lower it."""
OPEN_NAMES_BYTES_MAX: Final = 64 << 20
"""Maximum size of the names of all participants of a coordinator's open transactions."""
ROLE_SHARE: Final = 0.5
"""The share of each maximum that one role may take, so that no client keeps all others out."""


class Shares:
    """What the open transactions of a coordinator take, in all and by role."""

    __slots__ = (
        "_coordinator",
        "_names_bytes",
        "_names_bytes_max",
        "_names_bytes_total",
        "_open",
        "_open_max",
        "_open_total",
    )

    def __init__(self, coordinator: int, open_max: int, names_bytes_max: int) -> None:
        self._coordinator = coordinator
        self._open_max = open_max
        self._names_bytes_max = names_bytes_max
        self._open: Counter[str | None] = Counter()
        """Transactions by owner."""
        self._names_bytes: Counter[str | None] = Counter()
        """The size of the names of their participants, by owner."""
        self._open_total = self._names_bytes_total = 0

    def check_begin(self, owner: str | None) -> None:
        """Raises TransactionCoordinatorNotFound if another transaction exceeds a maximum."""
        count = self._open_total
        if count >= self._open_max:
            raise TransactionCoordinatorNotFound(
                f"Transaction coordinator {self._coordinator} has {count} open transactions, the "
                "maximum (maxActiveTransactionsPerCoordinator): retry after some of them have ended"
            )
        role_max = _of_role(self._open_max)
        if owner is not None and self._open[owner] >= role_max:
            raise TransactionCoordinatorNotFound(
                f"Transaction coordinator {self._coordinator} has {role_max} open transactions of "
                "this role, half of maxActiveTransactionsPerCoordinator: retry after some of them "
                "have ended"
            )

    def check_names(self, owner: str | None, more_bytes: int) -> None:
        """Raises TransactionCoordinatorNotFound if more names of participants exceed a maximum."""
        if more_bytes <= 0:
            return
        if self._names_bytes_total + more_bytes > self._names_bytes_max:
            raise TransactionCoordinatorNotFound(
                f"The participants of the open transactions of coordinator {self._coordinator} "
                f"have names of {self._names_bytes_max} bytes, the maximum: retry after some of "
                "them have ended"
            )
        role_max = _of_role(self._names_bytes_max)
        if owner is not None and self._names_bytes[owner] + more_bytes > role_max:
            raise TransactionCoordinatorNotFound(
                f"The participants of the open transactions of this role at coordinator "
                f"{self._coordinator} have names of {role_max} bytes, the maximum: retry after "
                "some of them have ended"
            )

    def add(self, owner: str | None, transactions: int, names_bytes: int) -> None:
        """Counts more transactions and names of an owner; negative numbers remove them."""
        self._open_total += transactions
        self._names_bytes_total += names_bytes
        for counter, more in ((self._open, transactions), (self._names_bytes, names_bytes)):
            counter[owner] += more
            if not counter[owner]:
                del counter[owner]


def names_bytes(record: TransactionRecord) -> int:
    """Returns the size of the names of all participants."""
    names = (*record.topics, *(name for pair in record.subscriptions for name in pair))
    return sum(len(name.encode()) for name in names)


def _of_role(maximum: int) -> int:
    return max(1, int(maximum * ROLE_SHARE))
