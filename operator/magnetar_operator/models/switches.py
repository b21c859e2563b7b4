"""Detects Pulsar settings that do not belong into a `config`. Pure: no IO.

Some are for features that Magnetar lacks; TLS, authentication and authorization need certificates
and tokens beside settings, and are fields of the spec. The CRD refuses them, and the operator
reports them for a cluster that was stored before.
"""

from collections.abc import Mapping
from typing import Final

from magnetar_operator.models.base import Cel

SECURITY: Final = frozenset(
    {
        "authenticationEnabled",
        "authenticationProviders",
        "authorizationEnabled",
        "brokerClientTlsEnabled",
        "brokerServicePortTls",
        "tlsEnabled",
        "tlsRequireTrustedClientCertOnConnect",
        "webServicePortTls",
    }
)
"""Brokers honor these, but not alone: in a `config`, the operator, probes and jobs would have no
certificates and tokens, and credentials would be in a ConfigMap."""
SWITCHES: Final = (
    "authenticationEnabled",
    "authorizationEnabled",
    "tlsEnabled",
    "tlsRequireTrustedClientCertOnConnect",
    "brokerClientTlsEnabled",
    "authenticationProviders",
    "brokerServicePortTls",
    "webServicePortTls",
    "bookieAuthProviderFactoryClass",
)
OFF: Final = ("", "false")
"""Values, in lower case, that request nothing."""
PULSAR_PREFIX: Final = "PULSAR_PREFIX_"
MESSAGE: Final = (
    "config has a setting that is not supported there: TLS, authentication and authorization are "
    "spec.tls and spec.auth; leave "
    f"out or set to false: {', '.join(SWITCHES)}"
)
_KEYS: Final = tuple(f"{prefix}{key}" for key in SWITCHES for prefix in ("", PULSAR_PREFIX))

RULE: Final = Cel(
    f"!has(self.config) || {list(_KEYS)}.all(key, !(key in self.config) || "
    f"string(self.config[key]).lowerAscii() in {list(OFF)})",
    MESSAGE,
    ".config",
)
"""The rule for a component with `config`."""


def way_out(key: str) -> str:
    """Returns the advice about a key that RULE refuses, for a status."""
    if key.removeprefix(PULSAR_PREFIX) in SECURITY:
        return "belongs into spec.tls and spec.auth, which also issue what it needs: move it there"
    return "is not supported and has no effect: remove it or set it to false"


def switched_on(config: Mapping[str, object]) -> list[str]:
    """The keys of a `config` that RULE refuses."""
    return [key for key in _KEYS if str(config.get(key, "")).lower() not in OFF]
