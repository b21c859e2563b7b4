"""TLS contexts that follow their files: new connections use the newest files that are valid.

Files change one after the other, so a check in between finds a certificate without its key. Then,
and whenever the new files are broken, the old context stays in use, `failing` has the reason, the
log has one line per reason, and the next check tries again. Existing connections keep the context
that they began with.

`refresh_s` is the interval of the check; with 0, every use of `context` checks. A check is one
`stat` per file.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.security.tls.certificates import expires_at_s
from magnetar.security.tls.contexts import client_context, presenting_context, server_context
from magnetar.security.tls.files import Fingerprint, fingerprint
from magnetar.security.tls.settings import ClientTlsConfig, ServerTlsConfig

log = get_logger("magnetar.security.tls.reload")

EXPIRY_WARNING_S: Final = 7 * 86_400
"""A certificate that expires sooner is logged when it is loaded."""


@dataclass(slots=True)
class TlsStats:
    """The counters of one reloading context."""

    reloads: int = 0
    reload_failures: int = 0


Built = tuple[ssl.SSLContext, ssl.SSLContext | None]
"""What `context` and `verifying` return."""


class _Reloading:
    """A context and the files that it was built from."""

    def __init__(
        self,
        name: str,
        files: tuple[Path, ...],
        refresh_s: float,
        build: Callable[[], "Built"],
        cert_file: Path | None,
    ) -> None:
        self.name = name
        """The name of the certificate in log lines and metrics."""
        self.stats = TlsStats()
        self.failing = ""
        """Why the current files are not in use; empty if they are."""
        self._files = files
        self._refresh_s = refresh_s
        self._build = build
        self._cert_file = cert_file
        self._loaded: Fingerprint = fingerprint(files)
        self._contexts, self.expires_at_s = self._built()
        """`expires_at_s`: Unix time at which a certificate of the chain in use expires first."""
        self._tasks = TaskSet(f"tls {name}")

    @property
    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        if not self._refresh_s:
            self.reload()
        return self._contexts[0]

    @property
    def verifying(self) -> ssl.SSLContext | None:
        """The context that verifies the client of a connection that began with `context`.

        None if that is `context` itself. Read both in one turn: a reload changes both.
        """
        return self._contexts[1]

    def start(self) -> None:
        """Begins to check the files every `refresh_s`."""
        if self._refresh_s:
            self._tasks.start(self._watch(), "watch files")

    async def stop(self) -> None:
        """Ends the checks; idempotent."""
        await self._tasks.stop()

    def reload(self) -> bool:
        """Uses changed files if they are valid; returns whether the context changed."""
        try:
            current = fingerprint(self._files)
            if current == self._loaded:
                self.failing = ""
                return False
            contexts, expires_at = self._built()
            if fingerprint(self._files) != current:
                return False  # written meanwhile: the next check reads them again
        except (OSError, ValueError) as error:
            self._failed(str(error))
            return False
        self._contexts, self._loaded, self.failing = contexts, current, ""
        self.expires_at_s = expires_at
        self.stats.reloads += 1
        log.info("certificates reloaded", tls=self.name, files=", ".join(map(str, self._files)))
        return True

    def _built(self) -> "tuple[Built, float | None]":
        """Returns contexts of the current files and the expiry of their certificate, if any.

        Raises TlsFileError.
        """
        contexts = self._build()
        if self._cert_file is None:
            return contexts, None
        expires_at = expires_at_s(self._cert_file)
        left_s = expires_at - time.time()
        if left_s < EXPIRY_WARNING_S:
            log.warning(
                "the certificate expires soon" if left_s > 0 else "the certificate has expired",
                tls=self.name,
                file=str(self._cert_file),
                days=round(left_s / 86_400, 1),
            )
        return contexts, expires_at

    def _failed(self, reason: str) -> None:
        self.stats.reload_failures += 1
        if reason != self.failing:
            self.failing = reason
            log.error(
                "changed certificates not used; the old ones stay in use until the files are valid",
                tls=self.name,
                reason=reason,
            )

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            self.reload()


class ServerTls(_Reloading):
    """The TLS of a process's listeners."""

    def __init__(self, config: ServerTlsConfig, name: str) -> None:
        files = (config.cert_file, config.key_file, config.trust_file)
        self.config = config
        super().__init__(
            name,
            tuple(path for path in files if path is not None),
            config.options.refresh_s,
            lambda: _server_contexts(config),
            config.cert_file,
        )


class ClientTls(_Reloading):
    """The TLS of a process's connections to one kind of server."""

    def __init__(self, config: ClientTlsConfig, name: str) -> None:
        files = (config.trust_file, config.cert_file, config.key_file)
        self.config = config
        super().__init__(
            name,
            tuple(path for path in files if path is not None),
            config.options.refresh_s,
            lambda: (client_context(config), None),
            config.cert_file,
        )


def _server_contexts(config: ServerTlsConfig) -> Built:
    verifying = server_context(config)
    presenting = presenting_context(config)
    return (verifying, None) if presenting is None else (presenting, verifying)


def open_server_tls(config: ServerTlsConfig, name: str = "server") -> ServerTls:
    """Loads the files of a server; raises TlsFileError. Call `start` to follow changes."""
    return ServerTls(config, name)


def open_client_tls(config: ClientTlsConfig, name: str = "client") -> ClientTls:
    """Loads the files of a client; raises TlsFileError. Call `start` to follow changes."""
    return ClientTls(config, name)
