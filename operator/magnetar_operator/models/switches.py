"""Detects Pulsar settings in a `config` for features that Magnetar lacks. Pure: no IO.

A broker only warns about them, and starts without authentication, TLS or deduplication. The CRD
therefore refuses them, and the operator reports them for a cluster that was stored before.
"""

from collections.abc import Mapping
from typing import Final

from magnetar_operator.models.base import Cel

SWITCHES: Final = (
    "authenticationEnabled",
    "authorizationEnabled",
    "tlsEnabled",
    "tlsRequireTrustedClientCertOnConnect",
    "brokerClientTlsEnabled",
    "brokerDeduplicationEnabled",
    "delayedDeliveryEnabled",
    "transactionCoordinatorEnabled",
    "authenticationProviders",
    "brokerServicePortTls",
    "webServicePortTls",
    "bookieAuthProviderFactoryClass",
)
OFF: Final = ("", "false")
"""Values, in lower case, that request nothing."""
PULSAR_PREFIX: Final = "PULSAR_PREFIX_"
MESSAGE: Final = (
    "config has a setting that is not supported: Magnetar has no authentication, authorization or "
    "TLS for clients, no deduplication, delayed delivery or transactions; leave out or set to "
    f"false: {', '.join(SWITCHES)}"
)
_KEYS: Final = tuple(f"{prefix}{key}" for key in SWITCHES for prefix in ("", PULSAR_PREFIX))

RULE: Final = Cel(
    f"!has(self.config) || {list(_KEYS)}.all(key, !(key in self.config) || "
    f"string(self.config[key]).lowerAscii() in {list(OFF)})",
    MESSAGE,
    ".config",
)
"""The rule for a component with `config`."""


def switched_on(config: Mapping[str, object]) -> list[str]:
    """The keys of a `config` that RULE refuses."""
    return [key for key in _KEYS if str(config.get(key, "")).lower() not in OFF]
