"""Opens the security of a broker. Its modules are imported only if authentication is on."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.core.clock import Clock
from magnetar.metadata.store import MetadataStore
from magnetar.settings.audit import AuditSettings
from magnetar.settings.field import SettingsError
from magnetar.settings.security import SecuritySettings

if TYPE_CHECKING:
    from magnetar.broker.security.broker_security import BrokerSecurity


def open_security(
    settings: SecuritySettings,
    audit: AuditSettings,
    store: MetadataStore,
    clock: Clock,
    *,
    up_to_date: Callable[[], bool] | None = None,
) -> "BrokerSecurity | None":
    """Returns the security that the settings describe, None if authentication is off.

    `up_to_date` says whether the broker's lease is valid; None for a broker without a lease. Raises
    SettingsError, or ConfigurationError for a key that cannot be read.
    """
    if not settings.authentication_enabled:
        if settings.authorization_enabled:
            raise SettingsError(
                "authorization_enabled (authorizationEnabled) needs authentication_enabled "
                "(authenticationEnabled): without it, no client has a role"
            )
        if audit.audit_log_file is not None:
            raise SettingsError(
                "audit_log_file needs authentication_enabled (authenticationEnabled): without it, "
                "no record would say who did something"
            )
        return None
    from magnetar.broker.security.broker_security import create_security
    from magnetar.settings.authentication import authentication_of

    return create_security(settings, audit, authentication_of(settings), store, clock, up_to_date)
