"""Runs autorecovery as a part of a process: a bookie, or an autorecovery process."""

from collections.abc import Iterable, Mapping
from random import Random

from magnetar.autorecovery.service import Autorecovery
from magnetar.cluster.membership import Membership
from magnetar.core.clock import Clock
from magnetar.ledger.registered_bookies import RegisteredBookies
from magnetar.observe.metrics import label_text, single
from magnetar.settings.member import RecoverySettings


class AutorecoveryPart:
    """Autorecovery in this process: `open` before the session starts; then `start` and `stop`."""

    def __init__(
        self, member: Membership, clock: Clock, settings: RecoverySettings, name: str
    ) -> None:
        self._bookies = RegisteredBookies(
            member.store,
            clock,
            cluster=member.cluster.cluster_id,
            client=f"autorecovery {name}",
            tls=member.bookie_tls,
        )
        self._recovery = Autorecovery(
            member.store,
            self._bookies,
            member.session,
            clock,
            settings.autorecovery_settings(),
            name=name,
            rng=Random(),
        )

    async def open(self) -> None:
        """Reads which bookies exist; raises MetadataError."""
        await self._bookies.start()

    async def start(self) -> None:
        """Begins to audit and to replicate."""
        await self._recovery.start()

    async def stop(self) -> None:
        """Cancels the repairs under way; another process repeats them."""
        await self._recovery.stop()
        await self._bookies.stop()

    def reason(self) -> str:
        """Returns why autorecovery makes no progress, or an empty text."""
        health = self._recovery.health()
        return "" if health.ok else health.reason

    def status(self) -> Mapping[str, object]:
        """The fields of /status."""
        stats = self._recovery.stats
        return {
            "auditor": stats.auditor,
            "ledgers_waiting": stats.listed,
            "ledgers_parked": stats.parked,
            "ledgers_lost": stats.lost,
            "entries_copied": stats.entries_copied,
            "bytes_copied": stats.bytes_copied,
            "outcomes": dict(stats.outcomes),
            "last_error": stats.last_error,
        }

    def families(self) -> Iterable[str]:
        """The families of /metrics, under the names of BookKeeper's autorecovery."""
        stats = self._recovery.stats
        yield single("auditor_ELECTION", "", int(stats.auditor))
        for name, value in (
            ("auditor_NUM_UNDER_REPLICATED_LEDGERS", stats.listed),
            ("magnetar_autorecovery_ledgers_parked", stats.parked),
            ("magnetar_autorecovery_ledgers_lost", stats.lost),
        ):
            yield single(name, "", value)
        for name, value in (
            ("auditor_AUDIT_BOOKIES", stats.audits),
            ("replication_worker_NUM_ENTRIES_REPLICATED", stats.entries_copied),
            ("replication_worker_NUM_BYTES_REPLICATED", stats.bytes_copied),
            ("magnetar_autorecovery_failures", stats.failures),
        ):
            yield single(name, "", value, "counter")
        for outcome, count in stats.outcomes.items():
            labels = label_text([("outcome", outcome)])
            yield single("magnetar_autorecovery_attempts", labels, count, "counter")
