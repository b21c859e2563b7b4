"""The settings of a broker of a cluster, whose ledgers are on bookies."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings.balance import BalanceSettings
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import SettingsError, group, setting
from magnetar.settings.member import CLUSTER, CLUSTER_NAME_DEFAULT, MemberSettings
from magnetar.settings.storage_tls import BookieClientTlsSettings

BROKER: Final = "Broker in a cluster"


@dataclass(frozen=True, kw_only=True)
class BrokerProcessSettings(BrokerSettings):
    """The settings of `magnetar broker`: a broker's, and those of its place in a cluster."""

    bookie_client: BookieClientTlsSettings = group(BookieClientTlsSettings)
    member: MemberSettings = group(MemberSettings)
    balance: BalanceSettings = group(BalanceSettings)
    cluster_name: str = setting(
        CLUSTER_NAME_DEFAULT,
        "The cluster's name; a process of another cluster is refused.",
        group=CLUSTER,
        pulsar="clusterName",
    )
    host: str = setting(
        "127.0.0.1",
        "The address that both ports listen on (Pulsar: 0.0.0.0).",
        group=BROKER,
        pulsar="bindAddress",
    )
    port: int | None = setting(
        6650,
        "Port of the binary protocol; 0 takes a free one, `none` turns it off.",
        group=BROKER,
        within=(0, 65_535),
        pulsar="brokerServicePort",
        off=True,
    )
    http_port: int | None = setting(
        8080,
        "Port of the admin REST, lookups, health and metrics; 0 takes a free one, `none`: off.",
        group=BROKER,
        within=(0, 65_535),
        pulsar="webServicePort",
        off=True,
    )
    advertised_host: str | None = setting(
        None,
        "The host name that clients and brokers connect to; by default, the address listened on.",
        group=BROKER,
        pulsar="advertisedAddress",
    )
    # A certificate can name such hosts, and not the address of a pod that does not exist yet.
    advertised_domain: str = setting(
        "",
        "The domain of a host name made of the advertised address, such as "
        "`10-1-0-7.NAMESPACE.pod`; empty: the address itself.",
        group=BROKER,
    )
    advertised_listeners: tuple[str, ...] = setting(
        (),
        "Addresses by the name of their listener: `name:pulsar://host:port`, separated by commas.",
        group=BROKER,
        pulsar="advertisedListeners",
    )
    internal_listener_name: str | None = setting(
        None,
        "The listener of brokers, and of clients that name none; by default, the first.",
        group=BROKER,
        pulsar="internalListenerName",
    )
    ensemble_size: int = setting(
        2,
        "Number of bookies in the ensemble of a new ledger.",
        group=BROKER,
        unit="bookies",
        within=(1, 100),
        pulsar="managedLedgerDefaultEnsembleSize",
    )
    write_quorum: int = setting(
        2,
        "Number of bookies that each entry is written to.",
        group=BROKER,
        unit="bookies",
        within=(1, 100),
        pulsar="managedLedgerDefaultWriteQuorum",
    )
    ack_quorum: int = setting(
        2,
        "Number of bookies that must have an entry on disk before its producer gets a receipt.",
        group=BROKER,
        unit="bookies",
        within=(1, 100),
        pulsar="managedLedgerDefaultAckQuorum",
    )
    add_timeout_ms: int = setting(
        3_000,
        "How long a bookie may take for an add before the writer replaces it.",
        group=BROKER,
        unit="ms",
        within=(100, 600_000),
    )
    read_timeout_s: int = setting(
        30,
        "How long a read may take, including attempts on other copies.",
        group=BROKER,
        unit="s",
        within=(1, 3_600),
        pulsar="bookkeeperClientTimeoutInSeconds",
    )
    speculative_read_delay_ms: int = setting(
        250,
        "Time without an answer after which a read also tries another copy; 0: only after an error "
        "(Pulsar's default).",
        group=BROKER,
        unit="ms",
        within=(0, 600_000),
        pulsar="bookkeeperClientSpeculativeReadTimeoutInMillis",
    )
    quarantine_errors_max: int = setting(
        5,
        "Number of seconds with errors within `quarantine_window_s` that quarantine a bookie.",
        group=BROKER,
        within=(1, 1_000),
        pulsar="bookkeeperClientHealthCheckErrorThresholdPerInterval",
    )
    quarantine_window_s: int = setting(
        60,
        "The window of `quarantine_errors_max`.",
        group=BROKER,
        unit="s",
        within=(1, 86_400),
        pulsar="bookkeeperClientHealthCheckIntervalSeconds",
    )
    quarantine_s: int = setting(
        1_800,
        "How long a quarantined bookie gets no new ledger, if there are other bookies.",
        group=BROKER,
        unit="s",
        within=(1, 86_400),
        pulsar="bookkeeperClientHealthCheckQuarantineTimeInSeconds",
    )

    @property
    def shutdown_timeout_ms(self) -> int:
        """How long the process may take to drain."""
        return self.connections.shutdown_timeout_ms

    @property
    def advertised_name(self) -> str:
        """The host name that clients and brokers connect to."""
        host = self.advertised_host or self.host
        if not self.advertised_domain:
            return host
        return f"{host.replace('.', '-').replace(':', '-')}.{self.advertised_domain}"

    def __post_init__(self) -> None:
        super().__post_init__()
        tls = self.broker_tls
        tls.check_ports(self.port, self.http_port, self.tls)
        if tls.broker_client_tls and tls.http_port_tls is None:
            raise SettingsError(
                "broker_client_tls (brokerClientTlsEnabled) is set: brokers reach each other at "
                "http_port_tls (webServicePortTls), so set it, too"
            )
        if self.http_port is None and not tls.broker_client_tls:
            raise SettingsError(
                "http_port (webServicePort) is off: other brokers reach this one by TLS only, so "
                "set broker_client_tls (brokerClientTlsEnabled)"
            )
        if not self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise SettingsError(
                f"ack_quorum {self.ack_quorum}, write_quorum {self.write_quorum} and "
                f"ensemble_size {self.ensemble_size}: each must be at most the next"
            )
