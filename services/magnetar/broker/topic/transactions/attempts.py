"""What a recovery or a look-up of transactions has run into since it began. No IO."""

from dataclasses import dataclass

from magnetar.core.ids import EARLIEST, Position


@dataclass(slots=True)
class Attempts:
    """The attempts of something that is repeated until it succeeds; `explain` shows them."""

    began_ms: int
    failures: int = 0
    error: str = ""
    """The text of the last failure."""
    failed_ms: int = 0
    """The time of the last failure; 0 without one."""

    def failed(self, error: BaseException, now_ms: int) -> str:
        """Records a failure; returns its text."""
        self.failures += 1
        self.failed_ms = now_ms
        self.error = str(error) or type(error).__name__
        return self.error


@dataclass(slots=True)
class Scan(Attempts):
    """The attempts at reading a log for open transactions."""

    at: Position = EARLIEST
    """The first entry of the read that is under way, or has failed."""
