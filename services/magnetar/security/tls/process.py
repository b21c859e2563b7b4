"""All TLS contexts of a process: they start, stop and are measured together.

The other modules of TLS are imported with the first context: an open process does not need them.
"""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from magnetar.observe.metrics import family, label_text, single

if TYPE_CHECKING:
    from magnetar.security.tls.reload import ClientTls, ServerTls
    from magnetar.security.tls.settings import ClientTlsConfig, ServerTlsConfig


class ProcessTls:
    """The contexts that a process has opened; empty in a process without TLS."""

    def __init__(self) -> None:
        self._members: list[ServerTls | ClientTls] = []

    def server(self, config: "ServerTlsConfig", name: str = "server") -> "ServerTls":
        """Opens the TLS of listeners and follows its files until `stop`; raises TlsFileError."""
        from magnetar.security.tls.reload import open_server_tls

        opened = open_server_tls(config, name)
        self._members.append(opened)
        opened.start()
        return opened

    def server_if(self, config: "ServerTlsConfig | None") -> "ServerTls | None":
        """Like `server`; None for listeners without TLS."""
        return None if config is None else self.server(config)

    def client(self, config: "ClientTlsConfig", name: str) -> "ClientTls":
        """Opens the TLS of a client and follows its files until `stop`; raises TlsFileError."""
        from magnetar.security.tls.reload import open_client_tls

        opened = open_client_tls(config, name)
        self._members.append(opened)
        opened.start()
        return opened

    def client_if(self, config: "ClientTlsConfig | None", name: str) -> "ClientTls | None":
        """Like `client`; None for a client without TLS."""
        return None if config is None else self.client(config, name)

    async def stop(self) -> None:
        """Ends the checks of files; idempotent."""
        for member in self._members:
            await member.stop()

    def families(self) -> Iterable[str]:
        """The families of /metrics; none without TLS."""
        members = self._members
        if not members:
            return
        labels = [label_text([("tls", member.name)]) for member in members]
        own = [member for member in members if member.expires_at_s is not None]
        now = time.time()
        yield family(
            "magnetar_certificate_expiry_seconds",
            [label_text([("tls", member.name)]) for member in own],
            [round((member.expires_at_s or 0) - now) for member in own],
        )
        yield family(
            "magnetar_certificate_reload_failing",
            labels,
            [int(bool(member.failing)) for member in members],
        )
        yield family(
            "magnetar_certificate_reloads_total",
            labels,
            [member.stats.reloads for member in members],
            "counter",
        )
        from magnetar.security.tls.pacer import pacer

        stats = pacer().stats
        yield family(
            "magnetar_tls_handshakes_total",
            [label_text([("result", result)]) for result in ("completed", "failed", "timed_out")],
            [stats.completed, stats.failed, stats.timed_out],
            "counter",
        )
        reasons = sorted(stats.reasons.items())
        yield family(
            "magnetar_tls_handshake_failures_total",
            [label_text([("reason", reason)]) for reason, _ in reasons],
            [count for _, count in reasons],
            "counter",
        )
        yield single("magnetar_tls_handshakes_unfinished", "", pacer().unfinished)
