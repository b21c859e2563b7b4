"""A broker's ledger client and its set of bookies, with their status and metrics."""

import math
from collections.abc import Iterable, Mapping

from magnetar.cluster.membership import Membership
from magnetar.cluster.nodes import session_families
from magnetar.core.clock import Clock
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.registered_bookies import RegisteredBookies, RegisteredSettings
from magnetar.ledger.settings import LedgerSettings
from magnetar.observe.metrics import single
from magnetar.settings.cluster_broker import BrokerProcessSettings


def ledger_settings(settings: BrokerProcessSettings) -> LedgerSettings:
    """Returns the settings of a broker's ledgers, in their units."""
    return LedgerSettings(
        ensemble_size=settings.ensemble_size,
        write_quorum=settings.write_quorum,
        ack_quorum=settings.ack_quorum,
        add_timeout_s=settings.add_timeout_ms / 1000,
        read_timeout_s=float(settings.read_timeout_s),
        speculative_read_delay_s=settings.speculative_read_delay_ms / 1000 or math.inf,
    )


class BrokerLedgers:
    """The ledger client of a broker: `start`, then `stop` after the last write."""

    def __init__(
        self, settings: BrokerProcessSettings, member: Membership, clock: Clock, broker_id: str
    ) -> None:
        self._session = member.session
        self.bookies = RegisteredBookies(
            member.store,
            clock,
            cluster=member.cluster.cluster_id,
            client=f"broker {broker_id}",
            tls=member.bookie_tls,
            settings=RegisteredSettings(
                errors_max=settings.quarantine_errors_max,
                errors_window_s=float(settings.quarantine_window_s),
                quarantine_s=float(settings.quarantine_s),
            ),
        )
        self.client = LedgerClient(
            member.store,
            self.bookies,
            clock,
            ledger_settings(settings),
        )

    async def start(self) -> None:
        """Reads which bookies exist; raises MetadataError."""
        await self.bookies.start()

    async def stop(self) -> None:
        """Closes the client and its connections."""
        await self.client.close()
        await self.bookies.stop()

    def status(self) -> Mapping[str, object]:
        """The fields of /status. A degraded ledger is written with too few copies."""
        living = self.bookies.living()
        writers = self.client.writers
        return {
            "bookies": [bookie.identity.bookie_id for bookie in living],
            "bookies_writable": sum(bookie.writable for bookie in living),
            "bookies_in_quarantine": [
                bookie.identity.bookie_id for bookie in living if bookie.quarantined
            ],
            "ledgers_open": len(writers),
            "ledgers_degraded": sum(writer.degraded for writer in writers),
        }

    def families(self) -> Iterable[str]:
        """The families of /metrics."""
        living = self.bookies.living()
        writers = self.client.writers
        for name, value in (
            ("magnetar_bookies", len(living)),
            ("magnetar_bookies_writable", sum(bookie.writable for bookie in living)),
            ("magnetar_bookies_in_quarantine", sum(bookie.quarantined for bookie in living)),
            ("magnetar_ledgers_open", len(writers)),
            ("magnetar_ledgers_degraded", sum(writer.degraded for writer in writers)),
            ("magnetar_ledgers_late_bytes", self.client.late_bytes),
        ):
            yield single(name, "", value)
        yield from session_families(self._session)
