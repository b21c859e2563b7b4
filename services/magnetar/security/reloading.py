"""Values that are parsed from files, and again when the files change, without a restart.

`current()` compares the files' stamps at most every RELOAD_CHECK_S, when a caller needs the value.
A broker calls it periodically, to end the sessions of keys that were removed. Reading and parsing
run in a thread; meanwhile other callers get the old value. If the new content is unusable, the old
value remains and the error is logged, once per content.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from magnetar.core.clock import Clock
from magnetar.core.log import get_logger
from magnetar.security.errors import ConfigurationError
from magnetar.security.source import KeySource, Stamp

log = get_logger("magnetar.security.reloading")

RELOAD_CHECK_S: Final = 0.25
"""A change takes effect on the first use that is this much later than the previous check."""

T = TypeVar("T")


class Reloaded(Generic[T]):
    """A value that follows the content of its sources."""

    def __init__(
        self, what: str, sources: Sequence[KeySource], parse: Callable[[], T], clock: Clock
    ) -> None:
        """Parses for the first time; raises ConfigurationError. `parse` reads the sources."""
        self._what = what
        self._sources = tuple(source for source in sources if source.path is not None)
        self._parse = parse
        self._clock = clock
        # Stamps are taken before the read: a change in between is seen as a change next time.
        self._stamps = self._stamps_now()
        self._value = parse()
        self._checked_at = clock.monotonic()
        self._checking = False
        self.changes = 0
        """How often the value was replaced."""

    def current_now(self) -> T | None:
        """Returns the value; None if a check of the sources is due, which `current` does."""
        due_at = self._checked_at + RELOAD_CHECK_S
        if self._checking or not self._sources or self._clock.monotonic() < due_at:
            return self._value
        return None

    async def current(self) -> T:
        """Returns the value, reloaded if a source has changed."""
        value = self.current_now()
        if value is not None:
            return value
        self._checking, self._checked_at = True, self._clock.monotonic()
        try:
            await asyncio.to_thread(self._reload)
        finally:
            self._checking = False
        return self._value

    @property
    def value(self) -> T:
        """The value as of the last reload."""
        return self._value

    def _reload(self) -> None:
        stamps = self._stamps_now()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            value = self._parse()
        except ConfigurationError as error:
            log.error(
                "not reloaded, the old content stays in use", what=self._what, error=str(error)
            )
            return
        # The value first: a reader that sees the new count also sees the new value.
        self._value = value
        self.changes += 1
        log.info("reloaded", what=self._what)

    def _stamps_now(self) -> tuple[Stamp | None, ...]:
        return tuple(source.stamp() for source in self._sources)
