"""Two ways to the bookies.

`opened_log` is the planner's: the metadata store and the bookies that are registered there. Nothing
is created, fenced or written.

`PlannedBookies` is a task's: the bookies as the plan found them, so that ten thousand tasks do not
ask the metadata store. Where that no longer does (a bookie moved, copies were made elsewhere), the
task goes the planner's way.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from magnetar.bookie.api import Bookie, BookieError, BookieIdentity
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.registration import BookieRegistration
from magnetar.core.clock import SystemClock
from magnetar.core.errors import PreconditionFailed
from magnetar.ledger.bookies import BookieInfo
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.registered_bookies import RegisteredBookies
from magnetar.metadata.opening import open_store
from magnetar.metadata.store import MetadataStore
from magnetar_spark.log.ends import Admin
from magnetar_spark.log.settings import LEDGER_SETTINGS, LogSettings

CLIENT: Final = "spark"


@dataclass(frozen=True, slots=True)
class Log:
    """What a planner has in its hands."""

    store: MetadataStore
    bookies: RegisteredBookies
    context: LedgerContext
    admin: Admin | None
    """Of the brokers, where it was given."""


@asynccontextmanager
async def opened_log(settings: LogSettings) -> AsyncIterator[Log]:
    """Open and answering; raises MetadataError, PreconditionFailed."""
    if not settings.metadata_url.startswith("etcd:"):
        raise PreconditionFailed(
            f"metadata.url '{settings.metadata_url}': Spark reads the log of a cluster, whose "
            "metadata is in etcd (etcd:http://HOST:2379). A standalone's metadata and bookie "
            "belong to its one process: start `magnetar cluster` instead"
        )
    clock = SystemClock()
    store = await open_store(settings.metadata_url, clock, settings.store_options)
    try:
        bookies = RegisteredBookies(store, clock, client=CLIENT)
        try:
            await bookies.start()
            context = LedgerContext(store, bookies, clock, LEDGER_SETTINGS, Random())
            yield Log(store, bookies, context, Admin(url) if (url := settings.admin_url) else None)
        finally:
            await bookies.stop()
    finally:
        await store.close()


class PlannedBookies:
    """See `ledger.bookies.BookieSet` and the module's text. `close` ends the connections."""

    def __init__(self, registrations: Iterable[BookieRegistration]) -> None:
        self._registrations = {each.identity: each for each in registrations}
        self._bookies: dict[BookieIdentity, RemoteBookie] = {}

    def get(self, identity: BookieIdentity) -> Bookie | None:
        known = self._bookies.get(identity)
        if known is None and (at := self._registrations.get(identity)) is not None:
            known = RemoteBookie(identity, at.host, at.port, client=CLIENT)
            self._bookies[identity] = known
        return known

    def living(self) -> Sequence[BookieInfo]:
        return [BookieInfo(identity) for identity in sorted(self._registrations)]

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        """A task is over before a quarantine would be: who failed is asked last (`ReadHealth`)."""

    def add_listener(self, on_lost: Callable[[BookieIdentity], None]) -> None:
        """The plan does not change."""

    def remove_listener(self, on_lost: Callable[[BookieIdentity], None]) -> None:
        """See `add_listener`."""

    async def close(self) -> None:
        """Ends the connections."""
        for bookie in self._bookies.values():
            await bookie.close()
