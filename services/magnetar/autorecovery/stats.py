"""What autorecovery has done and has before it, as plain counters, and whether it gets on.

Liveness is tied to progress: a node that knows of work that is due and has not ended an attempt or
copied an entry for a named time is unhealthy, however well its process looks.
"""

from dataclasses import dataclass, field

from magnetar.core.clock import Clock


@dataclass(frozen=True, slots=True)
class AutorecoveryHealth:
    """For `/healthz`: `reason` says what is wrong, or what it does."""

    ok: bool
    reason: str


@dataclass(slots=True)
class AutorecoveryStats:
    """See the module's text. Sizes in bytes, counts since the start."""

    clock: Clock
    stalled_after_s: float
    auditor: bool = False
    """Whether this node is the auditor."""
    audits: int = 0
    checks: int = 0
    ledgers_audited: int = 0
    ledgers_checked: int = 0
    orphans_deleted: int = 0
    """Copies of ledgers that no longer exist."""
    listed: int = 0
    """Under-replicated ledgers as of the last look, parked and lost ones included."""
    parked: int = 0
    lost: int = 0
    """Ledgers with entries that no bookie has."""
    entries_copied: int = 0
    bytes_copied: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    failures: int = 0
    """Errors of the metadata store or of our own that ended a round."""
    last_error: str = ""
    due: int = 0
    """Ledgers that waited to be restored at the last look."""
    _due_since: float = -1.0
    _progress_at: float = -1.0
    _looked_at: float = -1.0

    def copied(self, entries: int, size: int) -> None:
        """A group is proven where it was missing."""
        self.entries_copied += entries
        self.bytes_copied += size
        self._progress_at = self.clock.monotonic()

    def ended(self, outcome: str) -> None:
        """An attempt at a ledger ended, one way or another."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self._progress_at = self.clock.monotonic()

    def failed(self, error: BaseException) -> None:
        """A round was ended by an error."""
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"

    def looked(self, *, listed: int, due: int, parked: int, lost: int) -> None:
        """The list was read."""
        self._looked_at = self.clock.monotonic()
        self.listed, self.due, self.parked, self.lost = listed, due, parked, lost
        if not due:
            self._due_since = -1.0
        elif self._due_since < 0:
            self._due_since = self.clock.monotonic()

    def health(self) -> AutorecoveryHealth:
        """Whether it gets on with what is due."""
        now = self.clock.monotonic()
        unread_s = now - max(self._looked_at, self._progress_at)
        if self._looked_at >= 0 and unread_s > self.stalled_after_s:
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
