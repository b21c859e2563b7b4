"""The autorecovery of one node: an auditor candidate, a repair worker, and a drain worker.

It runs in every bookie's process or in processes of its own; any number of nodes cooperate. It
needs the metadata store, a session in it (its lease covers the auditor's key and the locks) and the
bookies.
"""

import asyncio
from random import Random
from typing import Final

from magnetar.autorecovery.audit.auditor import Auditor
from magnetar.autorecovery.audit.full_check import FullCheck
from magnetar.autorecovery.check.ledger_check import LedgerChecker
from magnetar.autorecovery.check.prover import Prover
from magnetar.autorecovery.check.repairer import Repairer
from magnetar.autorecovery.copier import Copier
from magnetar.autorecovery.drain.worker import DrainWorker
from magnetar.autorecovery.members import MemberWatch
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.repair.replicator import Replicator
from magnetar.autorecovery.repair.worker import Worker
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryHealth, AutorecoveryStats
from magnetar.core.clock import Clock
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataStore

DEFAULT_SETTINGS: Final = AutorecoverySettings()


class Autorecovery:
    """Runs autorecovery on one node. `start`, then `stop`; the session belongs to the caller."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieSet,
        session: MetadataSession,
        clock: Clock,
        settings: AutorecoverySettings = DEFAULT_SETTINGS,
        *,
        name: str = "autorecovery",
        rng: Random | None = None,
    ) -> None:
        rng = rng if rng is not None else Random()
        token = f"{name} {rng.getrandbits(64):016x}"
        self.stats = AutorecoveryStats(clock, settings.stalled_after_s)
        self._session = session
        members = MemberWatch(bookies, clock, settings.lost_bookie_delay_s)
        copy_rate = ByteRate(settings.copy_bytes_per_s_max, clock)
        check_rate = ByteRate(settings.check_bytes_per_s_max, clock)
        copier = Copier(bookies, settings, copy_rate, self.stats)
        prover = Prover(bookies, check_rate, settings.request_timeout_s)
        checker = LedgerChecker(bookies, prover, None, settings.request_timeout_s)
        self._client = LedgerClient(store, bookies, clock, rng=rng)
        replicator = Replicator(
            store,
            bookies,
            self._client,
            members,
            copier,
            Repairer(prover, copier),
            clock,
            settings,
            rng,
        )
        full_check = FullCheck(store, checker, clock, settings, self.stats)
        self._auditor = Auditor(
            store, session, members, full_check, clock, settings, self.stats, token, rng
        )
        self._drains = DrainWorker(store, session, bookies, checker, clock, token)
        self._worker = Worker(store, session, replicator, clock, settings, self.stats, token, rng)

    async def start(self) -> None:
        """Starts the auditor and the workers."""
        self._auditor.start()
        self._worker.start()
        self._drains.start()

    async def stop(self) -> None:
        """Cancels all work; another node repeats it. Idempotent."""
        await asyncio.gather(self._drains.stop(), self._worker.stop(), self._auditor.stop())
        await self._client.close()

    def health(self) -> AutorecoveryHealth:
        """Returns whether the node makes progress with the list."""
        if not self._session.valid:
            return AutorecoveryHealth(ok=True, reason="idle: its session is not established")
        return self.stats.health()
