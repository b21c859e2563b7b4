"""Bounds how many lines of the audit log a client can cause by refusals and connections.

The log keeps a number of files and deletes the oldest. A client that fails to authenticate as fast
as it can, or one that connects again and again, would otherwise delete the records of others. So
in each PERIOD_S the log takes SENDER_RECORDS_MAX such records of a role at an address, and
STRANGERS_RECORDS_MAX of all clients together that have not proven a role; it counts the rest. An
IPv6 address counts as its /64 network. Permitted changes are always recorded.

Bounds: SENDERS_MAX senders in a period; the records of further ones are counted only.
"""

from typing import Final, Protocol

from magnetar.core.addresses import network_of

PERIOD_S: Final = 60.0
SENDER_RECORDS_MAX: Final = 60
STRANGERS_RECORDS_MAX: Final = 600
SENDERS_MAX: Final = 16_384
CONNECTS: Final = "CONNECT"


class Sent(Protocol):
    """The fields of a record that identify its sender."""

    @property
    def action(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def address(self) -> str: ...

    @property
    def allowed(self) -> bool: ...


class AuditBudget:
    """The records of the current period, by sender."""

    def __init__(self) -> None:
        self.withheld = 0
        """Records that were counted only, since the start."""
        self._ends_s = 0.0
        self._sent: dict[tuple[str, str], int] = {}
        self._of_strangers = 0
        self._told = 0
        self._due = 0

    def admits(self, record: Sent, now_s: float) -> bool:
        """Whether the log takes the record; `now_s` is a monotonic time in seconds."""
        if record.allowed and record.action != CONNECTS:
            return True
        self._roll(now_s)
        sender = record.role, network_of(record.address)
        sent = self._sent.get(sender, 0)
        room = sent < SENDER_RECORDS_MAX and (sent > 0 or len(self._sent) < SENDERS_MAX)
        if not record.role:
            room = room and self._of_strangers < STRANGERS_RECORDS_MAX
        if not room:
            self.withheld += 1
            return False
        self._sent[sender] = sent + 1
        self._of_strangers += not record.role
        return True

    def take_due(self, now_s: float) -> int:
        """Returns how many records were withheld in ended periods and not reported yet."""
        self._roll(now_s)
        due, self._due = self._due, 0
        return due

    def _roll(self, now_s: float) -> None:
        if now_s < self._ends_s:
            return
        self._ends_s = now_s + PERIOD_S
        self._sent.clear()
        self._of_strangers = 0
        self._due += self.withheld - self._told
        self._told = self.withheld
