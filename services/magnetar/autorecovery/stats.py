"""Counters of autorecovery, and whether it makes progress.

Readiness means progress: a node with due work that has not completed an attempt or copied an entry
for `stalled_after_s` is not ready, even if its process runs.
"""

from dataclasses import dataclass, field

from magnetar.core.clock import Clock


@dataclass(frozen=True, slots=True)
class AutorecoveryHealth:
    """The health for `/readyz`: `reason` names the problem, or the current work."""

    ok: bool
    reason: str


@dataclass(slots=True)
class AutorecoveryStats:
    """The counters of one node, since its start. Sizes in bytes."""

    clock: Clock
    stalled_after_s: float
    auditor: bool = False
    """Whether this node is the auditor."""
    audits: int = 0
    checks: int = 0
    ledgers_audited: int = 0
    ledgers_checked: int = 0
    orphans_deleted: int = 0
    """Copies of deleted ledgers."""
    listed: int = 0
    """Listed ledgers at the last read of the list, parked and lost ones included."""
    parked: int = 0
    lost: int = 0
    """Ledgers with entries that no bookie has."""
    entries_copied: int = 0
    bytes_copied: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    failures: int = 0
    """Errors, of the metadata store or internal, that ended a round."""
    last_error: str = ""
    due: int = 0
    """Ledgers that waited for an attempt at the last read of the list."""
    _due_since: float = -1.0
    _progress_at: float = -1.0
    _list_read_at: float = -1.0

    def copied(self, entries: int, size: int) -> None:
        """Counts a group that is proven on its new bookie."""
        self.entries_copied += entries
        self.bytes_copied += size
        self._progress_at = self.clock.monotonic()

    def ended(self, outcome: str) -> None:
        """Counts an attempt that ended, with its outcome."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self._progress_at = self.clock.monotonic()

    def failed(self, error: BaseException) -> None:
        """Counts a round that an error ended."""
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"

    def list_read(self, *, listed: int, due: int, parked: int, lost: int) -> None:
        """Records the counts of a complete read of the list of under-replicated ledgers."""
        self._list_read_at = self.clock.monotonic()
        self.listed, self.due, self.parked, self.lost = listed, due, parked, lost
        if not due:
            self._due_since = -1.0
        elif self._due_since < 0:
            self._due_since = self.clock.monotonic()

    def health(self) -> AutorecoveryHealth:
        """Returns whether the node makes progress with due work."""
        now = self.clock.monotonic()
        unread_s = now - max(self._list_read_at, self._progress_at)
        if self._list_read_at >= 0 and unread_s > self.stalled_after_s:
            return AutorecoveryHealth(
                ok=False, reason=self._with_error(f"idle for {unread_s:.0f} s")
            )
        if self._due_since < 0:
            return AutorecoveryHealth(ok=True, reason="nothing is due")
        idle_s = now - max(self._due_since, self._progress_at)
        if idle_s < self.stalled_after_s:
            return AutorecoveryHealth(ok=True, reason=f"{self.due} ledgers are due")
        text = f"{self.due} ledgers are due, and nothing was done for {idle_s:.0f} s"
        return AutorecoveryHealth(ok=False, reason=self._with_error(text))

    def _with_error(self, text: str) -> str:
        return f"{text} (last error: {self.last_error})" if self.last_error else text
