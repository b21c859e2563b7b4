"""Autorecovery as part of a process: in a bookie's beside the disks, or in one of its own."""

from collections.abc import Iterable, Mapping
from random import Random

from magnetar.autorecovery.service import Autorecovery
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.cluster.membership import Membership
from magnetar.cluster.settings import RecoverySettings
from magnetar.core.clock import Clock
from magnetar.ledger.registered_bookies import RegisteredBookies
from magnetar.observe.metrics import label_text, single


class AutorecoveryPart:
    """`open` before the session starts, `start` after it, `stop` before it ends."""

    def __init__(
        self, member: Membership, clock: Clock, settings: RecoverySettings, name: str
    ) -> None:
        self._bookies = RegisteredBookies(
            member.store,
            clock,
            cluster=member.cluster.cluster_id,
            client=f"autorecovery {name}",
        )
        self._recovery = Autorecovery(
            member.store,
            self._bookies,
            member.session,
            clock,
            recovery_settings(settings),
            name=name,
            rng=Random(),
        )

    async def open(self) -> None:
        """Finds the bookies; raises MetadataError."""
        await self._bookies.start()

    async def start(self) -> None:
        """Begins to look and to work."""
        await self._recovery.start()

    async def stop(self) -> None:
        """Cuts off what is under way; another node does it again."""
        await self._recovery.stop()
        await self._bookies.stop()

    def reason(self) -> str:
        """Why it does not get on, or nothing."""
        health = self._recovery.health()
        return "" if health.ok else health.reason

    def status(self) -> Mapping[str, object]:
        """For /status."""
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
        """Names as BookKeeper's auditor and replication worker have them, where they do."""
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


def recovery_settings(settings: RecoverySettings) -> AutorecoverySettings:
    """In autorecovery's units."""
    return AutorecoverySettings(
        lost_bookie_delay_s=float(settings.lost_bookie_delay_s),
        open_ledger_grace_s=settings.open_ledger_grace_ms / 1000,
        audit_interval_s=float(settings.audit_interval_s),
        check_interval_s=float(settings.ledger_check_interval_s),
        ledgers_at_once=settings.recovery_ledgers_at_once,
        copy_bytes_per_s_max=settings.recovery_copy_mb_per_s_max << 20,
        check_bytes_per_s_max=settings.recovery_check_mb_per_s_max << 20,
    )
