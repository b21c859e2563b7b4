"""The documents of a redrive: the order, and its progress."""

import msgspec


class RedriveOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """The body of the request that starts a redrive."""

    to: str | None = None
    """The topic to move messages to; None: the origin of each, by its property REAL_TOPIC."""
    filter: str | None = None
    """An expression of entry filters; None: all messages."""
    rate: float | None = None
    """Messages per second; None: no limit."""
    limit: int | None = None
    """The number of messages; None: no limit."""
    dry_run: bool = False
    """Whether messages are only counted."""


class RedriveProgress(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer of all requests about a redrive."""

    id: str = ""
    """Of this redrive: requests with `?id=` concern no other one."""
    state: str
    """running, stopping, stopped, finished or failed."""
    dry_run: bool = False
    examined: int = 0
    matched: int = 0
    moved: int = 0
    skipped: dict[str, int] = {}
    """The number of messages that match and stay, by reason."""
    last_position: str = ""
    """The entry that was read last: `ledger:entry`."""
    error: str = ""
    resumable: bool = False
    """Whether it failed for a reason that passes, such as a move of the topic."""

    @property
    def ended(self) -> bool:
        """Whether the redrive has ended."""
        return self.state not in ("running", "stopping")
