"""The security of a broker: its connections and requests share one `BrokerSecurity`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.security.authorizer import Authorizer, always
from magnetar.broker.security.denials import Denials
from magnetar.broker.security.role_caps import RoleCaps
from magnetar.broker.security.rules import Rules
from magnetar.core.causes import Causes
from magnetar.core.clock import Clock
from magnetar.metadata.store import MetadataStore
from magnetar.observe.audit import AuditLog, AuditRecord
from magnetar.security.api import Authenticator
from magnetar.security.authenticator import open_authenticator
from magnetar.security.configuration import Authentication
from magnetar.settings.audit import AuditSettings
from magnetar.settings.security import SecuritySettings

CHALLENGE_ANSWER_S_DEFAULT: Final = 60.0
ATTACHMENTS_REMEMBERED: Final = 8_192
"""Attachments that are remembered, so that the audit log has each once an hour."""


@dataclass(slots=True)
class ConnectCounts:
    """How many proofs of identity the broker accepted and refused since its start."""

    accepted: int = 0
    refused: int = 0
    unavailable: int = 0
    """Undecided, because the identity provider did not answer."""
    refreshed: int = 0
    expired: int = 0
    """Connections closed because their credentials had expired."""
    revoked: int = 0
    """Connections closed because the key or password that proved them is no longer accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity:
    """How a broker authenticates its clients and decides what they may do."""

    authenticator: Authenticator
    authorizer: Authorizer | None
    """None while authorization is off: every authenticated role may do everything."""
    clock: Clock
    """The clock by which the authenticator sets expiries."""
    proxy_roles: frozenset[str] = frozenset()
    authenticate_metrics: bool = False
    """Whether /metrics needs credentials."""
    verify_original: bool = False
    """Whether the broker verifies the credentials that a proxy forwards, or trusts its role."""
    challenge_answer_s: float = CHALLENGE_ANSWER_S_DEFAULT
    """How long a client may take to answer AUTH_CHALLENGE."""
    counts: ConnectCounts = field(default_factory=ConnectCounts)
    """Counts of connections of the binary protocol."""
    http_counts: ConnectCounts = field(default_factory=ConnectCounts)
    """Counts of HTTP requests."""
    audit: AuditLog | None = None
    """None if no file is set for it."""
    audit_reads: bool = False
    """Whether the audit log includes allowed GET requests."""
    causes: Causes = field(default_factory=Causes)
    """The causes of logged refusals."""
    role_caps: RoleCaps = field(default_factory=RoleCaps)
    """Counts the connections of each role."""
    attached: Causes = field(default_factory=lambda: Causes(ATTACHMENTS_REMEMBERED))
    """The attachments in the audit log."""

    def audit_refused_connection(self, address: str, reason: str) -> None:
        """Writes a connection to the audit log that was refused before its CONNECT."""
        if self.audit is not None:
            self.audit.record(
                AuditRecord("CONNECT", "", "", "", address, allowed=False, reason=reason)
            )

    async def close(self) -> None:
        """Closes the providers, and the audit log after its last records. Idempotent."""
        await self.authenticator.close()
        if self.audit is not None:
            await self.audit.stop()


def create_security(
    settings: SecuritySettings,
    audit: AuditSettings,
    config: Authentication,
    store: MetadataStore,
    clock: Clock,
    up_to_date: Callable[[], bool] | None = None,
) -> BrokerSecurity:
    """Returns the security that the settings describe.

    `up_to_date` says whether the broker's lease is valid. Raises ConfigurationError for a key that
    cannot be read.
    """
    audit_log = None
    if audit.audit_log_file is not None:
        audit_log = AuditLog(
            audit.audit_log_file,
            audit.audit_log_bytes_max,
            audit.audit_log_files_max,
            clock,
        )
    authorizer = None
    if settings.authorization_enabled:
        rules = Rules(
            frozenset(settings.superuser_roles),
            wildcards=settings.authorization_wildcards,
            tenant_admins_update_tenants=settings.tenant_admins_update_tenants,
            observers=frozenset(settings.observer_roles),
        )
        authorizer = Authorizer(store, rules, Denials(audit_log), up_to_date=up_to_date or always)
    return BrokerSecurity(
        authenticator=open_authenticator(config, clock),
        authorizer=authorizer,
        clock=clock,
        proxy_roles=frozenset(settings.proxy_roles),
        authenticate_metrics=settings.authenticate_metrics,
        verify_original=settings.authenticate_original,
        challenge_answer_s=settings.auth_challenge_s,
        audit=audit_log,
        audit_reads=audit.audit_log_reads,
        role_caps=RoleCaps(settings.connections_per_role_max),
    )
