"""Access to a cluster's bookies, for planners and for tasks.

`opened_log` is for planners: the metadata store, and the bookies registered there. It creates,
fences and writes nothing.

`PlannedBookies` is for tasks: the bookies known to the plan, so that ten thousand tasks do not read
the metadata store. If these no longer suffice (a bookie moved, copies were made elsewhere), the
task opens the log like a planner.
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
from magnetar.jobs.log.log import Log
from magnetar.ledger.bookies import BookieInfo
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.registered_bookies import RegisteredBookies
from magnetar.metadata.store_url import open_store
from magnetar.security.tls.reload import ClientTls
from magnetar_spark.log.admin import Admin
from magnetar_spark.log.settings import LEDGER_SETTINGS, LogSettings

CLIENT: Final = "spark"


@dataclass(frozen=True, slots=True)
class RegisteredLog(Log):
    """The log of a cluster, with the bookies that are registered in its metadata."""

    bookies: RegisteredBookies


@asynccontextmanager
async def opened_log(settings: LogSettings) -> AsyncIterator[RegisteredLog]:
    """Opens the log of a cluster. Raises MetadataError, PreconditionFailed."""
    if not settings.metadata_url.startswith("etcd:"):
        raise PreconditionFailed(
            f"metadata.url '{settings.metadata_url}': Spark reads the log of a cluster, whose "
            "metadata is in etcd (etcd:http://HOST:2379). A standalone's metadata and bookie "
            "belong to its one process: start `magnetar cluster` instead"
        )
    clock = SystemClock()
    store = await open_store(settings.metadata_url, clock, settings.store_options)
    try:
        bookies = RegisteredBookies(store, clock, client=CLIENT, tls=settings.bookie_tls())
        try:
            await bookies.start()
            context = LedgerContext(store, bookies, clock, LEDGER_SETTINGS, Random())
            admin = Admin(settings) if settings.admin_url else None
            yield RegisteredLog(store, bookies, context, admin)
        finally:
            await bookies.stop()
    finally:
        await store.close()


class PlannedBookies:
    """A fixed `ledger.bookies.BookieSet`. Call `close` to close the connections."""

    def __init__(
        self, registrations: Iterable[BookieRegistration], tls: ClientTls | None = None
    ) -> None:
        """With `tls`, all connections are encrypted."""
        self._tls = tls
        self._registrations = {record.identity: record for record in registrations}
        self._bookies: dict[BookieIdentity, RemoteBookie] = {}

    def get(self, identity: BookieIdentity) -> Bookie | None:
        bookie = self._bookies.get(identity)
        if bookie is None and (record := self._registrations.get(identity)) is not None:
            bookie = RemoteBookie(identity, record.host, record.port, client=CLIENT, tls=self._tls)
            self._bookies[identity] = bookie
        return bookie

    def living(self) -> Sequence[BookieInfo]:
        return [BookieInfo(identity) for identity in sorted(self._registrations)]

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        """Does nothing: a task ends before a quarantine would. `ReadHealth` orders the reads."""

    def add_listener(self, on_lost: Callable[[BookieIdentity], None]) -> None:
        """Does nothing: the plan does not change."""

    def remove_listener(self, on_lost: Callable[[BookieIdentity], None]) -> None:
        """Does nothing, like `add_listener`."""

    async def close(self) -> None:
        """Closes the connections."""
        for bookie in self._bookies.values():
            await bookie.close()
