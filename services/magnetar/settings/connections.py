"""The settings of a broker's client connections."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings.field import UNLIMITED, setting

CONNECTIONS: Final = "Connections"


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """How a broker treats the connections of its clients."""

    keep_alive_interval_s: int = setting(
        30,
        "How often a silent connection is pinged; two silent intervals end it.",
        group=CONNECTIONS,
        unit="s",
        within=(1, 3_600),
        pulsar="keepAliveIntervalSeconds",
    )
    liveness_check_timeout_ms: int = setting(
        5_000,
        "How long an old connection may take to answer before its client is replaced.",
        group=CONNECTIONS,
        unit="ms",
        within=(100, 600_000),
        pulsar="connectionLivenessCheckTimeoutMillis",
    )
    connections_max: int = setting(
        0,
        "Maximum number of client connections of this broker; 0 means no limit.",
        group=CONNECTIONS,
        unit="connections",
        within=(0, UNLIMITED),
        pulsar="brokerMaxConnections",
    )
    connections_per_ip_max: int = setting(
        0,
        "Maximum number of client connections from one IP address; 0 means no limit.",
        group=CONNECTIONS,
        unit="connections",
        within=(0, UNLIMITED),
        pulsar="brokerMaxConnectionsPerIp",
    )
    http_requests_limited: bool = setting(
        False,
        "Whether HTTP requests are limited to `http_requests_per_s`.",
        group=CONNECTIONS,
        pulsar="httpRequestsLimitEnabled",
    )
    http_requests_per_s: float = setting(
        100.0,
        "Maximum rate of HTTP requests from one address, and of one role (Pulsar: of all "
        "together); further ones get 429.",
        group=CONNECTIONS,
        unit="requests/s",
        within=(0.1, 1_000_000),
        pulsar="httpRequestsMaxPerSecond",
    )
    requests_per_s_max: float = setting(
        0.0,
        "Maximum rate of commands that look up, list or attach, from one address and of one "
        "role; 0 means no limit.",
        group=CONNECTIONS,
        unit="requests/s",
        within=(0.0, 1_000_000),
    )
    shutdown_timeout_ms: int = setting(
        10_000,
        "How long a stopping broker may take to drain (Pulsar: 60000).",
        group=CONNECTIONS,
        unit="ms",
        within=(100, 600_000),
        pulsar="brokerShutdownTimeoutMs",
    )
    encryption_required: bool = setting(
        False,
        "Whether producers must encrypt all messages, even if no policy requires it.",
        group=CONNECTIONS,
        pulsar="encryptionRequireOnProducer",
    )
